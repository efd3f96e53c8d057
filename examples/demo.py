"""`make demo`: trains examples/digits.py on four workers, kills one of them on the way, then on one, and compares.

Both runs cut every batch into the same four pieces and give every worker one thread, so their weights must be the
same bits. Exits with 1 if they are not.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import h5py
from rich import box
from rich.console import Console
from rich.table import Table

SCRIPT = Path(__file__).with_name("digits.py")
WORKERS, PIECES, BATCH = 4, 4, 128  # the batch is the script's
VICTIM, MIDDLE = "worker-2", 30  # who is killed, and the step after which

console = Console(highlight=False)


@dataclass(frozen=True)
class Outcome:
    """What one training left behind."""

    workers: int
    samples_per_second: float
    accuracy: float
    weights: str  # hash
    killed: str = ""  # what was done to it


def main() -> int:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="shoal-demo-") as folder:
        many = train(WORKERS, Path(folder, "many"), quiet=False, kill=True)
        with console.status("the same training on one worker, for comparison"):
            one = train(1, Path(folder, "one"), quiet=True)
    console.print()
    console.print(table(many, one))
    cores = len(os.sched_getaffinity(0))
    if cores < WORKERS:
        console.print(f"{WORKERS} workers share {cores} cores here: samples/s says nothing about scaling.", style="dim")
    same = many.weights == one.weights
    if same:
        although = f", although {many.killed}" if many.killed else ""
        console.print(f"The weights are the same bits on {WORKERS} workers and on one{although}.", style="bold green")
    else:
        console.print(f"The weights DIFFER between {WORKERS} workers and one.", style="bold red")
    console.print(f"{time.perf_counter() - began:.0f} s in all", style="dim")
    return 0 if same else 1


def train(workers: int, folder: Path, *, quiet: bool, kill: bool = False) -> Outcome:
    """`shoal run` on the script. Unless it is to be quiet, the chief's progress bar is on this terminal."""
    folder.mkdir()
    runtime = folder / "runtime"  # of its own, so that `shoal status` shows this run alone
    runtime.mkdir(mode=0o700)
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    murder = Murder(environ)
    options = ["-n", str(workers), "--pieces", str(PIECES), "--threads", "1", "--backend", "jax"]
    shown = " ".join(["shoal run", *options, os.path.relpath(SCRIPT)])
    console.print(f"$ {shown}", style="bold")
    command = [sys.executable, "-m", "shoal", "run", *options, str(SCRIPT), str(folder)]
    said = []
    if kill:
        murder.start()
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL if quiet else None, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr or ():
            said.append(line)
            if not quiet:
                print(line, end="", file=sys.stderr, flush=True)
    murder.over.set()
    if process.returncode != 0:
        print("".join(said) if quiet else "", end="", file=sys.stderr)
        sys.exit(f"demo: `{shown}` ended with code {process.returncode}")
    with (folder / "log.csv").open(newline="") as file:
        epochs = list(csv.DictReader(file))
    speeds = [float(epoch["samples_per_second"]) for epoch in epochs[1:]]  # the first one compiles
    accuracy = float(epochs[-1]["val_accuracy"])
    weights = hash_of(folder / "digits.weights.h5")
    return Outcome(workers, statistics.median(speeds), accuracy, weights, murder.deed)


class Murder(threading.Thread):
    """Waits until the victim has trained for a while, and kills it with -9."""

    def __init__(self, environ: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._environ = environ
        self.over = threading.Event()
        self.deed = ""

    def run(self) -> None:
        while not self.over.wait(0.1) and not self.deed:
            command = [sys.executable, "-m", "shoal", "status", "--json"]
            answer = subprocess.run(command, env=self._environ, capture_output=True, text=True).stdout
            members = (member for run in json.loads(answer or "[]") for member in run.get("members", []))
            for member in members:
                if member["id"] == VICTIM and member["step"] >= MIDDLE and not self.over.is_set():
                    os.kill(member["pid"], signal.SIGKILL)
                    self.deed = f"{VICTIM} was killed at about step {member['step']}"


def hash_of(path: Path) -> str:
    """sha256 over every array of a weights file, in the order of their names: the model's and the optimizer's."""
    digest = hashlib.sha256()

    def take(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            digest.update(name.encode())
            digest.update(item[()].tobytes())

    with h5py.File(path) as file:
        file.visititems(take)
    return digest.hexdigest()


def table(*outcomes: Outcome) -> Table:
    title = "a convolutional net on digits, on JAX (each: per worker and step)"
    made = Table(title=title, title_justify="left", title_style="", header_style="bold", box=box.SIMPLE)
    made.padding = (0, 0, 0, 1)
    for heading in ("workers", "pieces each", "samples each", "samples/s", "test accuracy"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("sha256", no_wrap=True)
    for outcome in outcomes:
        made.add_row(
            str(outcome.workers),
            f"{PIECES // outcome.workers} of {PIECES}",
            f"{BATCH // outcome.workers} of {BATCH}",
            f"{outcome.samples_per_second:,.0f}",
            f"{outcome.accuracy:.1%}",
            outcome.weights[:12],
        )
    return made


if __name__ == "__main__":
    sys.exit(main())

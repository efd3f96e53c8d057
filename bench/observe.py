"""What it costs to watch a run: samples per second with the record of what members do, and without it.

Four runs of the same script with two workers take turns: two without the record and the live line, which must be
equal (A/A); one as `shoal run` is without any option, with both; and one with `--trace`. A bystander reads the record
as often as a page that is open in a browser would.

    python bench/observe.py [--quick] [--models mlp conv] [--backends jax torch] > observe.json
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from contestants import running, together
from harness import Facts, Watch, report, same_against_itself, say, spread, tournament
from jobs import BACKENDS, WORKERS, Job, shoal
from shoal.observe.record_files import dropped, read

# Samples per second, watched over unwatched: how many there must be.
GOALS = {"record": 0.99, "record, and read once a second": 0.99, "trace": 0.97}
SAME_WITHIN = 0.01  # how far the base line may be from itself
MODELS = ("mlp", "conv")
PIECES = ("--pieces", str(WORKERS))  # fixed: no run is to change its mind on the way
UNWATCHED = ("--no-record", "--no-live", *PIECES)
LOOK_EVERY = 1.0  # seconds, as a page does
LAST = 30.0  # seconds of the record that a page shows
PACKAGES = ("keras", "jax", "jaxlib", "tensorflow", "torch", "numpy", "msgspec")


def watched(model: str, backend: str, flags: tuple[str, ...]) -> Job:
    return shoal(model, backend, flags=[*flags, *PIECES])


def measure(model: str, backend: str, pairs: int, seconds: float, rng: random.Random) -> dict[str, Facts]:
    """Each way of watching against none."""
    with tempfile.TemporaryDirectory(prefix="bench-logs-") as folder:
        logs = Path(folder) / "read"
        off, again = (shoal(model, backend, flags=UNWATCHED) for _ in range(2))
        ways = {
            "record": watched(model, backend, ("--logs", f"{folder}/record")),
            "record, and read once a second": watched(model, backend, ("--logs", str(logs))),
            "trace": watched(model, backend, ("--logs", f"{folder}/trace", "--trace", f"{folder}/trace.json")),
        }
        with running([*off, *again, *(contestant for job in ways.values() for contestant in job)]):
            off_once, again_once = (partial(together, job, seconds) for job in (off, again))
            once = {way: partial(together, job, seconds) for way, job in ways.items()}
            once["record, and read once a second"] = partial(_read_while, logs, once["record, and read once a second"])
            for warm_up in (off_once, again_once, *once.values()):
                warm_up()
            check = same_against_itself(off_once, again_once, pairs, rng, within=SAME_WITHIN)
            say(f"{model}, {backend}: A/A {check['ratio']['median']:.3f}")
            duels = {way: tournament(slice, {"off": off_once}, pairs, rng, say)["off"] for way, slice in once.items()}
            facts = {way: job[0].facts() for way, job in {"off": off, **ways}.items()}
        kept = {path.name: _size(path) for path in Path(folder).iterdir() if path.is_dir()}
        lost = {path.name: sum(dropped(path).values()) for path in Path(folder).iterdir() if path.is_dir()}
    base = facts["off"]["cpu_ms_per_sample"]
    return {
        way: {
            "unit": "samples per second",
            "watched": spread(duel.ours),
            "unwatched": spread(duel.other),
            "ratio": spread(duel.ratios),
            "ratios": [round(ratio, 4) for ratio in duel.ratios],
            "cpu_ratio": round(facts[way]["cpu_ms_per_sample"] / base, 4),
            "bytes_kept": kept,
            "spans_dropped": lost,
            "same_against_itself": check,
            "goal": GOALS[way],
            "reached": statistics.median(duel.ratios) >= GOALS[way] and not check["void"],
            "commands": facts[way]["commands"],
        }
        for way, duel in duels.items()
    }


def _read_while(logs: Path, slice: partial[float]) -> float:
    with reader(logs):
        return slice()


@contextmanager
def reader(logs: Path) -> Iterator[None]:
    """Reads the last of a record again and again, as a page's server does. The place for a page of the dashboard."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_EVERY):
            read(logs, since=time.time() - LAST)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.spans*"))


def table(found: dict[str, Facts]) -> list[list[str]]:
    rows = [["what", "watched/s", "unwatched/s", "ratio", "quartiles", "goal", "CPU", "A/A"]]
    for what, facts in found.items():
        check = facts["same_against_itself"]
        rows.append(
            [
                what,
                f"{facts['watched']['median']:.4g}",
                f"{facts['unwatched']['median']:.4g}",
                f"{facts['ratio']['median']:.3f}",
                "{:.3f} to {:.3f}".format(*facts["ratio"]["quartiles"]),
                f"at least {facts['goal']}",
                f"{facts['cpu_ratio']:.3f}",
                f"{check['ratio']['median']:.3f}{' (void)' if check['void'] else ''}",
            ]
        )
    return rows


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--models", nargs="+", choices=MODELS, default=["mlp"])
    options.add_argument("--backends", nargs="+", choices=BACKENDS, default=["jax"])
    options.add_argument("--pairs", type=int, default=24)
    options.add_argument("--seconds", type=float, default=2.0, help="length of a slice")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="4 pairs of 1 s: shows that it works")
    given = options.parse_args()
    if given.quick:
        given.pairs, given.seconds = 4, 1.0
    watch = Watch()
    rng = random.Random(given.seed)
    found = {
        f"{model}, {backend}: {way}": facts
        for model in given.models
        for backend in given.backends
        for way, facts in measure(model, backend, given.pairs, given.seconds, rng).items()
    }
    report({"bench": "observe", "settings": vars(given), "found": found, **watch.facts(PACKAGES)}, table(found))


if __name__ == "__main__":
    main()

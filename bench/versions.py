"""This commit against an earlier one: training, all-reduce, parameter servers, start and recovery, in turns.

The earlier one is checked out beside this one, with an environment of its own that borrows this one's packages: both
have the same Keras and the same backends. Rates: more is better; a ratio is this commit's over the earlier one's. In
`recovery` the rate is one over the seconds from a kill to the next step of a survivor.

    python bench/versions.py --before COMMIT [--parts fit allreduce ps start recovery] > versions.json
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from allreduce import Workers
from contestants import running, stamped, together
from harness import ROOT, Facts, Slice, Watch, report, same_against_itself, say, tournament
from jobs import BACKENDS, PYTHON, Job, served, shoal, stamped_shoal
from overhead import first_step
from recovery import FLAGS, SAMPLES, WORKERS, kill_ours

GOAL = 0.98
BEFORE = "the earlier commit"
SIZES = (65_536, 33_554_432)  # bytes
PACKAGES = ("keras", "jax", "jaxlib", "tensorflow", "torch", "numpy")
FITS = [("mlp", backend) for backend in BACKENDS] + [("conv", "jax")]
KILLS = 4  # of each run

Part = Callable[[str, argparse.Namespace, random.Random], dict[str, Facts]]


@contextmanager
def checked_out(commit: str) -> Iterator[str]:
    """The Python of an environment with that commit; gone in the end."""
    with tempfile.TemporaryDirectory(prefix="bench-before-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            venv.create(tree / ".venv", symlinks=True)
            python = tree / ".venv" / "bin" / "python"
            ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
            packages = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True)
            home = Path(packages.stdout.strip())
            (home / "a_before.pth").write_text(f"{tree / 'src'}\n")  # before the borrowed ones: it is the shoal there
            (home / "borrowed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
            yield str(python)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def duel(ours: Slice, again: Slice, before: Slice, pairs: int, rng: random.Random) -> Facts:
    """Ours against itself, then against the earlier commit."""
    for warm_up in (ours, again, before):
        warm_up()
    check = same_against_itself(ours, again, pairs, rng)
    found = tournament(ours, {BEFORE: before}, pairs, rng, say)[BEFORE]
    reached = found.ratio >= GOAL and not check["void"]
    return {**found.facts(), "same_against_itself": check, "goal": GOAL, "reached": reached}


def trained(make: Callable[..., Job], python: str, given: argparse.Namespace, rng: random.Random) -> Facts:
    """Samples per second of what `make(python=…)` starts."""
    jobs = [make(python=PYTHON), make(python=PYTHON), make(python=python)]
    with running([contestant for job in jobs for contestant in job]):
        return duel(*(partial(together, job, given.seconds) for job in jobs), given.pairs, rng)


def fit(python: str, given: argparse.Namespace, rng: random.Random) -> dict[str, Facts]:
    return {
        f"fit, {model}, {backend}": trained(partial(shoal, model, backend), python, given, rng)
        for model, backend in FITS
        if backend in given.backends
    }


def parameter_server(python: str, given: argparse.Namespace, rng: random.Random) -> dict[str, Facts]:
    return {"ps, mlp": trained(partial(served, "mlp", ["--servers", "1"]), python, given, rng)}


def allreduce(python: str, given: argparse.Namespace, rng: random.Random) -> dict[str, Facts]:
    found = {}
    with ExitStack() as stack:
        here = str(ROOT / "bench" / "allreduce.py")
        there = str(Path(python).parents[2] / "bench" / "allreduce.py")
        sides = []
        for runner, script in ((PYTHON, here), (PYTHON, here), (python, there)):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-group-")))
            sides.append(stack.enter_context(Workers(folder, runner, script)))
        for size in SIZES:
            for side in sides:
                side.open(size)
            count = max(3, int(given.seconds / sides[0].slice("shoal", 10)["seconds"]))
            once = [partial(reductions_per_second, side, count) for side in sides]
            found[f"all-reduce, {size} bytes"] = duel(*once, given.pairs, rng)
    return found


def reductions_per_second(side: Workers, count: int) -> float:
    return 1 / side.slice("shoal", count)["seconds"]


def start(python: str, given: argparse.Namespace, rng: random.Random) -> dict[str, Facts]:
    """The programs are compiled: each version finds its own."""
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as kept:

        def begin(runner: str, cache: str) -> float:
            return first_step(shoal("conv", "jax", env={"XDG_CACHE_HOME": f"{kept}/{cache}"}, python=runner))

        ours, before = partial(begin, PYTHON, "ours"), partial(begin, python, "before")
        return {"start, conv": duel(ours, ours, before, given.pairs, rng)}


def recovery(python: str, given: argparse.Namespace, rng: random.Random) -> dict[str, Facts]:
    def rate(runner: str) -> float:
        with stamped(stamped_shoal("mlp", WORKERS, SAMPLES, FLAGS, python=runner)) as job:
            losses = sorted((kill_ours(job, rng) for _ in range(KILLS)), key=lambda loss: loss.lost + loss.step)
            middle = losses[len(losses) // 2]
            return 1 / (middle.lost + middle.step)

    ours, before = partial(rate, PYTHON), partial(rate, python)
    return {"recovery": duel(ours, ours, before, max(2, given.pairs // 4), rng)}


PARTS: dict[str, Part] = {
    "fit": fit,
    "allreduce": allreduce,
    "ps": parameter_server,
    "start": start,
    "recovery": recovery,
}


def table(found: dict[str, Facts]) -> list[list[str]]:
    rows = [["what", "now / before", "quartiles", "A/A ratio", ""]]
    for what, facts in found.items():
        check = facts["same_against_itself"]
        word = "VOID" if check["void"] else "reached" if facts["reached"] else f"below {GOAL}"
        quartiles = "{:.3f} to {:.3f}".format(*facts["ratio"]["quartiles"])
        rows.append(
            [what, f"{facts['ratio']['median']:.3f}", quartiles, f"{check['ratio']['median']:.3f}", word],
        )
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--before", required=True, metavar="COMMIT")
    options.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    options.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    options.add_argument("--pairs", type=int, default=12)
    options.add_argument("--seconds", type=float, default=1.5, help="length of a slice")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = options.parse_args()
    watch = Watch()
    rng = random.Random(given.seed)
    found: dict[str, Facts] = {}
    with checked_out(given.before) as python:
        for part in given.parts:
            began = time.monotonic()
            found |= PARTS[part](python, given, rng)
            say(f"{part}: {time.monotonic() - began:.0f} s")
    report({"bench": "versions", "settings": vars(given), "found": found, **watch.facts(PACKAGES)}, table(found))


if __name__ == "__main__":
    main()

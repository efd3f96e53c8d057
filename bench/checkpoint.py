"""What a checkpoint costs training: seconds lost per checkpoint, and that as a share of a minute.

Two workers train an MLP of 10.5 M parameters and save every so many steps. After a checkpoint is begun it is written
while training goes on, so its price is in all the steps of that time. The first half of the steps between two
checkpoints bears it, the second half does not:

    lost     what the first half took longer than the second
    stall    the longest gap between two steps in the first half, minus the median gap of the second

The peer is Keras's own `BackupAndRestore(save_freq=…)` on one worker, plain Keras: it writes while training waits.
`nobody` is the same arithmetic on a run that saves nothing. All three take turns.

With parameter servers and no bound to staleness the servers copy in a pause, which comes a few batches late. There

    lost     what as many batches as lie between two checkpoints take longer on average than in a run that saves nothing

    python bench/checkpoint.py [--quick] [--checkpoints 16] > checkpoint.json
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from contestants import STAMPS, Stamped, stamped
from harness import Facts, Watch, report, say, significant, spread
from jobs import WORKERS, stamped_plain, stamped_served, stamped_shoal
from peers.stamps import Stamp

GOAL = 0.01  # of training, at one checkpoint a minute
SAMPLES = 64  # per worker
EVERY = 80  # steps
BLOCKS = 2  # times that each of the three has its turn
PACKAGES = ("keras", "jax", "jaxlib", "numpy", "safetensors")


class Price(NamedTuple):
    """Of one checkpoint, in seconds."""

    lost: float
    stall: float


def prices(stamps: Sequence[Stamp], every: int) -> list[Price]:
    """One for each checkpoint with all its steps stamped; it was begun after step -1 modulo `every`."""
    times = {stamp.step: stamp.at for stamp in stamps}
    found = []
    for begun in range(every - 1, max(times), every):
        half = begun + every // 2
        if begun in times and begun + every in times:
            first = [times[step + 1] - times[step] for step in range(begun, half)]
            second = [times[step + 1] - times[step] for step in range(half, begun + every)]
            usual = statistics.median(second)
            found.append(Price(sum(first) - usual * len(first), max(first) - usual))
    return found[1:]  # the first one is still warming up


def block(job: Stamped, count: int, every: int) -> tuple[list[Price], float]:
    """Prices, and the median gap between two steps."""
    with stamped(job):
        job.wait(f"do {count} checkpoints", lambda: job.step >= every * (count + 2), 600.0)
        stamps = job.stamps[job.training()[0]]
    return prices(stamps, every)[:count], statistics.median(b.at - a.at for a, b in pairwise(stamps))


def stretches(job: Stamped, count: int, every: int) -> list[float]:
    """Seconds for each `every` batches of all workers, so many times."""
    with stamped(job):
        job.wait(f"do {count} checkpoints", lambda: job.step >= every * (count + 2), 600.0)
        times = sorted(stamp.at for stamps in job.stamps.values() for stamp in stamps)
    return [b - a for a, b in pairwise(times[every : every * (count + 2) : every])]


def asynchronous(count: int, every: int) -> tuple[Facts, dict[str, str]]:
    """What a checkpoint costs where batches are dealt to workers one by one; and the commands."""
    flags = ("--servers", "1", "--staleness", "inf")
    saving = ("--checkpoint", f"{STAMPS}/checkpoints", "--checkpoint-every", f"{every}steps", "--keep", "2")
    seconds: dict[str, list[float]] = {"asynchronous": [], "asynchronous, nobody": []}
    commands = {}
    for _ in range(BLOCKS):
        for (name, found), words in zip(seconds.items(), (saving, ()), strict=True):
            job = stamped_served("mlp", (*flags, *words), SAMPLES)
            found += stretches(job, -(-count // BLOCKS), every)
            commands[name] = str(job.command)
    lost = statistics.fmean(seconds["asynchronous"]) - statistics.fmean(seconds["asynchronous, nobody"])
    facts = {
        "seconds_between_checkpoints": {name: spread(found) for name, found in seconds.items()},
        "lost_seconds": significant(lost),
        "share_at_one_a_minute": significant(lost / 60),
    }
    say(f"asynchronous: lost {lost:.3f} s")
    return facts, commands


def jobs(every: int) -> dict[str, Stamped]:
    flags = ("--pieces", str(WORKERS))
    saving = ("--checkpoint", f"{STAMPS}/checkpoints", "--checkpoint-every", f"{every}steps", "--keep", "2")
    return {
        "ours": stamped_shoal("mlp", WORKERS, SAMPLES, (*flags, *saving)),
        "nobody": stamped_shoal("mlp", WORKERS, SAMPLES, flags),
        "BackupAndRestore": stamped_plain("mlp", SAMPLES, ("--backup", f"{STAMPS}/backup", "--every", str(every))),
    }


def summary(found: Sequence[Price], steps: Sequence[float]) -> Facts:
    return {
        "step_seconds": spread(steps),
        "lost_seconds": spread([price.lost for price in found]),
        "stall_seconds": spread([price.stall for price in found]),
        "share_at_one_a_minute": significant(statistics.fmean(price.lost for price in found) / 60),
    }


def table(found: dict[str, Facts]) -> list[list[str]]:
    rows = [["", "checkpoints", "step, s", "lost, s: median", "most", "longest stall, s", "share at one a minute"]]
    for name, facts in found.items():
        lost = facts["lost_seconds"]
        rows.append(
            [
                name,
                str(lost["n"]),
                f"{facts['step_seconds']['median']:.3f}",
                f"{lost['median']:.3f}",
                f"{lost['range'][1]:.3f}",
                f"{facts['stall_seconds']['range'][1]:.3f}",
                f"{facts['share_at_one_a_minute']:.2%}" + (f" (goal: at most {GOAL:.0%})" if name == "ours" else ""),
            ]
        )
    return rows


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--checkpoints", type=int, default=16, help="of each")
    options.add_argument("--every", type=int, default=EVERY, help="steps between two; even")
    options.add_argument("--quick", action="store_true", help="4 of each: shows that it works, no more")
    given = options.parse_args()
    if given.quick:
        given.checkpoints = 4
    watch = Watch()
    all_prices: dict[str, list[Price]] = {}
    steps: dict[str, list[float]] = {}
    commands = {}
    for _ in range(BLOCKS):
        for name, job in jobs(given.every).items():
            found, step = block(job, -(-given.checkpoints // BLOCKS), given.every)
            all_prices.setdefault(name, []).extend(found)
            steps.setdefault(name, []).append(step)
            commands[name] = str(job.command)
            say(f"{name}: lost {', '.join(f'{price.lost:.3f}' for price in found)} s")
    contestants = {name: summary(all_prices[name], steps[name]) for name in all_prices}
    share = contestants["ours"]["share_at_one_a_minute"]
    served, more = asynchronous(given.checkpoints, given.every)
    result = {
        "bench": "checkpoint",
        "settings": vars(given),
        "commands": commands | more,
        "found": contestants,
        "asynchronous": served,
        "share": {"found": share, "goal": GOAL, "reached": share <= GOAL},
        **watch.facts(PACKAGES),
    }
    rows = table(contestants)
    rows.append(["asynchronous", *[""] * 5, f"{served['share_at_one_a_minute']:.2%}"])
    report(result, rows)


if __name__ == "__main__":
    main()

"""How much training gets done while processes keep dying, compared with when nothing happens.

Three workers train, with standbys. Every ten seconds one process, a worker or the coordinator, drawn at random, is
killed with `kill -9`. Goodput is the number of samples per second committed in that time over the number when nobody
is killed; the quiet time is measured in the same run, half before and half after. A step counts once, however often
it was begun; a worker that finds a step missing, or done twice, makes the result void.

A new worker imports Keras and compiles: CPU that on a machine without idle cores the others lack. It is reported.

    python bench/goodput.py [--quick] [--minutes 3] > goodput.json
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from itertools import pairwise

from contestants import OUR_COORDINATOR, Stamped, cpu_seconds, stamped
from harness import Facts, Watch, report, say, significant
from jobs import stamped_shoal

GOAL = 0.85
WORKERS = 3
SAMPLES = 32  # per worker
FLAGS = ("--pieces", str(WORKERS), "--standby", "2", "--max-restarts", "1000")
MOST_COORDINATORS = 9  # that may die within an hour; Shoal gives up on a machine where more do
RESTORED = 120.0  # seconds until all is as before the last kill
PACKAGES = ("keras", "jax", "jaxlib", "numpy")


class Killer:
    """Draws who is next and remembers whom it killed."""

    def __init__(self, job: Stamped, rng: random.Random) -> None:
        self._job = job
        self._rng = rng
        self.killed: Counter[str] = Counter()

    def strike(self) -> None:
        targets = dict.fromkeys(self._job.training(), "worker")
        coordinator = self._job.child(OUR_COORDINATOR)
        if coordinator is not None and self.killed["coordinator"] < MOST_COORDINATORS:
            targets[coordinator.pid] = "coordinator"
        victim = self._rng.choice(sorted(targets))
        self._job.kill(victim)
        self.killed[targets[victim]] += 1


def rate(job: Stamped, seconds: float) -> float:
    """Samples per second over a quiet time."""
    begun, first = time.monotonic(), job.step
    time.sleep(seconds)
    return (job.step - first) * SAMPLES * WORKERS / (time.monotonic() - begun)


def rate_under_fire(job: Stamped, killer: Killer, seconds: float, every: float) -> float:
    """Samples per second while somebody dies `every` so many seconds, first in the middle of such a time."""
    begun, first = time.monotonic(), job.step
    for number in range(round(seconds / every)):
        time.sleep(max(0.0, begun + (number + 0.5) * every - time.monotonic()))
        killer.strike()
        say(f"{time.monotonic() - begun:.0f} s: {dict(killer.killed)} killed, {job.step - first} steps")
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    return (job.step - first) * SAMPLES * WORKERS / (time.monotonic() - begun)


def settle(job: Stamped) -> float:
    """Wait until all workers train and the standbys are ready; the CPU seconds that a standby has used so far."""
    job.wait("have its standbys", lambda: len(job.waiting()) >= 2 and len(job.training()) == WORKERS, RESTORED)
    return max(cpu_seconds(standby) for standby in job.waiting())


def broken(job: Stamped) -> list[str]:
    """The workers that did not do the steps one after the other."""
    return [
        f"process {pid}: step {a.step} was followed by {b.step}"
        for pid, stamps in job.stamps.items()
        for a, b in pairwise(stamps)
        if b.step != a.step + 1
    ]


def measure(given: argparse.Namespace, rng: random.Random) -> Facts:
    seconds = given.minutes * 60
    job = stamped_shoal("mlp", WORKERS, SAMPLES, FLAGS)
    killer = Killer(job, rng)
    with stamped(job):
        settle(job)
        before = rate(job, seconds / 4)
        disturbed = rate_under_fire(job, killer, seconds, given.every)
        cpu = settle(job)
        after = rate(job, seconds / 4)
        void = broken(job)
    quiet = (before + after) / 2
    return {
        "unit": "committed samples per second",
        "contestant": str(job.command),
        "quiet": [significant(before), significant(after)],
        "disturbed": significant(disturbed),
        "killed": dict(killer.killed),
        "cpu_seconds_to_start_a_worker": significant(cpu),
        "void": void,
        "goodput": {"found": significant(disturbed / quiet), "goal": GOAL, "reached": disturbed / quiet >= GOAL},
    }


def table(found: Facts) -> list[list[str]]:
    goodput = found["goodput"]
    before, after = found["quiet"]
    rows = [
        ["quiet, before and after", f"{before:.0f} and {after:.0f} samples/s"],
        [", ".join(f"{n} x {who}" for who, n in found["killed"].items()) + " killed", f"{found['disturbed']:.0f}"],
        ["goodput", f"{goodput['found']:.3f} (goal: at least {GOAL}{'' if goodput['reached'] else ', MISSED'})"],
        ["CPU seconds to start a worker", f"{found['cpu_seconds_to_start_a_worker']:.1f}"],
    ]
    return rows + [["VOID", reason] for reason in found["void"]]


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--minutes", type=float, default=3.0, help="under fire; half as many quiet")
    options.add_argument("--every", type=float, default=10.0, help="seconds between two kills")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="half a minute: shows that it works, no more")
    given = options.parse_args()
    if given.quick:
        given.minutes = 0.5
    watch = Watch()
    found = measure(given, random.Random(given.seed))
    report({"bench": "goodput", "settings": vars(given), **found, **watch.facts(PACKAGES)}, table(found))


if __name__ == "__main__":
    main()

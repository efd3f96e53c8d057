"""What a killed parameter server costs: the longest gap between two updates.

Two workers train an MLP of 10.5 M parameters, asynchronously, with two servers and every shard on both; each leads half
of them. One of the servers, drawn at random, is killed with `kill -9` at a random moment: its shards' copies on the
other one lead from then on. Another server takes its place and is brought up while training goes on; when every shard
has two copies again, and some quiet seconds have passed, the next one is killed.

Every worker stamps its batches, when it has computed them and handed the gradients over. A worker has at most two on
their way: the next stamp but one proves that an update is committed, so gaps between commits are gaps between stamps.

    gap       the longest between two stamps of any workers, from the last before the kill until all copies are there
              and the newcomer leads its half
    at kill   the longest of those that begin within a second after the kill: the failover without the newcomer's start
    worker    the longest gap of a single worker, over the same time as the first; and the same at the kill
    nobody    what `gap` and `worker` say of the quiet seconds before: the measurement's own noise, and the limit
    restored  from the kill until the launcher has said that all copies are there

There is no peer: a training under the legacy ParameterServerStrategy ends when a server does, and is started again from
a checkpoint.

    python bench/failover.py [--quick] [--kills 30] > failover.json       (about 5 minutes)
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import pairwise

import psutil

from contestants import Kill, Stamped, stamped
from harness import Facts, Watch, report, say, significant, spread
from jobs import WORKERS, stamped_served
from peers.models import STEPS_PER_EPOCH
from recovery import worst

SERVERS = 2
SAMPLES = 32  # per batch
FLAGS = ("--servers", str(SERVERS), "--replicas", "2", "--staleness", "inf", "--max-restarts", "1000")
AGAIN = "every shard has 2 copies again"
RESTORED = 120.0  # seconds within which that must be said
NOTICED = 1.0  # seconds after a kill, or after a newcomer has caught up, in which a gap is due to that
QUIET = 4.0  # seconds before a kill in which nothing else happens
GOAL = 0.3  # seconds
PACKAGES = ("keras", "jax", "jaxlib", "numpy")


@dataclass(frozen=True)
class Failover:
    """What one kill cost, in seconds."""

    victim: str
    usual: float  # the median gap between two stamps of any workers, before
    gap: float
    began: float  # when that gap began, from the kill on
    at_kill: float
    worker: float
    worker_at_kill: float
    nobody: float
    worker_nobody: float
    gone: float  # from the kill to the end of the process, which is when others can see it
    restored: float
    slower: float  # batches per second from the kill until then, over those in the quiet seconds before


def gaps(times: Sequence[float], since: float, until: float) -> list[tuple[float, float]]:
    """The gaps that lie in this time or reach into it: when each began, and how long it was."""
    return [(a, b - a) for a, b in pairwise(times) if b > since and a < until]


def longest(times: Sequence[float], since: float, until: float) -> tuple[float, float]:
    """When the longest of them began, and how long it was."""
    return max(gaps(times, since, until), key=lambda found: found[1])


def quiet(times: Sequence[float], kill: Kill) -> list[float]:
    """The gaps in the seconds before a kill; the last one has the kill in it and is left out."""
    return [gap for _, gap in gaps(times, kill.at - QUIET, kill.at)][:-1]


def servers_of(job: Stamped) -> dict[str, psutil.Process]:
    """Those that live."""
    found = {}
    for member in job.family:
        with suppress(psutil.Error):
            names = [word for word in member.cmdline() if re.fullmatch(r"server-\d+", word)]
            if names and member.status() != psutil.STATUS_ZOMBIE:
                found[names[0]] = member
    return found


def kill_one(job: Stamped, rng: random.Random) -> Failover:
    """Kill a server when all is quiet; returns when another holds what it held."""
    job.wait("have all servers", lambda: len(servers_of(job)) == SERVERS, RESTORED)
    time.sleep(QUIET + rng.uniform(0.0, 0.5))
    servers = servers_of(job)
    victim = rng.choice(sorted(servers))
    said = job.processes.log().count(AGAIN)
    kill = job.kill(servers[victim].pid)
    job.wait(f"say that {AGAIN}", lambda: job.processes.log().count(AGAIN) > said, RESTORED)
    restored = time.monotonic() - kill.at
    time.sleep(NOTICED)  # half of the shards are handed over to the newcomer now
    again = time.monotonic()
    job.wait_steps(4)
    own = {pid: [stamp.at for stamp in stamps] for pid, stamps in job.stamps.items()}
    times = sorted(at for mine in own.values() for at in mine)
    before = quiet(times, kill)
    updates = len(gaps(times, kill.at, again)) / (again - kill.at)
    began, gap = longest(times, kill.at, again)
    return Failover(
        victim=victim,
        usual=statistics.median(before),
        gap=gap,
        began=began - kill.at,
        at_kill=longest(times, kill.at, kill.at + NOTICED)[1],
        worker=max(longest(mine, kill.at, again)[1] for mine in own.values()),
        worker_at_kill=max(longest(mine, kill.at, kill.at + NOTICED)[1] for mine in own.values()),
        nobody=max(before),
        worker_nobody=max(max(quiet(mine, kill)) for mine in own.values()),
        gone=kill.gone - kill.at,
        restored=restored,
        slower=updates / (len(before) / QUIET),
    )


def summary(found: Sequence[Failover]) -> Facts:
    """All of it, and each kill for itself."""
    names = [field.name for field in fields(Failover) if field.name != "victim"]
    values = {name: [getattr(one, name) for one in found] for name in names}
    return {
        **{name: {**spread(mine), "p99": significant(worst(mine))} for name, mine in values.items()},
        "each": [{"victim": one.victim, **{name: significant(getattr(one, name)) for name in names}} for one in found],
    }


def coverage(job: Stamped) -> Facts:
    """Whether the stamps of all workers together are the batches of every epoch that is over, each at least once."""
    stamped = [stamp.step for stamps in job.stamps.values() for stamp in stamps]
    over = max(stamped) // STEPS_PER_EPOCH * STEPS_PER_EPOCH
    return {
        "computed": len(stamped),
        "computed_again": len(stamped) - len(set(stamped)),
        "never": sorted(set(range(over)) - set(stamped)),
        "share_of_each_worker": [round(len(stamps) / len(stamped), 3) for stamps in job.stamps.values()],
    }


def table(found: Sequence[Failover], goals: Facts) -> list[list[str]]:
    rows = [["", "median, s", "99th percentile, s", "goal", ""]]
    names = {
        "usual": "usual gap",
        "nobody": "nobody killed",
        "at_kill": "at the kill",
        "gap": "until all copies are there",
        "worker_nobody": "of one worker, nobody killed",
        "worker_at_kill": "of one worker, at the kill",
        "worker": "of one worker, until all copies are there",
        "gone": "the process is gone after",
        "restored": "restored after",
    }
    for name, words in names.items():
        values = [getattr(one, name) for one in found]
        rows.append([words, f"{statistics.median(values):.3f}", f"{worst(values):.3f}", "", ""])
    for name, facts in goals.items():
        rows.append([name, str(facts["found"]), "", facts["goal"], "reached" if facts["reached"] else "MISSED"])
    return rows


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--kills", type=int, default=30)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="3 kills: shows that it works, no more")
    given = options.parse_args()
    if given.quick:
        given.kills = 3
    watch = Watch()
    rng = random.Random(given.seed)
    found: list[Failover] = []
    with stamped(stamped_served("mlp", FLAGS, SAMPLES, WORKERS)) as job:
        for _ in range(given.kills):
            found.append(kill_one(job, rng))
            one = found[-1]
            where = f"{one.began:.1f} s after the kill, {one.at_kill:.3f} s at it; usually {one.usual:.3f} s"
            say(f"{one.victim}: longest gap {one.gap:.3f} s, {where}; restored after {one.restored:.1f} s")
        batches = coverage(job)
    goals = {}
    for name, values in (
        ("longest gap at the kill", [one.at_kill for one in found]),
        ("longest gap until all copies are there", [one.gap for one in found]),
        ("longest gap of one worker at the kill", [one.worker_at_kill for one in found]),
    ):
        for what, value in (("median", statistics.median(values)), ("99th percentile", worst(values))):
            facts = {"found": significant(value), "goal": f"at most {GOAL}", "reached": value <= GOAL}
            goals[f"{name}, {what}, seconds"] = facts
    result = {
        "bench": "failover",
        "settings": vars(given),
        "commands": {"ours": str(job.command)},
        "ours": summary(found),
        "batches": batches,
        "goals": goals,
        **watch.facts(PACKAGES),
    }
    report(result, table(found, goals))


if __name__ == "__main__":
    main()

"""What a killed process costs: seconds of training lost, next to torchrun on the same model.

Three workers train an MLP of 10.5 M parameters. One of them, drawn at random, the chief included, is killed with
`kill -9` at a random moment; a standby takes its place. Every worker stamps its steps. Of the survivors the chief
tells:

    lost   the longest of the gaps between two commits that the kill can lie in, minus the median gap before it
    join   from the moment the dead process is gone to the start of the step in which the standby takes its pieces
    nobody what `lost` says of a moment at which nobody was killed: the measurement's own noise

Then the coordinator is killed: the longest gap around it. The peer is torch DDP under torchrun, killed the same way,
which starts all its workers again from a checkpoint of the last step: its `lost` is measured alike. Ours and the peer
take turns.

    python bench/recovery.py [--quick] [--kills 24] > recovery.json
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from contestants import OUR_COORDINATOR, Kill, Stamped, stamped
from harness import Facts, Watch, report, say, significant, spread
from jobs import stamped_shoal, torchrun
from peers.stamps import Stamp

WORKERS = 3
SAMPLES = 32  # per worker: a step takes 50 to 100 ms on two cores
# As many pieces as workers, fixed: what a step costs must not change on the way.
FLAGS = ("--pieces", str(WORKERS), "--standby", "1", "--max-restarts", "1000")
BEFORE = 20  # steps whose median gap is the usual one
AFTER_COORDINATOR = 5.0  # seconds in which its death could hold up a step
RESTORED = 120.0  # seconds within which a killed worker must be replaced
PACKAGES = ("keras", "jax", "jaxlib", "torch", "numpy")

MEDIAN_GOAL = (1, 0.05)  # steps and seconds that a kill may cost
WORST_GOAL = (2, 0.2)  # the same, at the 99th percentile
PEER_GOAL = 20.0  # times what ours costs
COORDINATOR_GOAL = 1.0  # seconds that a step may take when it is killed
JOIN_GOAL = 0.3  # seconds


@dataclass(frozen=True)
class Loss:
    """What one kill cost, in seconds."""

    step: float  # the median gap before
    lost: float
    gone: float  # from the kill to the end of the process, which is when others can see it
    nobody: float | None = None
    join: float | None = None
    join_gap: float | None = None  # the gap in which the newcomer came, minus the median gap
    chief: bool = False  # whether it was the chief


def usual(stamps: Sequence[Stamp], at: float) -> float:
    """The median gap between steps before this moment."""
    times = [stamp.at for stamp in stamps if stamp.at <= at][-BEFORE - 1 :]
    return statistics.median(b - a for a, b in pairwise(times))


def longest(stamps: Sequence[Stamp], at: float, before: int | None = None) -> float:
    """The longest gap that a kill at this moment can be the cause of.

    The dead may have done its part of the step that is going on: then it is the next step that waits for it. Only
    steps with a number lower than `before` count.
    """
    after = [i for i, stamp in enumerate(stamps) if stamp.at > at]
    mine = [i for i in after[:2] if before is None or i == after[0] or stamps[i].step < before]
    return max(stamps[i].at - stamps[i - 1].at for i in mine)


def our_loss(job: Stamped, kill: Kill, chief: bool) -> Loss:
    """Read from the stamps of the surviving chief and of the newcomer."""
    stamps = job.stamps
    survivor = stamps[next(pid for pid in job.training() if stamps[pid][0].at < kill.at)]
    newcomer = min((mine[0] for mine in stamps.values() if mine[0].at > kill.at), key=lambda stamp: stamp.at)
    step = usual(survivor, kill.at)
    quiet = kill.at - 3 * step - BEFORE / 2 * step
    came = next(i for i, stamp in enumerate(survivor) if stamp.step == newcomer.step)
    return Loss(
        step=step,
        lost=longest(survivor, kill.at, before=newcomer.step) - step,
        gone=kill.gone - kill.at,
        nobody=longest(survivor, quiet) - usual(survivor, quiet),
        join=newcomer.at - step - kill.gone,
        join_gap=survivor[came].at - survivor[came - 1].at - step,
        chief=chief,
    )


def kill_ours(job: Stamped, rng: random.Random) -> Loss:
    """Kill a worker when all is quiet; returns when another has taken its place."""
    job.wait("have a standby", job.waiting, RESTORED)
    job.wait_steps(2 * BEFORE + 5)
    members = job.training()
    victim = rng.choice(members)
    time.sleep(rng.uniform(0.0, 0.2))
    kill = job.kill(victim)
    job.wait("replace a worker", lambda: set(job.stamps) - known_before(job, kill), RESTORED)
    job.wait_steps(3)
    return our_loss(job, kill, chief=victim == members[0])


def kill_torchrun(job: Stamped, rng: random.Random) -> Loss:
    """Kill a worker; returns when all have been started again."""
    job.wait_steps(BEFORE + 5)
    members = job.training()
    time.sleep(rng.uniform(0.0, 0.2))
    kill = job.kill(rng.choice(members))
    job.wait("start again", lambda: len(set(job.stamps) - known_before(job, kill)) == WORKERS, RESTORED)
    stamps = job.stamps
    before = max((mine for mine in stamps.values() if mine[0].at < kill.at), key=lambda mine: mine[-1].at)
    first = min(mine[0].at for mine in stamps.values() if mine[0].at > kill.at)
    step = usual(before, kill.at)
    return Loss(step=step, lost=first - before[-1].at - step, gone=kill.gone - kill.at)


def known_before(job: Stamped, kill: Kill) -> set[int]:
    """The processes that had done a step when this one was killed."""
    return {pid for pid, stamps in job.stamps.items() if stamps[0].at < kill.at}


def kill_coordinator(job: Stamped) -> Facts:
    """The longest gap from its death to well after another has taken its place."""
    job.wait_steps(BEFORE + 5)
    coordinator = job.child(OUR_COORDINATOR)
    if coordinator is None:
        raise RuntimeError("the coordinator is not there")
    kill = job.kill(coordinator.pid)
    job.wait("start the coordinator again", lambda: job.child(OUR_COORDINATOR), RESTORED)
    time.sleep(AFTER_COORDINATOR)
    chief = job.stamps[job.training()[0]]
    gaps = [b.at - a.at for a, b in pairwise(chief) if kill.at < b.at < kill.at + AFTER_COORDINATOR]
    return {"step": usual(chief, kill.at), "longest": max(gaps)}


def our_block(kills: int, coordinators: int, rng: random.Random) -> tuple[list[Loss], list[Facts], str]:
    with stamped(stamped_shoal("mlp", WORKERS, SAMPLES, FLAGS)) as job:
        losses = []
        for _ in range(kills):
            losses.append(kill_ours(job, rng))
            say(f"shoal: lost {losses[-1].lost:.3f} s, a step takes {losses[-1].step:.3f} s")
        return losses, [kill_coordinator(job) for _ in range(coordinators)], str(job.command)


def peer_block(kills: int, rng: random.Random) -> tuple[list[Loss], str]:
    with stamped(torchrun("mlp", WORKERS, SAMPLES)) as job:
        losses = []
        for _ in range(kills):
            try:
                losses.append(kill_torchrun(job, rng))
            except RuntimeError as error:  # it does not come back; what is counted is how long that was waited for
                say(f"torchrun: {error}")
                step = losses[-1].step if losses else math.nan
                losses.append(Loss(step=step, lost=RESTORED, gone=0.0))
                break
            say(f"torchrun: lost {losses[-1].lost:.3f} s, a step takes {losses[-1].step:.3f} s")
        return losses, str(job.command)


def worst(values: Sequence[float]) -> float:
    """The 99th percentile: the largest of fewer than 100."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def summary(losses: Sequence[Loss]) -> Facts:
    steps = [loss.step for loss in losses]
    lost = [loss.lost for loss in losses]
    return {
        "step_seconds": spread(steps),
        "lost_seconds": {**spread(lost), "p99": significant(worst(lost))},
        "lost_steps": spread([loss.lost / loss.step for loss in losses]),
        "seconds_until_process_gone": spread([loss.gone for loss in losses]),
        "each": [[significant(loss.lost), significant(loss.step)] for loss in losses],
    }


def verdicts(ours: Sequence[Loss], peer: Sequence[Loss], coordinator: Sequence[Facts]) -> Facts:
    """Each goal, what was found, and whether that is enough."""
    step = statistics.median(loss.step for loss in ours)
    lost = statistics.median(loss.lost for loss in ours)
    found = {
        "lost, median, seconds": (lost, MEDIAN_GOAL[0] * step + MEDIAN_GOAL[1]),
        "lost, 99th percentile, seconds": (
            worst([loss.lost for loss in ours]),
            WORST_GOAL[0] * step + WORST_GOAL[1],
        ),
        "join, median, seconds": (statistics.median(loss.join or 0.0 for loss in ours), JOIN_GOAL),
    }
    if coordinator:
        found["coordinator killed, longest step, seconds"] = (
            max(facts["longest"] for facts in coordinator),
            COORDINATOR_GOAL,
        )
    facts = {
        name: {"found": significant(value), "goal": f"at most {limit:.3g}", "reached": value <= limit}
        for name, (value, limit) in found.items()
    }
    if peer:
        ratio = statistics.median(loss.lost for loss in peer) / lost
        facts["torchrun's loss over ours"] = {
            "found": significant(ratio),
            "goal": f"at least {PEER_GOAL:.3g}",
            "reached": ratio >= PEER_GOAL,
        }
    return facts


def table(ours: Sequence[Loss], peer: Sequence[Loss], goals: Facts) -> list[list[str]]:
    rows = [["", "kills", "step, s", "lost, s: median", "worst", "lost, steps", "process gone after, s"]]
    groups = {"shoal": list(ours), "shoal, the chief": [loss for loss in ours if loss.chief], "torchrun": list(peer)}
    for name, losses in groups.items():
        if losses:
            lost = [loss.lost for loss in losses]
            rows.append(
                [
                    name,
                    str(len(losses)),
                    f"{statistics.median(loss.step for loss in losses):.3f}",
                    f"{statistics.median(lost):.3f}",
                    f"{max(lost):.3f}",
                    f"{statistics.median(loss.lost / loss.step for loss in losses):.1f}",
                    f"{statistics.median(loss.gone for loss in losses):.3f}",
                ]
            )
    nobody = [loss.nobody or 0.0 for loss in ours]
    rows.append(
        ["nobody killed", str(len(nobody)), "", f"{statistics.median(nobody):.3f}", f"{max(nobody):.3f}", "", ""]
    )
    for name, facts in goals.items():
        rows.append([name, "", "", str(facts["found"]), facts["goal"], "reached" if facts["reached"] else "MISSED", ""])
    return rows


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--kills", type=int, default=24, help="of our workers")
    options.add_argument("--peer-kills", type=int, default=8, help="of torchrun's; 0: not measured")
    options.add_argument("--coordinator-kills", type=int, default=8)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="a few kills of each: shows that it works, no more")
    given = options.parse_args()
    if given.quick:
        given.kills, given.peer_kills, given.coordinator_kills = 4, 2, 2
    watch = Watch()
    rng = random.Random(given.seed)
    ours: list[Loss] = []
    peer: list[Loss] = []
    coordinator: list[Facts] = []
    commands = {}
    # Ours, the peer, the peer, ours: drift of the machine meets both alike.
    for name, part in (("ours", 0), ("peer", 0), ("peer", 1), ("ours", 1)):
        share = [(count + part) // 2 for count in (given.kills, given.peer_kills, given.coordinator_kills)]
        if name == "ours" and share[0]:
            losses, gaps, commands["ours"] = our_block(share[0], share[2], rng)
            ours += losses
            coordinator += gaps
        elif name == "peer" and share[1]:
            losses, commands["torchrun"] = peer_block(share[1], rng)
            peer += losses
    goals = verdicts(ours, peer, coordinator)
    result = {
        "bench": "recovery",
        "settings": vars(given),
        "commands": commands,
        "ours": {
            **summary(ours),
            "nobody_killed_lost_seconds": spread([loss.nobody or 0.0 for loss in ours]),
            "join_seconds": spread([loss.join or 0.0 for loss in ours]),
            "join_gap_seconds": spread([loss.join_gap or 0.0 for loss in ours]),
        },
        "torchrun": summary(peer) if peer else None,
        "coordinator": [{name: significant(value) for name, value in facts.items()} for facts in coordinator],
        "goals": goals,
        **watch.facts(PACKAGES),
    }
    report(result, table(ours, peer, goals))


if __name__ == "__main__":
    main()

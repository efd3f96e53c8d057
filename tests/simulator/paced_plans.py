"""Runs with parameter servers in which each worker computes at its own pace, and all that goes wrong in them."""

from __future__ import annotations

import dataclasses
import random

from .plan import SILENCE, Fault, Plan

CLOSING = ("Close", "TrainingClosed")  # the marks of the very end
MARKS = (
    "Push",
    "Order",
    "Confirmed",
    "Pushed",
    "Pull",
    "Pulled",
    "Transfer",
    "ReplicaStanding",
    "CaughtUp",
    "ShardsPlaced",
)
RARE = ("Transfer", "ReplicaStanding", "CaughtUp", "ShardsPlaced")
MESSAGES = ("written", "Grant", "Finish", "WantWork", "ShardsPlaced", "EpochOver", "Next", "CaughtUp", "Open", "Serve")
SAVING = ("Pause", "AtRest", "Save", "Copied", "ShardSaved", "GoOn")
RARE_MESSAGES = (*SAVING, "ShardsPlaced", "EpochOver", "Next", "CaughtUp", "Open", "Serve", *CLOSING)


def paced(seed: int, **about: object) -> Plan:
    """A plan of this kind: by default two servers with two copies of two shards, and three workers."""
    usual: dict[str, object] = {"servers": 2, "bound": 2, "restarts": 1, "validates": False}
    return Plan(seed, **(usual | about))  # type: ignore[arg-type]


def fault(
    kind: str,
    who: int | str = 0,
    mark: str = "start",
    nth: int = 1,
    delay: float = 0.0,
    seconds: float = 0.1,
    shard: int = 0,
    other: int | str = "backup",
) -> Fault:
    """One that waits for the nth of many messages."""
    return Fault(kind, who, mark, delay, seconds, other, nth=nth, shard=shard)


def random_paced(seed: int) -> Plan:
    chance = random.Random(f"plan {seed}")
    servers = chance.choice((2, 2, 3, 3, 4))
    return paced(
        seed,
        servers=servers,
        replicas=chance.choice((2, 2, min(3, servers))),
        shards=chance.choice((1, 2, 3, 4)),
        workers=chance.choice((1, 2, 3, 4)),
        bound=chance.choice((1, 2, 3, None)),
        batches=chance.choice((4, 6, 8)),
        slow=chance.choice((1.0, 1.0, 5.0)),
        late=chance.choice((0.0, 0.02, 0.1)),
        repeated=chance.choice((0.0, 0.1)),
        restarts=chance.choice((0, 1, 2, 3)),
        saves=chance.random() < 0.5,
        faults=(
            *(_random_fault(chance) for _ in range(chance.choice((1, 2, 3, 4, 5)))),
            *(_random_crash(chance) for _ in range(chance.choice((0, 0, 1, 2, 3)))),
            *(_random_halt(chance) for _ in range(chance.choice((0, 0, 0, 1)))),
            *(fault for _ in range(chance.choice((0, 0, 1, 2, 3))) for fault in _random_save(chance)),
        ),
    )


def random_setbacks(seed: int) -> Plan:
    """As a random plan; but shards may lose all that they have."""
    chance = random.Random(f"setbacks {seed}")
    plan = random_paced(seed)
    kind, nth = chance.choice(("kill", "pause")), chance.randrange(5, 60)
    fault = Fault(kind, "primary", "Push", seconds=SILENCE + 0.2, nth=nth)
    faults = (fault, *plan.faults)
    return dataclasses.replace(plan, replicas=chance.choice((1, 1, 2)), restarts=4, setbacks=True, faults=faults)


def _random_fault(chance: random.Random) -> Fault:
    mark = chance.choice(MARKS)
    return Fault(
        kind := chance.choice(("kill", "kill", "kill", "pause", "break", "standby")),
        "server"
        if kind == "standby"
        else chance.choice(("primary", "primary", "backup", "newcomer", "worker-0", "worker-1", "worker-2")),
        mark,
        nth=chance.randrange(1, 6 if mark in RARE else 60),
        delay=chance.choice((0.0, 0.0, 0.001, 0.005)),
        seconds=chance.choice((0.01, 0.1, 0.3, SILENCE + 0.3)),
        shard=chance.randrange(4),
        other=chance.choice(("backup", "backup", "newcomer", "worker-0", "worker-1")),
    )


def _random_crash(chance: random.Random) -> Fault:
    mark = chance.choice((*MESSAGES, *CLOSING))
    return Fault(
        "coordinator",
        mark=mark,
        nth=chance.randrange(1, 8 if mark in RARE_MESSAGES else 60),
        delay=chance.choice((0.0, 0.0, 0.0, 0.0005, 0.005)),
        seconds=chance.choice((0.01, 0.05, 0.2)),
    )


def _random_save(chance: random.Random) -> list[Fault]:
    """A checkpoint is due; and perhaps somebody does not live to see it."""
    save = Fault("save", "chief", "Finish", nth=chance.randrange(1, 20))
    mark, delay = chance.choice(SAVING), chance.choice((0.0, 0.0, 0.001, 0.005))
    nth = chance.randrange(1, 4)
    who = chance.choice(("primary", "backup", "worker-0", "worker-1", "worker-2"))
    kill = Fault("kill", who, mark, nth=nth, delay=delay, shard=chance.randrange(4))
    crash = Fault("coordinator", mark=mark, nth=nth, delay=delay, seconds=chance.choice((0.01, 0.1)))
    return [save, *chance.choice(((), (kill,), (crash,), (kill, crash)))]


def _random_halt(chance: random.Random) -> Fault:
    return Fault("halt", chance.choice(("worker-0", "worker-1")), "Finish", nth=chance.randrange(1, 15))

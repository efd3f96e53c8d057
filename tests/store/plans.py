"""What a simulated run with parameter servers is like, and all that goes wrong in it."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass

SILENCE = 0.5  # seconds after which a stopped process is lost
CLOSING = ("Close", "TrainingClosed")  # the marks of the very end


@dataclass(frozen=True)
class Fault:
    """What happens to whom, so many seconds after the nth mark: "start", "view", "Order", "Push of worker-1", …"""

    kind: str  # kill, pause, cut (from `other`), flip (a bit of its state), come (a server), halt (an epoch), save, or:
    # crash: the coordinator dies, and another takes over after so many seconds. At once, in the middle of what it does,
    # if there is no delay: at "written" before anybody is told, at "ShardsPlaced" when one of many is.
    who: str = ""  # an id; or "primary", "backup", "newcomer" of the shard
    mark: str = "start"
    nth: int = 1
    delay: float = 0.0
    seconds: float = 0.1  # of a pause, a cut, or without a coordinator
    shard: int = 0
    other: str = "backup"


@dataclass(frozen=True)
class Plan:
    """A run and all that goes wrong in it."""

    seed: int
    servers: int = 2
    replicas: int = 2
    shards: int = 2
    workers: int = 3
    epochs: int = 2
    batches: int = 10
    bound: int | None = 2
    ahead: int = 1  # updates of a worker at a time
    slow: float = 1.0  # how much slower the first worker is
    late: float = 0.0
    repeated: float = 0.0
    restarts: int = 1  # how many of the killed are replaced
    setbacks: bool = False  # faults may take a shard's last replica
    faults: tuple[Fault, ...] = ()


MARKS = ("Push", "Order", "Confirmed", "Pushed", "Pull", "Pulled", "Transfer", "ReplicaStanding", "CaughtUp", "view")
RARE = ("Transfer", "ReplicaStanding", "CaughtUp", "view")
MESSAGES = (
    "written",
    "Grant",
    "Finish",
    "WantWork",
    "ShardsPlaced",
    "EpochOver",
    "Next",
    "CaughtUp",
    "view",
    "Open",
    "Serve",
)
SAVING = ("Pause", "AtRest", "Save", "Copied", "ShardSaved", "GoOn")
RARE_MESSAGES = (*SAVING, "ShardsPlaced", "EpochOver", "Next", "CaughtUp", "view", "Open", "Serve", *CLOSING)


def random_plan(seed: int) -> Plan:
    chance = random.Random(f"plan {seed}")
    servers = chance.choice((2, 2, 3, 3, 4))
    bound = chance.choice((0, 1, 1, 2, 3, None))
    return Plan(
        seed,
        servers,
        replicas=chance.choice((2, 2, min(3, servers))),
        shards=chance.choice((1, 2, 3, 4)),
        workers=chance.choice((1, 2, 3, 4)),
        bound=bound,
        ahead=chance.choice((1, 2, 3)),
        slow=chance.choice((1.0, 1.0, 5.0)),
        late=chance.choice((0.0, 0.02, 0.1)),
        repeated=chance.choice((0.0, 0.1)),
        restarts=chance.choice((0, 1, 2, 3)),
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
    plan = random_plan(seed)
    fault = Fault(chance.choice(("kill", "pause")), "primary", "Push", chance.randrange(5, 60), seconds=SILENCE + 0.1)
    faults = (fault, *plan.faults)
    return dataclasses.replace(plan, replicas=chance.choice((1, 1, 2)), restarts=4, setbacks=True, faults=faults)


def _random_fault(chance: random.Random) -> Fault:
    mark = chance.choice(MARKS)
    return Fault(
        chance.choice(("kill", "kill", "kill", "pause", "cut", "come")),
        chance.choice(("primary", "primary", "backup", "newcomer", "worker-0", "worker-1", "worker-2")),
        mark,
        nth=chance.randrange(1, 6 if mark in RARE else 60),
        delay=chance.choice((0.0, 0.0, 0.001, 0.005)),
        seconds=chance.choice((0.01, 0.1, 0.3, SILENCE + 0.2)),
        shard=chance.randrange(4),
        other=chance.choice(("backup", "backup", "newcomer", "worker-0", "worker-1")),
    )


def _random_crash(chance: random.Random) -> Fault:
    mark = chance.choice((*MESSAGES, *CLOSING))
    return Fault(
        "crash",
        mark=mark,
        nth=chance.randrange(1, 8 if mark in RARE_MESSAGES else 60),
        delay=chance.choice((0.0, 0.0, 0.0, 0.0005, 0.005)),
        seconds=chance.choice((0.01, 0.05, 0.2)),
    )


def _random_save(chance: random.Random) -> list[Fault]:
    """A worker wants a checkpoint; and perhaps somebody does not live to see it."""
    save = Fault("save", f"worker-{chance.randrange(3)}", "Finish", chance.randrange(1, 20))
    mark, delay = chance.choice(SAVING), chance.choice((0.0, 0.0, 0.001, 0.005))
    nth = chance.randrange(1, 4)
    who = chance.choice(("primary", "backup", "worker-0", "worker-1", "worker-2"))
    kill = Fault("kill", who, mark, nth, delay=delay, shard=chance.randrange(4))
    crash = Fault("crash", mark=mark, nth=nth, delay=delay, seconds=chance.choice((0.01, 0.1)))
    return [save, *chance.choice(((), (kill,), (crash,), (kill, crash)))]


def _random_halt(chance: random.Random) -> Fault:
    return Fault("halt", chance.choice(("worker-0", "worker-1")), "Finish", chance.randrange(1, 15))

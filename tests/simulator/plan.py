"""What a simulated run is like, and all that goes wrong in it."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass

import msgspec

from shoal.config import Deadlines

DEADLINES = Deadlines(silence=2.0, stall=12.0, connect=5.0, orphaned=5.0, start=15.0)
SILENCE = 0.5  # seconds after which a member is lost, at their own pace
PACED = Deadlines(silence=SILENCE, stall=12.0, connect=5.0, orphaned=5.0, start=15.0)


@dataclass(frozen=True)
class Fault:
    """What happens to whom, so many seconds after the nth mark: "start", "view 2", "step 4", "ready", "admit", "done"…

    With servers the names of messages are marks too: "Push", "Push of worker-1", "Grant"; and "written", when the
    coordinator has written down what it is about to tell.
    """

    # Of members: kill, pause, dawdle, cut (all is held up), break (a connection), away, fail, ghost, drain, flip (a bit
    # of a server's shard), halt (a callback stops the fit), save (a checkpoint is due). Of the run: standby (another
    # worker, or another server), scale (to `workers`). Of the coordinator: coordinator (it is killed; another comes
    # after so many seconds; at once, in the middle of what it does, if there is no delay), torn (it is killed while it
    # tells a view).
    kind: str
    # A worker's number, or a member's id; or "chief", "newest", "last" (of the view), "admitter"; or "primary",
    # "backup", "newcomer" of the shard.
    who: int | str = 0
    mark: str = "start"
    delay: float = 0.0
    seconds: float = 0.0  # of a pause, a dawdle, a cut, a broken connection, or without a coordinator
    other: int | str = 1  # from whom it is cut off
    error: str = "boom"
    workers: int = 2
    nth: int = 1
    shard: int = 0


@dataclass(frozen=True)
class Plan:
    """A run and all that goes wrong in it."""

    seed: int
    workers: int = 3
    least: int = 1
    pieces: int = 4
    parts: int = 1  # of a step: how often it applies an optimizer
    restarts: int = 2  # per place
    fences_kill: bool = True  # the fenced are on the coordinator's host
    late: float = 0.0
    lost_beats: float = 0.0
    repeats: float = 0.0  # of what is said to the coordinator
    validates: bool = True
    nested: bool = False  # a callback evaluates at the end of each epoch
    stall: float = DEADLINES.stall
    stop_at: int | None = None  # the callbacks of the first fit stop it after so many steps
    stops_on: int | None = None  # only that worker's do, and the others hear of it
    raises: int | str | None = None  # a call between the fits raises, and is caught: on "all", or on one worker only
    executes: int = 1  # steps between two calls of the callbacks
    every: int = 0  # replicas, one for each piece, train by themselves for so many steps; 0: all train together
    unlike: bool = False  # what each replica's optimizer keeps depends on its data: no other's can stand in for it
    streaming: int = 0  # fragments that replicas exchange one at a time while they go on; 0: all at once
    uneven: bool = False  # replicas take unequal numbers of a round's steps
    stages: int = 0  # that the model is cut into; 0: it is not
    lean: bool = False  # no copies of stages are kept
    pieces_last: bool = False  # a piece's arrays stay as they are, so that a redo need not compute it again
    # With servers: each worker at its own pace if there may be stale updates, else all together. Then `restarts` is how
    # many of the lost are replaced, whoever they are.
    servers: int = 0
    replicas: int = 2
    bound: int | None = 0  # of the staleness
    # At their own pace:
    shards: int = 2
    epochs: int = 2
    batches: int = 10
    slow: float = 1.0  # how much slower the first worker is
    repeated: float = 0.0  # of what is said about shards
    setbacks: bool = False  # faults may take a shard's last replica
    saves: bool = False  # checkpoints may be due
    hosts: int = 1  # over which members are spread in turns; each may be lost with all of its members
    faults: tuple[Fault, ...] = ()

    @property
    def at_own_pace(self) -> bool:
        return self.servers > 0 and self.bound != 0

    @property
    def deadlines(self) -> Deadlines:
        return msgspec.structs.replace(PACED if self.at_own_pace else DEADLINES, stall=self.stall)


OTHER_KINDS = (
    "dawdle",
    "cut",
    "away",
    "fail",
    "ghost",
    "standby",
    "standby",
    "drain",
    "scale",
    "coordinator",
    "coordinator",
    "torn",
)


def random_plan(seed: int) -> Plan:
    chance = random.Random(f"plan {seed}")
    workers = chance.choice((2, 2, 3, 3, 3, 4, 4, 5))
    plan = Plan(
        seed,
        workers,
        least=chance.choice((1, 1, 2, workers)),
        pieces=chance.choice((workers, 4, 5, 8)) if workers < 5 else 8,
        restarts=chance.choice((0, 1, 2, 3)),
        fences_kill=chance.random() < 0.6,
        late=chance.choice((0.0, 0.0, 0.02, 0.1)),
        lost_beats=chance.choice((0.0, 0.0, 0.2)),
        repeats=chance.choice((0.0, 0.1)),
        validates=chance.random() < 0.7,
        nested=chance.random() < 0.3,
        stop_at=chance.choice((None, None, None, 2, 4)),
    )
    faults = _random_faults(chance, plan)
    raises = chance.choice((None, None, None, "all", *range(plan.workers)))
    if raises is not None and chance.random() < 0.5:
        kind = chance.choice(("kill", "kill", "coordinator", "torn", "standby"))
        faults.append(Fault(kind, chance.randrange(plan.workers), "trial", chance.expovariate(1 / 0.02)))
    return dataclasses.replace(
        plan,
        parts=chance.choice((1, 1, 2, 3)),
        faults=tuple(faults),
        raises=raises,
        executes=chance.choice((1, 1, 1, 2)),
        pieces_last=chance.random() < 0.5,
    )


def _random_faults(chance: random.Random, plan: Plan) -> list[Fault]:
    faults: list[Fault] = []
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4))):
        mark, delay = _random_moment(chance)
        who: int | str = chance.choice((*range(plan.workers), "chief", "newest", "newest", "last", "admitter"))
        kind = chance.choice(("kill",) * 8 + ("pause",) * 3 + OTHER_KINDS)
        seconds = chance.choice((chance.uniform(0.1, 1.2), chance.uniform(3.0, 20.0)))
        other: int | str = chance.choice((*range(plan.workers), "chief", "last"))
        error, count = chance.choice(("boom", "bang")), chance.randint(1, plan.workers + 1)
        faults.append(Fault(kind, who, mark, delay, seconds, other, error, count))
        if kind == "kill" and chance.random() < 0.3:  # several at once, or one more while the others recover
            faults.append(Fault("kill", chance.choice((*range(plan.workers), "newest", "chief")), mark, delay))
    return faults


def _random_moment(chance: random.Random) -> tuple[str, float]:
    marks = (
        ("start", chance.uniform(0.0, 6.0)),
        (f"view {chance.randint(1, 5)}", chance.expovariate(1 / 0.05)),
        (f"view {chance.randint(2, 5)}", chance.expovariate(1 / 0.01)),
        (f"step {chance.randint(0, 9)}", chance.expovariate(1 / 0.01)),
        ("ready", chance.expovariate(1 / 0.1)),
        ("let in", chance.expovariate(1 / 0.01)),
        ("admit", chance.expovariate(1 / 0.005)),
        ("evaluate", chance.expovariate(1 / 0.02)),
        ("done", chance.expovariate(1 / 0.01)),
    )
    return chance.choice(marks)

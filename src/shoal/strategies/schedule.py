"""In which order a worker computes its stages' pieces, and how long a step takes then. Pure.

An action is the forward or the backward pass of one piece in one stage. The schedule is 1F1B: a stage begins with as
many forward passes as there are stages behind it, then takes turns, backward and forward, so that it never keeps the
activations of more pieces than that; the rest are backward passes. With one stage in it, every forward pass is followed
by its backward pass.

Only the order within a worker is fixed. An action begins when the worker has done those before it and what it takes is
there. A worker with several stages always does the first of its actions, in the order of their ranks in 1F1B, that can
begin. The order decides how long a step takes and how much memory it needs, never the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from shoal.errors import UsageError


class Pass(StrEnum):
    """Which way a piece goes through a stage."""

    FORWARD = "forward"
    BACKWARD = "backward"


class Action(NamedTuple):
    """One pass of one piece through one stage."""

    kind: Pass
    stage: int
    piece: int


Held = Sequence[Sequence[range]]  # of each stage, by rank: the run of pieces that a rank computes


def one_stage(stage: int, stages: int, pieces: Sequence[int]) -> list[Action]:
    """1F1B for one stage: its actions for these pieces."""
    ahead = min(stages - stage, len(pieces))
    actions = [Action(Pass.FORWARD, stage, piece) for piece in pieces[:ahead]]
    for place, piece in enumerate(pieces):
        actions.append(Action(Pass.BACKWARD, stage, piece))
        if place + ahead < len(pieces):
            actions.append(Action(Pass.FORWARD, stage, pieces[place + ahead]))
    return actions


def actions_of(held: Held, rank: int) -> list[Action]:
    """What a rank does in a step, in its order. Several stages' actions are merged so that none waits for a later one:
    every action comes after all actions of this rank that it depends on.
    """
    stages = len(held)
    queues = [one_stage(stage, stages, held[stage][rank]) for stage in range(stages) if held[stage][rank]]
    if len(queues) <= 1:
        return queues[0] if queues else []
    mine = {action for queue in queues for action in queue}
    done: set[Action] = set()
    merged: list[Action] = []
    while any(queues):
        # The latest stage first: what comes back soonest frees memory soonest.
        for queue in reversed(queues):
            if queue and all(need in done for need in needs(queue[0], stages) if need in mine):
                done.add(queue[0])
                merged.append(queue.pop(0))
                break
        else:
            raise UsageError(f"a schedule in which nothing can begin: {held}")
    return merged


def needs(action: Action, stages: int) -> list[Action]:
    """What must be done before an action, wherever: all earlier stages may send to it, all later ones send back."""
    kind, stage, piece = action
    if kind is Pass.FORWARD:
        return [Action(Pass.FORWARD, before, piece) for before in range(stage)]
    after = [Action(Pass.BACKWARD, later, piece) for later in range(stage + 1, stages)]
    return [Action(Pass.FORWARD, stage, piece), *after]


class Replayed(NamedTuple):
    """A step as it would be if every action took exactly the time that was given."""

    seconds: float  # until the last worker is done
    busy: tuple[float, ...]  # by rank
    begun: Mapping[Action, float]

    @property
    def bubble(self) -> float:
        """The part of the workers' time in which they wait."""
        return 1.0 - sum(self.busy) / (self.seconds * len(self.busy)) if self.seconds else 0.0


def replay(
    schedule: Sequence[Sequence[Action]],
    stages: int,
    seconds: Callable[[Action, int], float],
    hop: Callable[[Action, Action], float] = lambda before, after: 0.0,
    starts: Sequence[float] = (),
) -> Replayed:
    """Discrete events: `schedule[rank]` in order, each action when what it needs has arrived.

    `seconds(action, rank)`: what it takes. `hop(before, after)`: how long what one makes is on its way to the other;
    only asked where another rank has made it. `starts`: when each rank begins, if not at once. UsageError if the
    workers would wait for each other for ever.
    """
    ranks = {action: rank for rank, actions in enumerate(schedule) for action in actions}
    ended: dict[Action, float] = {}
    begun: dict[Action, float] = {}
    free = list(starts) or [0.0] * len(schedule)
    places = [0] * len(schedule)
    busy = [0.0] * len(schedule)
    left = len(ranks)
    while left:
        moved = False
        for rank, actions in enumerate(schedule):
            while places[rank] < len(actions):
                action = actions[places[rank]]
                before = [need for need in needs(action, stages) if need in ranks]
                if any(need not in ended for need in before):
                    break
                arrived = [ended[need] + (hop(need, action) if ranks[need] != rank else 0.0) for need in before]
                begun[action] = max([free[rank], *arrived])
                took = seconds(action, rank)
                free[rank] = ended[action] = begun[action] + took
                busy[rank] += took
                places[rank] += 1
                left -= 1
                moved = True
        if not moved:
            stuck = [
                str(actions[place]) for actions, place in zip(schedule, places, strict=True) if place < len(actions)
            ]
            raise UsageError(f"a schedule in which all wait for each other: {', '.join(stuck)}")
    return Replayed(max(free, default=0.0), tuple(busy), begun)

"""Residuals under kills, joins and moves, in pure form: thousands of steps a second, and mutants that must be caught.

What is left out of a slot is stood for by the list of the steps that it has seen: it must be what it would be if nobody
had ever died, as long as one worker of its host is left.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise, starmap
from typing import Any

import pytest

from shoal.collectives import residual_plan
from shoal.collectives.residual_plan import NEVER, ResidualNote, generation, keepers_of, plan_residuals

SLOTS = 6
Plan = Callable[..., residual_plan.ResidualPlan]


class Block:
    """A slot's memory on a host."""

    def __init__(self) -> None:
        self.stamps = [NEVER, NEVER]
        self.contents: list[Any] = [None, None]


class Worker:
    def __init__(self, host: str) -> None:
        self.host = host
        self.blocks: dict[int, Block] = {}
        self.last: dict[int, int] = {}


def hosts_of(workers: Sequence[Worker]) -> list[list[int]]:
    names = sorted({one.host for one in workers})
    return [[rank for rank, one in enumerate(workers) if one.host == name] for name in names]


def copy(workers: Sequence[Worker], shares: Sequence[range], step: int, dead: int | None) -> None:
    """What `Residuals.copy` does."""
    holders = {slot: rank for rank, held in enumerate(shares) for slot in held}
    for slot, keeper in keepers_of(hosts_of(workers), shares).items():
        if holders[slot] == dead:
            continue
        holder, block = workers[holders[slot]].blocks[slot], workers[keeper].blocks[slot]
        _, written = generation(holder.stamps, workers[keeper].last.get(slot))
        _, into = generation(block.stamps, workers[keeper].last.get(slot))
        block.contents[into], block.stamps[into] = holder.contents[written], step


def settle(
    workers: Sequence[Worker], shares: Sequence[range], plan_of: Plan = plan_residuals, copies: bool = False
) -> tuple[int, ...]:
    """What the shell does with a plan (collectives/residuals.py)."""
    notes = [
        ResidualNote(dict(one.last), {slot: (b.stamps[0], b.stamps[1]) for slot, b in one.blocks.items()})
        for one in workers
    ]
    hosts = hosts_of(workers)
    plan = plan_of(notes, hosts, shares, *([keepers_of(hosts, shares)] if copies else []))
    for rank, slots in plan.made.items():
        workers[rank].blocks |= {slot: Block() for slot in slots}
    for ranks in hosts:
        for giver in ranks:
            for slot in plan.given.get(giver, ()):
                for rank in ranks:
                    workers[rank].blocks.setdefault(slot, workers[giver].blocks[slot])
    for slot, source, holder in plan.moves:
        read, _ = generation(workers[source].blocks[slot].stamps, plan.last[slot])
        assert read is not None
        block = workers[holder].blocks[slot]
        block.contents[0] = workers[source].blocks[slot].contents[read]
        block.stamps[:] = [plan.last[slot], NEVER]
    for one in workers:
        one.last = dict(plan.last)
    return plan.lost


def shares_of(count: int, chance: random.Random) -> list[range]:
    cuts = [0, *sorted(chance.randint(0, SLOTS) for _ in range(count - 1)), SLOTS]
    return list(starmap(range, pairwise(cuts)))


def write(worker: Worker, slot: int, step: int, whole: bool = True) -> None:
    block = worker.blocks[slot]
    read, into = generation(block.stamps, worker.last.get(slot))
    before = [] if read is None else block.contents[read]
    block.stamps[into] = NEVER
    block.contents[into] = [*before, step] if whole else "half of it"
    if whole:
        block.stamps[into] = step


def play(seed: int, plan_of: Plan = plan_residuals, copies: bool = False) -> None:
    """Steps with kills in the middle of them, joins, and pieces that move; at the end nobody has forgotten anything.

    With `copies` nothing may be lost at all: one is killed at a time.
    """
    chance = random.Random(seed)
    workers = [Worker(chance.choice("ab")) for _ in range(chance.randint(1, 4))]
    truth: dict[int, list[int]] = {slot: [] for slot in range(SLOTS)}
    for step in range(1, 25):
        if chance.random() < 0.3:
            workers.insert(chance.randint(0, len(workers)), Worker(chance.choice("abc")))
        while True:
            shares = shares_of(len(workers), chance)
            for slot in settle(workers, shares, plan_of, copies):
                assert not copies, f"seed {seed}, step {step}: slot {slot} is lost"
                truth[slot] = []
            dies = chance.randrange(len(workers)) if len(workers) > 1 and chance.random() < 0.3 else None
            for rank, held in enumerate(shares):
                for slot in held:
                    write(workers[rank], slot, step, whole=rank != dies or chance.random() < 0.5)
            if copies and (dies is None or chance.random() < 0.5):
                copy(workers, shares, step, dies)
            if dies is None:
                break
            workers.pop(dies)  # the step is done again
        for worker in workers:
            worker.last |= dict.fromkeys(range(SLOTS), step)
        for slot in range(SLOTS):
            truth[slot].append(step)
            holder = next(rank for rank, held in enumerate(shares) if slot in held)
            read, _ = generation(workers[holder].blocks[slot].stamps, step)
            assert read is not None
            assert workers[holder].blocks[slot].contents[read] == truth[slot], f"seed {seed}, step {step}, slot {slot}"


def play_many(plan_of: Plan = plan_residuals) -> None:
    for seed in range(300):
        play(seed, plan_of)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_whoever_dies_joins_or_takes_over_nothing_is_forgotten_or_counted_twice(first: int) -> None:
    for seed in range(first, first + 100):
        play(seed)


@pytest.mark.parametrize("first", range(0, 200, 100))
def test_with_copies_nothing_is_lost_with_a_worker_alone_on_its_host(first: int) -> None:
    _play_with_copies(first=first)


def _play_with_copies(plan_of: Plan = plan_residuals, first: int = 0) -> None:
    for seed in range(first, first + 100):
        play(seed, plan_of, copies=True)


def _makes_no_new_copies(notes: Any, hosts: Any, shares: Any, keepers: Any) -> residual_plan.ResidualPlan:
    """When workers change, only who computes a slot gets it: until the next step there is one of it."""
    plan = plan_residuals(notes, hosts, shares, keepers)
    holders = {slot: rank for rank, held in enumerate(shares) for slot in held}
    return plan._replace(moves=tuple(move for move in plan.moves if move[2] == holders[move[0]]))


def test_a_mutant_without_new_copies_is_caught() -> None:
    with pytest.raises(AssertionError, match="is lost"):
        _play_with_copies(_makes_no_new_copies)


def _forgets_moves(*given: Any) -> residual_plan.ResidualPlan:
    return plan_residuals(*given)._replace(moves=())


def _trusts_whoever_has_anything(notes: Any, hosts: Any, shares: Any) -> residual_plan.ResidualPlan:
    """Takes what lies there for what counts, however old."""
    known = {slot for note in notes for slot in note.stamps}
    plan = plan_residuals(notes, hosts, shares)
    return plan._replace(lost=tuple(slot for slot in plan.lost if slot not in known))


def _hands_nothing_on(*given: Any) -> residual_plan.ResidualPlan:
    plan = plan_residuals(*given)
    return plan._replace(given={rank: slots for rank, slots in plan.given.items() if rank in plan.made})


@pytest.mark.parametrize("mutant", [_forgets_moves, _trusts_whoever_has_anything, _hands_nothing_on])
def test_a_mutant_is_caught(mutant: Plan) -> None:
    with pytest.raises((AssertionError, KeyError, TypeError)):
        play_many(mutant)


def test_a_mutant_with_one_generation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is done again would find what its first try has left."""
    monkeypatch.setitem(globals(), "generation", lambda stamps, last: (None if last is None else 0, 0))
    with pytest.raises((AssertionError, TypeError)):
        play_many()

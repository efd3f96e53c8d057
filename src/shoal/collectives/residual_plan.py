"""Where the residuals of slots are, and where they have to go: what a slot's codec has left out so far. Pure.

A slot is one piece's gradients. Its residual lies in memory that the workers of a host share, in two generations, each
stamped with the step that wrote it: whoever computes the piece in a step reads the generation of the last step that
counted and writes the other. So a step that is done again finds what it found before, and a killed process takes
nothing with it. If another host is to compute the piece, the residual goes there. If the only host that had it is
lost, it is zero, for everybody. Where there are to be copies, a slot whose worker is alone on its host has one with a
worker of another host, which is as old as it: so a killed process takes nothing with it there either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

NEVER = -1  # the stamp of a generation that nobody has written, or not to its end


class ResidualNote(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says of residuals when shares or members have changed."""

    last: dict[int, int]  # by slot: the step that wrote what counts
    stamps: dict[int, tuple[int, int]]  # by slot: what lies in the memory that this worker has mapped


class ResidualPlan(NamedTuple):
    """What is to be done, the same for all who read the same notes."""

    last: dict[int, int]  # by slot, without those that are lost
    lost: tuple[int, ...]
    made: dict[int, tuple[int, ...]]  # by rank: the slots for which it makes new memory
    given: dict[int, tuple[int, ...]]  # by rank: the slots whose memory it hands to its neighbours
    moves: tuple[tuple[int, int, int], ...]  # slot, the rank that sends its residual, the rank that computes it


def plan_residuals(
    notes: Sequence[ResidualNote],
    hosts: Sequence[Sequence[int]],
    shares: Sequence[range],
    keepers: Mapping[int, int] | None = None,
) -> ResidualPlan:
    """`keepers`: by slot, the rank that is to have a copy."""
    copies = keepers or {}
    last: dict[int, int] = {}
    for note in notes:
        for slot, step in note.last.items():
            last[slot] = max(step, last.get(slot, NEVER))
    made: dict[int, tuple[int, ...]] = {}
    given: dict[int, tuple[int, ...]] = {}
    for ranks in hosts:
        wanted = {slot: rank for rank in ranks for slot in shares[rank]}
        wanted |= {slot: keeper for slot, keeper in copies.items() if keeper in ranks}
        for slot in sorted(wanted.keys() | {slot for rank in ranks for slot in notes[rank].stamps}):
            owner = next((rank for rank in ranks if slot in notes[rank].stamps), None)
            if owner is None:
                owner = wanted[slot]
                made[owner] = (*made.get(owner, ()), slot)
            if any(slot not in notes[rank].stamps for rank in ranks if rank != owner):
                given[owner] = (*given.get(owner, ()), slot)
    moves = []
    lost = []
    for ranks in hosts:
        for holder in ranks:
            for slot in shares[holder]:
                if slot not in last or _has(notes, ranks, slot, last[slot]) is not None:
                    continue
                sources = (_has(notes, others, slot, last[slot]) for others in hosts)
                source = next((rank for rank in sources if rank is not None), None)
                if source is None:
                    lost.append(slot)
                else:
                    moves.append((slot, source, holder))
    for slot, keeper in copies.items():
        if slot not in last or slot in lost:
            continue
        near = next(ranks for ranks in hosts if keeper in ranks)
        if _has(notes, near, slot, last[slot]) is None:
            sources = (_has(notes, others, slot, last[slot]) for others in hosts)
            moves.append((slot, next(rank for rank in sources if rank is not None), keeper))
    # A slot that nobody computes just now may be lost too; whoever gets it later finds that out.
    kept = {slot: step for slot, step in last.items() if slot not in lost}
    return ResidualPlan(kept, tuple(sorted(lost)), made, given, tuple(sorted(moves)))


def _has(notes: Sequence[ResidualNote], ranks: Sequence[int], slot: int, step: int) -> int | None:
    """The first of these ranks that has a slot's residual of this step."""
    return next((rank for rank in ranks if step in notes[rank].stamps.get(slot, ())), None)


def keepers_of(hosts: Sequence[Sequence[int]], shares: Sequence[range]) -> dict[int, int]:
    """By slot, the rank that has a copy: on the next host, if who computes it is alone on its own."""
    found: dict[int, int] = {}
    for place, ranks in enumerate(hosts):
        others = hosts[(place + 1) % len(hosts)]
        if len(ranks) == 1 and len(hosts) > 1:
            found |= {slot: others[slot % len(others)] for slot in shares[ranks[0]]}
    return found


def writers_of(notes: Sequence[ResidualNote]) -> dict[int, int]:
    """By slot, the rank that writes its residual to a checkpoint: one of those that have it. What nobody has any more
    is zero from the next step on, and is not written.
    """
    last: dict[int, int] = {}
    for note in notes:
        for slot, step in note.last.items():
            last[slot] = max(step, last.get(slot, NEVER))
    having = {
        slot: [rank for rank, note in enumerate(notes) if step in note.stamps.get(slot, ())]
        for slot, step in sorted(last.items())
    }
    return {slot: ranks[slot % len(ranks)] for slot, ranks in having.items() if ranks}


def generation(stamps: Mapping[int, int] | Sequence[int], last: int | None) -> tuple[int | None, int]:
    """Which of two generations to read (None: nothing was left out) and which to write."""
    if last is None:
        return None, 0
    read = 0 if stamps[0] == last else 1
    return read, 1 - read

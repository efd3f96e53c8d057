"""Which codec pays, with `compress="auto"`: measured by every worker, said in notes, decided alike by all. Pure.

Among those that round: what they lose is seldom noticed. The time that a step waits for bytes on their way shrinks
with the bytes; what a codec costs is added. Where nothing is waited for, as in shared memory, nothing pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

SHARES: Mapping[str, float] = {"": 1.0, "bf16": 0.5, "int8": 0.26}  # of the bytes, by codec; "": as they are
_WORTHWHILE = 0.8  # of the time that is spent now: only for less than that is anything changed
_LEAST = 0.002  # seconds of a step that a change must save


class LinkNote(msgspec.Struct, frozen=True, array_like=True):
    """What a worker has measured of its steps lately."""

    seconds: float  # of a step in which it waited for bytes on their way
    costs: tuple[float, ...]  # seconds that each codec of SHARES but the first takes for a step's gradients


def choose(current: str, notes: Sequence[LinkNote | None]) -> str:
    """The codec from the next step on. Nothing changes unless everybody has measured."""
    measured = [note for note in notes if note is not None]
    if len(measured) < len(notes) or not measured:
        return current
    link = max(note.seconds for note in measured) / SHARES[current]
    costs = [0.0, *(max(column) for column in zip(*(note.costs for note in measured), strict=True))]
    expected = {name: link * share + cost for (name, share), cost in zip(SHARES.items(), costs, strict=True)}
    best = min(expected, key=lambda name: expected[name])
    now = expected[current]
    return best if expected[best] < now * _WORTHWHILE and now - expected[best] > _LEAST else current

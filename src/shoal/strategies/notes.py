"""The note that every member sends with an exchange, and what all members conclude from the same notes.

Pure: notes in, conclusions out, the same on every member. What must be agreed is agreed here, without asking
anybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from shoal.errors import Diverged
from shoal.strategies.link_choice import LinkNote


class WrittenPart(msgspec.Struct, frozen=True, array_like=True):
    """What became of a worker's part of a checkpoint."""

    step: int
    name: str = ""
    nbytes: int = 0
    digest: str = ""
    why: str = ""  # it failed
    servers: tuple[tuple[str, int, str], ...] = ()  # the chief: name, nbytes and digest of what servers wrote


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says about its part of a step."""

    step: int
    stop: bool = False  # it stopped after the step before this one: this one does not count
    seconds: float = 0.0  # that its pieces took
    weights: int | None = None  # fingerprint of its weights before this step
    candidates: tuple[str, ...] = ()  # newcomers that it has heard of
    checkpoint: bool = False  # one is due after this step
    part: WrittenPart | None = None  # of the last checkpoint
    leaves: bool = False  # it leaves the run after this step
    data: bytes = b""  # in steps that a script takes one by one: a digest of the batch that it gave
    last: bool = False  # the chief, in a loop of a script's own: there is no batch after this one
    ranked: bool = False  # its script has asked for its rank: its data may depend on that
    update: float = 0.0  # seconds that its update of the weights took, in the step before this one
    took: float = 0.0  # seconds from the end of the step before the last to the end of the last
    link: LinkNote | None = None  # with compress="auto": what it has measured


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Note)


def encode(note: Note) -> bytes:
    return _encoder.encode(note)


def decode(notes: Sequence[bytes]) -> list[Note]:
    return [_decoder.decode(note) for note in notes]


def stopped(notes: Sequence[Note]) -> bool:
    """Whether the step of these notes must not count: somebody stopped before it."""
    return any(note.stop for note in notes)


def newcomers(notes: Sequence[Note]) -> tuple[str, ...]:
    """Those whom everybody has heard of: all let them in after this step."""
    known = set(notes[0].candidates).intersection(*(note.candidates for note in notes[1:]))
    return tuple(sorted(known))


def leavers(members: Sequence[str], notes: Sequence[Note]) -> tuple[str, ...]:
    """Those who give up their links to the coordinator after this step."""
    return tuple(member for member, note in zip(members, notes, strict=True) if note.leaves)


def check_agreement(members: Sequence[str], notes: Sequence[Note]) -> None:
    """Raises Diverged, naming the odd ones out, when workers' steps or weights differ."""
    steps = {note.step for note in notes}
    if len(steps) > 1:
        told = ", ".join(f"{member} at {note.step}" for member, note in zip(members, notes, strict=True))
        raise Diverged(
            f"workers are at different steps of the same exchange: {told}. Every worker must run the same script "
            "with the same data."
        )
    prints = [note.weights for note in notes]
    if None in prints or len(set(prints)) == 1:
        return
    (common, times), *others = Counter(prints).most_common()
    if others and times == others[0][1]:  # no majority: the chief's weights are the reference
        common = prints[0]
    odd = [member for member, value in zip(members, prints, strict=True) if value != common]
    raise Diverged(
        f"the weights of {', '.join(odd)} differ from the others' before step {notes[0].step}: "
        f"{len(prints) - len(odd)} of {len(prints)} workers agree. Something other than the update changed a weight: "
        "a callback or code that runs on some workers only, a non-deterministic operation, or faulty memory. Restart "
        "the run; if it comes back on the same machine, suspect that machine."
    )

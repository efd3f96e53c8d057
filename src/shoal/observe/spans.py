"""What a member did, from when to when: as it is written down, and as it is read.

A member counts by its own clock, which no correction of the system's time disturbs. Each block of spans says how far
that clock is from the one that all members share: seconds since the epoch as the launcher's host counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from shoal.observe.phases import Phase

MOST_SPANS = 4096  # in one block
LONGEST_DETAIL = 100  # characters
_MICROSECONDS = 1e6
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Instant = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class Span(msgspec.Struct, frozen=True):
    """Something that a member did. Its spans follow each other without a gap, but for those inside of others."""

    member: str
    phase: Phase
    step: int  # optimizer updates before it; of a server: updates that it has applied
    start: float  # seconds since the epoch, on the clock that all members share
    seconds: float
    detail: str = ""  # which piece, whom it waits for
    inside: bool = False  # a part of the span around it: a wait within an exchange
    is_open: bool = False  # it went on when it was last heard of

    @property
    def end(self) -> float:
        return self.start + self.seconds


class KeptSpan(msgspec.Struct, frozen=True, array_like=True):
    """A span in a block."""

    phase: Phase
    step: _Count
    start: _Instant  # microseconds on the member's own clock
    lasting: _Count  # microseconds
    detail: Annotated[str, msgspec.Meta(max_length=LONGEST_DETAIL)] = ""
    inside: bool = False

    @classmethod
    def of(cls, phase: Phase, step: int, start: float, end: float, detail: str = "", inside: bool = False) -> KeptSpan:
        """Both ends are cut to microseconds by themselves, so that spans that meet still do."""
        first = int(start * _MICROSECONDS)
        lasting = int(end * _MICROSECONDS) - first
        return cls(phase, step, first, lasting if lasting > 0 else 0, detail[:LONGEST_DETAIL], inside)


class SpanBlock(msgspec.Struct, frozen=True, array_like=True):
    """What a member has recorded since the block before."""

    ahead: float  # seconds: how far the shared clock is ahead of the member's own
    lost: _Count  # spans that came before these and were dropped
    spans: Annotated[tuple[KeptSpan, ...], msgspec.Meta(max_length=MOST_SPANS)]
    going_on: KeptSpan | None = None  # what it does now, so far

    @property
    def until(self) -> float:
        """The shared time at which the last of it ended; 0 if it holds nothing."""
        last = (self.going_on,) if self.going_on is not None else self.spans[-1:]
        return self.ahead + (last[0].start + last[0].lasting) / _MICROSECONDS if last else 0.0

    def of(self, member: str) -> Iterator[Span]:
        """Those that are over."""
        return (self._span(member, kept) for kept in self.spans)

    def unfinished(self, member: str) -> Iterator[Span]:
        """The one that is not."""
        if self.going_on is not None:
            yield self._span(member, self.going_on, is_open=True)

    def goes_on_from(self, before: SpanBlock) -> bool:
        """Whether what went on at the end of the block before is in this one, or was dropped."""
        begun = before.going_on.start if before.going_on is not None else None
        going_on = () if self.going_on is None else (self.going_on,)
        return begun is None or self.lost > 0 or any(span.start == begun for span in (*self.spans, *going_on))

    def _span(self, member: str, kept: KeptSpan, is_open: bool = False) -> Span:
        start, seconds = self.ahead + kept.start / _MICROSECONDS, kept.lasting / _MICROSECONDS
        return Span(member, kept.phase, kept.step, start, seconds, kept.detail, kept.inside, is_open)

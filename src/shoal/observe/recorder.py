"""What this process does, as it goes along. Whoever wants to know reads the last moment, or hears of each.

`record` costs the making of two small values: no lock, no system call, nothing that grows. What is over goes into a
ring, from which another thread takes it to the record's file (record_keeper.py). If nobody takes it, or not fast
enough, the oldest is dropped and counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shoal.observe.counters import Counters
from shoal.observe.phases import Activity, Phase, TimeUse
from shoal.observe.spans import MOST_SPANS, KeptSpan
from shoal.observe.time_shares import TimeShares

RING = 4 * MOST_SPANS  # spans: what takes milliseconds is held for many seconds
_WORTH_A_SPAN = 50e-6  # seconds of a wait, and between two waits that are told apart


class Moment(NamedTuple):
    """What a process does from a time on."""

    step: int
    activity: Activity
    exchanging: bool  # it can't go on unless every worker comes
    since: float  # monotonic seconds


class Waited(NamedTuple):
    """For others, within something else. Monotonic seconds."""

    begun: float
    ended: float


class _Recorded(NamedTuple):
    """Something that is over."""

    number: int  # of all that were ever recorded
    step: int
    activity: Activity
    begun: float
    ended: float
    inside: bool

    def kept(self) -> KeptSpan:
        _, step, activity, begun, ended, inside = self
        return KeptSpan.of(activity.phase, step, begun, ended, activity.detail, inside)


class Recorder:
    """One thread records, any thread reads: a moment is replaced whole."""

    def __init__(self, hears: Callable[[Moment], object] | None = None, ring: int = RING) -> None:
        """`hears` is told of every moment by the thread that records: it must not wait."""
        self._hears = hears
        self.now = Moment(0, Activity(), False, time.monotonic())
        self.begun = self.now.since  # what it does, exchanging or not
        self.samples = 0  # that were trained on in all
        self.pieces = 0  # that batches are cut into
        self.plan = ""  # that it trains by, if one was made
        self.logs: Mapping[str, object] = {}  # of the last step or epoch: replaced whole, never changed
        self.counters = Counters()
        self._seconds = dict.fromkeys(TimeUse, 0.0)  # of all phases that are over
        self._ring: deque[_Recorded] = deque(maxlen=ring)
        self._recorded = 0
        self._taken = 0

    def record(self, phase: Phase, detail: str = "", step: int | None = None, exchanging: bool = False) -> None:
        """Something else is done from now on."""
        before, now = self.now, time.monotonic()
        self._keep(before.step, before.activity, self.begun, now)
        self.begun = now
        self._begin(Moment(before.step if step is None else step, Activity(phase, detail), exchanging, now))

    def exchange(self, exchanging: bool) -> None:
        """It does the same, and begins or ends to wait for every worker."""
        self._begin(self.now._replace(exchanging=exchanging, since=time.monotonic()))

    def wait(self, waits: Sequence[Waited]) -> None:
        """So much of what it does now was waiting for others."""
        seconds = sum(wait.ended - wait.begun for wait in waits)
        self._seconds[self.now.activity.phase.use] -= seconds
        self._seconds[TimeUse.WAITING] += seconds
        for wait in joined(waits):
            self._keep(self.now.step, _WAITING, wait.begun, wait.ended, inside=True)

    def shares(self) -> TimeShares:
        """Where the time has gone, with what is not over yet."""
        now = self.now
        seconds = self._seconds.copy()
        seconds[now.activity.phase.use] += time.monotonic() - now.since
        return TimeShares(seconds)

    def count(self, samples: int, pieces: int | None = None) -> None:
        """A step was committed."""
        self.samples += samples
        self.counters.step()
        self.pieces = pieces or self.pieces

    def take(self) -> tuple[tuple[KeptSpan, ...], int]:
        """At most a block of what was recorded since this was last called, by one thread; and how much was dropped."""
        taken = list(self._pop())
        dropped = max(0, taken[-1].number + 1 - self._taken - len(taken)) if taken else 0
        self._taken += len(taken) + dropped
        return tuple(past.kept() for past in taken), dropped

    def going_on(self) -> KeptSpan:
        """What it does now, so far."""
        # Another thread may record between the two: then what it did just now is told until the next look.
        begun, now = self.begun, self.now
        return KeptSpan.of(now.activity.phase, now.step, begun, time.monotonic(), now.activity.detail)

    def _begin(self, moment: Moment) -> None:
        self._seconds[self.now.activity.phase.use] += moment.since - self.now.since
        self.now = moment
        if self._hears is not None:
            self._hears(moment)

    def _keep(self, step: int, activity: Activity, begun: float, ended: float, inside: bool = False) -> None:
        self._ring.append(_Recorded(self._recorded, step, activity, begun, ended, inside))
        self._recorded += 1

    def _pop(self) -> Iterator[_Recorded]:
        for _ in range(MOST_SPANS):
            try:
                yield self._ring.popleft()
            except IndexError:
                return


_WAITING = Activity(Phase.WAITING)


def joined(waits: Sequence[Waited]) -> list[Waited]:
    """Those that are worth a span. Waits that follow each other at once are one."""
    found: list[Waited] = []
    for wait in waits:
        if found and wait.begun - found[-1].ended < _WORTH_A_SPAN:
            found[-1] = Waited(found[-1].begun, wait.ended)
        else:
            found.append(wait)
    return [wait for wait in found if wait.ended - wait.begun >= _WORTH_A_SPAN]

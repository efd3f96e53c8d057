"""What a beat says of a member: where it is, and how fast it has been lately. Pure: the time is passed in."""

from __future__ import annotations

from collections import deque

from shoal.cluster.messages import Beat
from shoal.observe.chart import shown
from shoal.observe.counters import WorkerFigures
from shoal.observe.recorder import Recorder
from shoal.observe.time_shares import TimeShares

_WINDOW = 10  # beats over which samples per second and shares of time are averaged


class BeatMaker:
    """Makes the beats of one member, from what its recorder knows."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._history: deque[tuple[float, int, TimeShares, WorkerFigures]] = deque(maxlen=_WINDOW + 1)

    def make(self, now: float, memory: int, asks: float | None) -> Beat:
        """The next one. `memory`: in bytes. `asks`: for the coordinator's clock, when this one stood there."""
        recorder = self._recorder
        step, activity, exchanging, since = recorder.now
        trained, spent, counted = recorder.samples, recorder.shares(), recorder.counters.figures()
        self._history.append((now, trained, spent, counted))
        began, samples, before, counted_before = self._history[0]
        return Beat(
            step,
            activity,
            now - since,
            (trained - samples) / (now - began) if now > began else 0.0,
            exchanging,
            recorder.pieces,
            spent.since(before),
            memory,
            asks,
            shown(recorder.logs),
            counted.since(counted_before),
            recorder.plan,
        )

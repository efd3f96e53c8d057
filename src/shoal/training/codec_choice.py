"""`compress="auto"` while a fit goes on: measures, says so in notes, and changes the codec between two steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from shoal.codecs.choice import codec_of
from shoal.codecs.codec import AbstractCodec
from shoal.codecs.rounding import BF16, INT8, AbstractRounding
from shoal.observe.counters import Traffic
from shoal.strategies.link_choice import SHARES, LinkNote, choose

_MEASURED = 8  # steps, before anything is said of them
_SAMPLE = 1 << 18  # numbers with which a codec's cost is measured


class CodecChoice:
    """One worker's side of it. `current` is the codec's name, the same on all; "": as they are."""

    def __init__(self, traffic: Traffic, gradients: int) -> None:
        """`gradients`: the numbers that a step exchanges."""
        self._traffic = traffic
        self._gradients = gradients
        self._costs: tuple[float, ...] = ()
        self._seen = traffic.arriving
        self._waits: list[float] = []
        self.current = ""

    def step(self) -> None:
        """A step is over."""
        self._waits.append(self._traffic.arriving - self._seen)
        self._seen = self._traffic.arriving

    def note(self) -> LinkNote | None:
        """What all should know, as often as there is something new to say."""
        if len(self._waits) < _MEASURED:
            return None
        seconds, self._waits = median(self._waits), []
        if not seconds and not self._costs:
            return LinkNote(0.0, (0.0,) * (len(SHARES) - 1))  # nothing to gain: what it would cost does not matter
        self._costs = self._costs or tuple(_cost(rounding, self._gradients) for rounding in (BF16, INT8))
        return LinkNote(seconds, self._costs)

    def hear(self, notes: Sequence[LinkNote | None]) -> AbstractCodec | None:
        """The codec from the next step on, if that is another one."""
        chosen = choose(self.current, notes)
        if chosen == self.current:
            return None
        return self.take(chosen)

    def take(self, chosen: str) -> AbstractCodec:
        """As the others have it."""
        self.current, self._waits = chosen, []
        return codec_of(chosen or None, "auto")


def _cost(rounding: AbstractRounding, size: int) -> float:
    """Seconds of rounding, adding and reading so many numbers."""
    values = np.random.default_rng(0).standard_normal(_SAMPLE).astype(np.float32)
    records = np.zeros(rounding.records(_SAMPLE), rounding.record)
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        rounding.encode(values, records)
        rounding.add(records, records, records)
        rounding.decode(records, values)
        best = min(best, time.perf_counter() - begun)
    return best * size / _SAMPLE

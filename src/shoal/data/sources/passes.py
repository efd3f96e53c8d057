"""Which batch of the data a step takes. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator


class Passes:
    """Which batch a step takes when an epoch is shorter than the data. A pure function of (epoch, step).

    As in Keras: with `steps_per_epoch` an epoch goes on where the last one stopped, ends early when the
    data is used up, and the next one starts the data anew (in a new order).
    """

    def __init__(self, batches: int | None, steps: int | None) -> None:
        self.steps = steps if batches is None else min(steps or batches, batches)
        self.number = 0  # of the pass over the data; with whole epochs, the epoch
        self._batches = batches
        self._first = 0

    def begin(self, epoch: int, initial: int) -> None:
        done = epoch - initial
        if self._batches is None or self.steps is None:  # there is always more
            self.number, self._first = initial, done * (self.steps or 0)
            return
        epochs_in_a_pass = -(-self._batches // self.steps)
        passes, place = divmod(done, epochs_in_a_pass)
        self.number = initial + passes
        self._first = place * self.steps

    def batch(self, step: int) -> int | None:
        """The batch's number, or None when the data is used up."""
        batch = self._first + step
        return batch if self._batches is None or batch < self._batches else None

    def later(self, first: int) -> Iterator[int]:
        """The epoch's steps that there is data for, from `first` on."""
        steps = itertools.count(first) if self.steps is None else range(first, self.steps)
        return itertools.takewhile(lambda step: self.batch(step) is not None, steps)

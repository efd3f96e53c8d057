"""A toy model's shards on a server: what a backend and Keras's optimizer would hold and update there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shoal.store.decisions.shards import Shard
from shoal.store.values.tensors import ArrayShape, Shapes
from shoal.strategies.schema import Array
from shoal.training.store_layout import NO_EPOCH, StoreLayout

from .toy import updated

TRAINED = "weights"  # how the names of variables begin that updates change


class ToyTensors:
    """The `Tensors` of one shard."""

    rows = 0

    def __init__(self, layout: StoreLayout, shard: Shard, model: dict[str, Array]) -> None:
        """`model`: the values with which the script's own begins, by name."""
        self._trained = [range.parameter.startswith(TRAINED) for range in shard.ranges]
        self._added = layout.added_to(shard.number)
        self.values = [np.array(model[range.parameter]) for range in shard.ranges]
        self._momenta = [np.zeros(1, np.int64) for _ in shard.ranges]
        self._sums = [np.zeros(math.prod(a.shape), np.float64 if "float" in a.dtype else np.int64) for a in self._added]
        self._epoch = np.array([NO_EPOCH])

    def apply(self, epoch: int, gradients: Sequence[Array], rate: float | None, scale: float) -> None:
        for trained, value, momentum, gradient in zip(
            self._trained, self.values, self._momenta, gradients, strict=False
        ):
            if trained:
                value[0], momentum[0] = updated(int(value[0]), int(momentum[0]), int(gradient[0]))
        for added, total, change in zip(self._added, self._sums, gradients[len(self.values) :], strict=True):
            if added.resets and epoch > self._epoch:
                total[:] = 0
            if not added.resets or epoch >= self._epoch:
                total += change
        self._epoch[0] = max(epoch, int(self._epoch[0]))

    def weights(self, asked: Sequence[Array]) -> Sequence[Array]:
        sums = [total.astype(added.dtype) for added, total in zip(self._added, self._sums, strict=True)]
        return [*self.values, *sums, *([self._epoch] if self._added else ())]

    def averages(self) -> Sequence[Array]:
        return self.weights(())

    def set_weights(self, weights: Sequence[Array]) -> None:
        held = [*self.values, *self._sums, *([self._epoch] if self._added else ())]
        for place, value in zip(held, weights, strict=True):
            place[:] = value

    def assign(self, assigned: Sequence[Array]) -> None:
        raise AssertionError("no callback assigns weights")

    def state(self) -> Sequence[Array]:
        return [*self.values, *self._momenta, *self._sums, self._epoch]

    def state_shapes(self, rows: int) -> Shapes:
        return tuple(ArrayShape(str(array.dtype), array.size) for array in self.state())

    def load(self, state: Sequence[Array]) -> None:
        for place, value in zip(self.state(), state, strict=True):
            place[:] = value

    def digest(self) -> int:
        return hash(tuple(number for array in self.state() for number in array.tolist())) % 2**63

    def listed(self, start: int) -> Sequence[Array]:
        raise AssertionError("only tables have rows to list")

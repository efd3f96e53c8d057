"""How a model's variables lie in shards, and what travels of each between workers and servers.

The first shard carries what is no parameter too: moving statistics, and the sums of the epoch's metrics. An update adds
to those, exactly once, as it is applied exactly once to the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import ml_dtypes
import numpy as np

from shoal.hook.engine import AbstractEngine, StepShape
from shoal.hook.shard_state import Added, ShardState, parameters_of
from shoal.store.shards import cut
from shoal.store.tensors import ArrayShape, ShardShapes
from shoal.strategies.schema import Array

SHARD_BYTES = 1 << 20  # a smaller shard is not worth its messages


class Pulled(NamedTuple):
    """All that a worker has pulled, in the model's order."""

    trainable: list[Array]
    states: list[Array]
    metrics: list[Array]  # their changes in the epoch so far
    extras: list[Array]  # logs that are no metric, each times the samples of its batch
    samples: int  # in the epoch so far
    epoch: int  # that these are of
    updates: int = 0  # in the epoch so far


class StoreLayout:
    """The shards of one model, the same wherever it is built."""

    def __init__(
        self, engine: AbstractEngine, shape: StepShape, optimizer: Any, servers: int, synchronous: bool = False
    ) -> None:
        """`synchronous`: the workers keep statistics and metrics themselves, alike."""
        self._engine = engine
        self._shape = shape
        self._optimizer = optimizer
        self._trainable = [engine.variables.trainable[i] for i in shape.gradients]
        self._parameters = parameters_of(self._trainable, optimizer)
        whole = sum(parameter.bytes for parameter in self._parameters)
        self.shards = cut(self._parameters, max(1, min(2 * servers, whole // SHARD_BYTES)))
        entries = shape.schema.entries
        first, second = len(shape.gradients), len(shape.gradients) + len(shape.changed)
        third = len(entries) - len(shape.extras)
        states = [engine.variables.states[i] for i in shape.changed]
        added = [
            *(Added(v.path, keras.backend.standardize_dtype(v.dtype), tuple(v.shape), False) for v in states),
            *(Added(entry.name, entry.dtype, entry.shape, True) for entry in entries[second:third]),
            *(Added(entry.name, "float64", entry.shape, True) for entry in entries[third:]),
            *(Added(name, "int64", (), True) for name in ("samples", "epochs", "updates")),
        ]
        self._added = [] if synchronous else added
        self._states, self._metrics = second - first, third - second
        self._sizes = {parameter.name: parameter.size for parameter in self._parameters}
        self.shapes = [self._shapes_of(shard.number) for shard in self.shards]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(shard.bytes for shard in self.shards)

    def make(self, shard: int) -> ShardState:
        """For a server."""
        added = self._added if shard == 0 else ()
        jit_compile = self._engine.model.jit_compile
        return ShardState(self.shards[shard], self._parameters, self._trainable, self._optimizer, added, jit_compile)

    def initial(self, so_far: Pulled | None = None) -> list[Sequence[Array]]:
        """The model's own values, as if they had been pulled; copies. `so_far`: the sums of an epoch that goes on."""
        values = {p.name: self._engine.read(v).reshape(-1) for p, v in self._named()}
        dtypes = {p.name: p.dtype for p in self._parameters}
        weights: list[Sequence[Array]] = [
            [
                values[range.parameter][range.start : range.stop].astype(dtypes[range.parameter])
                for range in shard.ranges
            ]
            for shard in self.shards
        ]
        states = [self._engine.read(self._engine.variables.states[i]).reshape(-1) for i in self._shape.changed]
        if not self._added:
            return weights
        weights[0] = [
            *weights[0],
            *(state.astype(about.dtype) for state, about in zip(states, self._added[: self._states], strict=True)),
            *(np.zeros(_size(about), about.dtype) for about in self._added[self._states :]),
        ]
        if so_far is not None:
            counts = (so_far.samples, (so_far.epoch + 1) * so_far.updates, so_far.updates)
            sums = [*so_far.metrics, *so_far.extras, *map(np.asarray, counts)]
            for place, value in zip(weights[0][len(weights[0]) - len(sums) :], sums, strict=True):
                place[:] = value.reshape(-1)
        return weights

    def epoch_of(self, shard: int, weights: Sequence[Array]) -> int:
        """Of which epoch the sums in a shard's weights are; -1: of none."""
        if not self._added or shard != 0:
            return -1
        epochs, updates = (int(array[0]) for array in weights[-2:])
        return epochs // updates - 1 if updates else -1

    def unpack_weights(self, weights: Sequence[Sequence[Array]]) -> list[Array]:
        """What was pulled, shard by shard, as the trainable variables that have gradients."""
        whole: dict[str, Array] = {}
        for shard, arrays in zip(self.shards, weights, strict=True):
            for range, array in zip(shard.ranges, arrays[: len(shard.ranges)], strict=True):
                size = self._sizes[range.parameter]
                if range.stop - range.start == size:
                    whole[range.parameter] = array
                else:
                    whole.setdefault(range.parameter, np.empty(size, array.dtype))[range.start : range.stop] = array
        return [_readable(whole[p.name]).reshape(p.shape) for p in self._parameters]

    def unpack(self, weights: Sequence[Sequence[Array]]) -> Pulled:
        """What was pulled, shard by shard, in the model's order and shapes."""
        added = weights[0][len(self.shards[0].ranges) :]
        shaped = [array.reshape(about.shape) for array, about in zip(added, self._added, strict=True)]
        second, third = self._states, self._states + self._metrics
        samples, epochs, updates = (int(array) for array in shaped[-3:])
        return Pulled(
            self.unpack_weights(weights),
            [_readable(state) for state in shaped[:second]],
            shaped[second:third],
            shaped[third:-3],
            samples,
            epochs // updates - 1 if updates else -1,
            updates,
        )

    def pack_gradients(self, gradients: Sequence[Array]) -> list[list[Array]]:
        """What is pushed of gradients, shard by shard, where they lie."""
        flat = {p.name: np.ascontiguousarray(g).reshape(-1) for p, g in zip(self._parameters, gradients, strict=True)}
        return [[flat[range.parameter][range.start : range.stop] for range in shard.ranges] for shard in self.shards]

    def pack(
        self,
        arrays: Sequence[Array],
        before: Sequence[Array],
        size: int,
        epoch: int,
        copy: bool,
    ) -> list[list[Array]]:
        """What an update pushes, shard by shard, from what a step gave in the order of its schema.

        `before`: the states that it began with; `size`: its samples. `copy`: the arrays do not last.
        """
        gradients, states, metrics, extras = self._shape.split(arrays)
        parcels = self.pack_gradients(gradients)
        if copy:
            parcels = [[np.array(part) for part in parcel] for parcel in parcels]
        changes = [new - old.reshape(new.shape) for new, old in zip(states, before, strict=True)]
        sums = [np.asarray(extras[name], np.float64) * size for name in self._shape.extras]
        added = [*changes, *metrics, *sums, size, epoch + 1, 1]
        kinds = self.shapes[0].gradients[len(self.shards[0].ranges) :]
        parcels[0] += [np.array(value, kind.dtype).reshape(-1) for value, kind in zip(added, kinds, strict=True)]
        return parcels

    def _named(self) -> list[tuple[Any, Any]]:
        return list(zip(self._parameters, self._trainable, strict=True))

    def _shapes_of(self, number: int) -> ShardShapes:
        kinds = {parameter.name: parameter.dtype for parameter in self._parameters}
        ranges = self.shards[number].ranges
        held = [(kinds[range.parameter], range.stop - range.start) for range in ranges]
        held += [(about.dtype, _size(about)) for about in (self._added if number == 0 else ())]
        weights = tuple(ArrayShape(dtype, size) for dtype, size in held)
        return ShardShapes(weights, tuple(ArrayShape(_of_update(dtype), size) for dtype, size in held))


def _size(added: Added) -> int:
    return int(np.prod(added.shape, dtype=np.int64))


def _of_update(dtype: str) -> str:
    """How gradients of such weights, or additions to such sums, travel."""
    if "int" in dtype:
        return "int64"
    return "float32" if dtype in ("bfloat16", "float16") else dtype


def _readable(array: Array) -> Array:
    """Not every backend takes numpy's idea of bfloat16."""
    return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array

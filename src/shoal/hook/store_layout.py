"""How a model's variables lie in shards, and what travels of each between workers and servers.

The first shard carries what is no parameter too: moving statistics, and the sums of the epoch's metrics. An update adds
to those, exactly once, as it is applied exactly once to the weights. So it does with the scale of the loss (float16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import ml_dtypes
import msgspec
import numpy as np

from shoal.hook.engine import AbstractEngine, StepShape, is_window
from shoal.hook.row_table import RowTable
from shoal.hook.shard_state import OF_SCALE, OF_SCALED, Added, ShardState, parameters_of
from shoal.hook.tables import Ids, TableShards, layers_of
from shoal.store.shards import Needs, Parameter, Shard, cut
from shoal.store.tensors import AnyShapes, ArrayShape, ShardShapes
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
        trained = [engine.variables.trainable[i] for i in shape.gradients]
        self.variables = [variable for variable in trained if not is_window(variable)]  # with gradients
        self._dense = [place for place, variable in enumerate(trained) if not is_window(variable)]
        layers = layers_of(engine.model)
        places = {id(variable): place for place, variable in enumerate(trained)}
        self._windows = [places.get(id(layer.window)) for layer in layers]  # among the gradients
        self._parameters = parameters_of(self.variables, optimizer)
        whole = sum(parameter.bytes for parameter in self._parameters)
        # One server has them all: nobody is relieved of a part, and workers would have to put the parts together.
        parts = self._parameters if servers > 1 else [_uncut(parameter) for parameter in self._parameters]
        self.shards = cut(parts, max(1, min(2 * servers, whole // SHARD_BYTES)))
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
        self._scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self._states, self._metrics = second - first, third - second
        self._sizes = {parameter.name: parameter.size for parameter in self._parameters}
        self.tables = TableShards(layers, servers, SHARD_BYTES, len(self.shards))
        self.shapes: list[AnyShapes] = [*map(self._shapes_of, self.shards), *self.tables.shapes]

    @property
    def sizes(self) -> tuple[int, ...]:
        return (*(shard.bytes for shard in self.shards), *self.tables.sizes)

    def make(self, number: int, scales: bool = False) -> ShardState:
        """A shard that is no table's, for a server. `scales`: stale updates count less."""
        first, jit_compile = number == 0, self._engine.model.jit_compile
        added, shard = self._added if first else (), self.shards[number]
        return ShardState(shard, self._parameters, self.variables, self._optimizer, added, first, scales, jit_compile)

    def fits(self, number: int, state: ShardState, scales: bool) -> bool:
        """Whether a shard that was made before is as `make` would make it now."""
        return state.added == tuple(self._added if number == 0 else ()) and state.scales == scales

    def make_table(self, number: int) -> RowTable:
        """A part of a table, for a server."""
        return self.tables.make(number, self._optimizer, self._engine.model.jit_compile)

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
        weights[0] = [
            *weights[0],
            *(state.astype(about.dtype) for state, about in zip(states, self._added[: self._states], strict=False)),
            *(np.zeros(_size(about), about.dtype) for about in self._added[self._states :]),
            *([np.full(1, self._engine.loss_scale, np.float32)] if self._scaled else ()),
        ]
        if so_far is not None:
            counts = (so_far.samples, (so_far.epoch + 1) * so_far.updates, so_far.updates)
            sums = [*so_far.metrics, *so_far.extras, *map(np.asarray, counts)]
            first = len(self.shards[0].ranges) + self._states
            for place, value in zip(weights[0][first : first + len(sums)], sums, strict=True):
                place[:] = value.reshape(-1)
        return weights

    def epoch_of(self, shard: int, weights: Sequence[Array]) -> int:
        """Of which epoch the sums in a shard's weights are; -1: of none."""
        if not self._added or shard != 0:
            return -1
        told = weights[:-1] if self._scaled else weights
        epochs, updates = (int(array[0]) for array in told[-2:])
        return epochs // updates - 1 if updates else -1

    def unpack_weights(self, weights: Sequence[Sequence[Array]]) -> list[Array]:
        """What was pulled, shard by shard, as the values of `variables`."""
        whole: dict[str, Array] = {}
        for shard, arrays in zip(self.shards, weights, strict=False):  # behind them come tables
            for range, array in zip(shard.ranges, arrays[: len(shard.ranges)], strict=True):
                size = self._sizes[range.parameter]
                if range.stop - range.start == size:
                    whole[range.parameter] = array
                else:
                    whole.setdefault(range.parameter, np.empty(size, array.dtype))[range.start : range.stop] = array
        return [_readable(whole[p.name]).reshape(p.shape) for p in self._parameters]

    def loss_scale(self, weights: Sequence[Sequence[Array]]) -> float | None:
        """That was pulled; None where the loss is not scaled, or always by the same."""
        return float(weights[0][-1][0]) if self._scaled else None

    def unpack(self, weights: Sequence[Sequence[Array]]) -> Pulled:
        """What was pulled, shard by shard, in the model's order and shapes."""
        added = weights[0][len(self.shards[0].ranges) :][: len(self._added)]
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

    def pack_gradients(self, gradients: Sequence[Array], ids: Ids, counts: bool) -> list[list[Array]]:
        """What is pushed of a step's gradients, by shard, where they lie. `ids`: of tables. `counts`: as it says."""
        dense = [parts + self._about(counts) for parts in self._by_shard(self._of_variables(gradients))]
        return dense + self.tables.pack(ids, self._of_windows(gradients))

    def counts(self, gradients: Sequence[Array]) -> bool:
        """Whether a step's gradients change the weights: not if the loss was scaled too much for float16."""
        return self._count(self._of_variables(gradients))

    def _of_variables(self, gradients: Sequence[Array]) -> list[Array]:
        return [gradients[place] for place in self._dense]

    def _of_windows(self, gradients: Sequence[Array]) -> list[Array | None]:
        return [None if place is None else gradients[place] for place in self._windows]

    def _count(self, gradients: Sequence[Array]) -> bool:
        if not self._scaled:
            return True
        kinds = (np.dtype(parameter.dtype) for parameter in self._parameters)
        with np.errstate(over="ignore"):
            return all(
                bool(np.isfinite(gradient.astype(kind, copy=False)).all())
                for gradient, kind in zip(gradients, kinds, strict=True)
            )

    def _by_shard(self, gradients: Sequence[Array]) -> list[list[Array]]:
        flat = {p.name: np.ascontiguousarray(g).reshape(-1) for p, g in zip(self._parameters, gradients, strict=True)}
        return [[flat[range.parameter][range.start : range.stop] for range in shard.ranges] for shard in self.shards]

    def _about(self, counts: bool) -> list[Array]:
        """What every shard must know of gradients whose loss was scaled."""
        return [np.array([self._engine.loss_scale, counts], np.float32)] if self._scaled else []

    def pack(
        self,
        arrays: Sequence[Array],
        before: Sequence[Array],
        size: int,
        epoch: int,
        copy: bool,
        ids: Ids,
    ) -> list[list[Array]]:
        """What an update pushes, shard by shard, from what a step gave in the order of its schema.

        `before`: the states that it began with; `size`: its samples. `copy`: the arrays do not last. `ids`: of each
        table, those of the rows that it began with.
        """
        gradients, states, metrics, extras = self._shape.split(arrays)
        dense = self._of_variables(gradients)
        parcels, about = self._by_shard(dense), self._about(self._count(dense))
        if copy:
            parcels = [[np.array(part) for part in parcel] for parcel in parcels]
        changes = [new - old.reshape(new.shape) for new, old in zip(states, before, strict=True)]
        sums = [np.asarray(extras[name], np.float64) * size for name in self._shape.extras]
        added = [*changes, *metrics, *sums, size, epoch + 1, 1]
        kinds = self.shapes[0].pushed(0)[len(self.shards[0].ranges) :][: len(added)]
        parcels[0] += [np.array(value, kind.dtype).reshape(-1) for value, kind in zip(added, kinds, strict=True)]
        return [parcel + about for parcel in parcels] + self.tables.pack(ids, self._of_windows(gradients))

    def _named(self) -> list[tuple[Any, Any]]:
        return list(zip(self._parameters, self.variables, strict=True))

    def _shapes_of(self, shard: Shard) -> ShardShapes:
        kinds = {parameter.name: parameter.dtype for parameter in self._parameters}
        held = [(kinds[range.parameter], range.stop - range.start) for range in shard.ranges]
        held += [(about.dtype, _size(about)) for about in (self._added if shard.number == 0 else ())]
        weights = [ArrayShape(dtype, size) for dtype, size in held]
        updates = [ArrayShape(_of_update(dtype), size) for dtype, size in held]
        if self._scaled:
            weights += [ArrayShape("float32", *OF_SCALE.shape)] if shard.number == 0 else []
            updates.append(ArrayShape("float32", *OF_SCALED.shape))
        return ShardShapes(tuple(weights), tuple(updates), len(updates) - len(shard.ranges))


def _uncut(parameter: Parameter) -> Parameter:
    return msgspec.structs.replace(parameter, needs=Needs.WHOLE) if parameter.needs is Needs.SLICES else parameter


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

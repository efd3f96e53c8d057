"""How a model's variables lie in shards, and what travels of each between workers and servers.

The first shard carries what is no parameter too: moving statistics, and the sums of the epoch's metrics. An update adds
to those, exactly once, as it is applied exactly once to the weights. So it does with the scale of the loss (float16).
Beside the sums lies the epoch that they are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import msgspec
import numpy as np

from shoal.collectives.arrays import ArraySpec
from shoal.store.decisions.shards import Needs, Parameter, Shard, into_shards
from shoal.store.values.tensors import AnyShapes, ArrayShape, ShardShapes
from shoal.strategies.schema import Array
from shoal.training.engine import Engine, PartShape, is_window
from shoal.training.optimizer import TrainedOptimizer
from shoal.training.tables import Ids, TableLayer, TableShards

SHARD_BYTES = 1 << 20  # a smaller shard is not worth its messages


class Added(msgspec.Struct, frozen=True):
    """An array to which updates are added: a moving statistic, or a metric's variable, which resets with the epoch."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    resets: bool


NO_EPOCH = -1  # of sums to which nothing was added yet
OF_SCALE = ArraySpec("<f4", (1,))  # beside weights: of the next loss
OF_SCALED = ArraySpec("<f4", (2,))  # beside an update: the scale of its loss, and 1 if all gradients are finite, else 0


class PulledState(NamedTuple):
    """All that a worker has pulled, in the model's order."""

    trainable: list[Array]
    states: list[Array]
    metrics: list[Array]  # their changes in the epoch so far
    extras: list[Array]  # logs that are no metric, each times the samples of its batch
    samples: int  # in the epoch so far
    epoch: int  # that these are of, or NO_EPOCH
    updates: int = 0  # in the epoch so far


class ShardLayout(Protocol):
    """What lies in shards, the same wherever the model is built. Tables come behind all else."""

    @property
    def optimizer(self) -> Any | None:
        """Keras's, that updates it; None: nobody does."""

    variables: list[Any]
    shards: tuple[Shard, ...]  # of the variables
    tables: TableShards
    shapes: list[AnyShapes]  # of all shards

    @property
    def sizes(self) -> tuple[int, ...]:
        """In bytes."""


class TablesLayout:
    """The tables of a model alone, to be looked at."""

    optimizer = None

    def __init__(self, layers: Sequence[TableLayer], servers: int) -> None:
        self.variables: list[Any] = []
        self.shards: tuple[Shard, ...] = ()
        self.tables = TableShards(layers, servers, SHARD_BYTES, 0)
        self.shapes: list[AnyShapes] = list(self.tables.shapes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.tables.sizes)


class StoreLayout:
    """The shards of one model that is trained."""

    def __init__(
        self,
        engine: Engine,
        shape: PartShape,
        optimizer: TrainedOptimizer,
        layers: Sequence[TableLayer],
        servers: int,
        synchronous: bool = False,
    ) -> None:
        """`layers`: the model's tables. `synchronous`: the workers keep statistics and metrics themselves, alike."""
        self._engine = engine
        self._shape = shape
        self.optimizer = optimizer.own
        trained = [engine.variables.trainable[i] for i in shape.gradients]
        self.variables = [variable for variable in trained if not is_window(variable)]  # with gradients
        self._dense = [place for place, variable in enumerate(trained) if not is_window(variable)]
        places = {id(variable): place for place, variable in enumerate(trained)}
        self._windows = [places.get(id(layer.window)) for layer in layers]  # among the gradients
        self.parameters = optimizer.parameters(self.variables)
        whole = sum(parameter.bytes for parameter in self.parameters)
        # One server has them all: nobody is relieved of a part, and workers would have to put the parts together.
        parts = self.parameters if servers > 1 else [_uncut(parameter) for parameter in self.parameters]
        self.shards = into_shards(parts, max(1, min(2 * servers, whole // SHARD_BYTES)))
        entries = shape.schema.entries
        first, second = len(shape.gradients), len(shape.gradients) + len(shape.changed)
        third = len(entries) - len(shape.extras)
        states = [engine.variables.weights[i] for i in shape.changed]
        added = (
            *(Added(v.path, str(v.dtype), tuple(v.shape), False) for v in states),
            *(Added(entry.name, entry.dtype, entry.shape, True) for entry in entries[second:third]),
            *(Added(entry.name, "float64", entry.shape, True) for entry in entries[third:]),
            *(Added(name, "int64", (), True) for name in ("samples", "updates")),
        )
        self._added = () if synchronous else added
        self._scaled = optimizer.scales_loss
        self._states, self._metrics = second - first, third - second
        self._sizes = {parameter.name: parameter.size for parameter in self.parameters}
        self.tables = TableShards(layers, servers, SHARD_BYTES, len(self.shards))
        self.shapes: list[AnyShapes] = [*map(self._shapes_of, self.shards), *self.tables.shapes]

    def added_to(self, number: int) -> tuple[Added, ...]:
        """What is added up beside a shard's parameters."""
        return self._added if number == 0 else ()

    @property
    def sizes(self) -> tuple[int, ...]:
        return (*(shard.bytes for shard in self.shards), *self.tables.sizes)

    def initial(self, so_far: PulledState | None = None) -> list[Sequence[Array]]:
        """The model's own values, as if they had been pulled; copies. `so_far`: the sums of an epoch that goes on."""
        values = {p.name: self._engine.read(v).reshape(-1) for p, v in self._named()}
        dtypes = {p.name: p.dtype for p in self.parameters}
        weights: list[Sequence[Array]] = [
            [
                values[range.parameter][range.start : range.stop].astype(dtypes[range.parameter])
                for range in shard.ranges
            ]
            for shard in self.shards
        ]
        states = [self._engine.read(self._engine.variables.weights[i]).reshape(-1) for i in self._shape.changed]
        weights[0] = [
            *weights[0],
            *(state.astype(about.dtype) for state, about in zip(states, self._added[: self._states], strict=False)),
            *(np.zeros(_size(about), about.dtype) for about in self._added[self._states :]),
            *([np.array([NO_EPOCH])] if self._added else ()),
            *([np.full(1, self._engine.loss_scale, np.float32)] if self._scaled else ()),
        ]
        if so_far is not None:
            counts = (so_far.samples, so_far.updates, so_far.epoch)
            sums = [*so_far.metrics, *so_far.extras, *map(np.asarray, counts)]
            first = len(self.shards[0].ranges) + self._states
            for place, value in zip(weights[0][first : first + len(sums)], sums, strict=True):
                place[:] = value.reshape(-1)
        return weights

    def assigned(self, count: int | None) -> list[Sequence[Array]]:
        """The model's own values, to replace those that servers have, shard by shard; copies. `count`: the optimizer's,
        if that is to be replaced too.
        """
        counted = np.array([-1 if count is None else count])
        values = zip(self.shards, self.initial(), strict=True)
        return [[*arrays[: self._assignable(shard)], counted] for shard, arrays in values]

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
        return [_readable(whole[p.name]).reshape(p.shape) for p in self.parameters]

    def loss_scale(self, weights: Sequence[Sequence[Array]]) -> float | None:
        """That was pulled; None where the loss is not scaled, or always by the same."""
        return float(weights[0][-1][0]) if self._scaled else None

    def unpack(self, weights: Sequence[Sequence[Array]]) -> PulledState:
        """What was pulled, shard by shard, in the model's order and shapes."""
        *added, epoch = weights[0][len(self.shards[0].ranges) :][: len(self._added) + 1]
        shaped = [array.reshape(about.shape) for array, about in zip(added, self._added, strict=True)]
        second, third = self._states, self._states + self._metrics
        samples, updates = (int(array) for array in shaped[-2:])
        return PulledState(
            self.unpack_weights(weights),
            [_readable(state) for state in shaped[:second]],
            shaped[second:third],
            shaped[third:-2],
            samples,
            int(epoch[0]),
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
        kinds = (np.dtype(parameter.dtype) for parameter in self.parameters)
        with np.errstate(over="ignore"):
            return all(
                bool(np.isfinite(gradient.astype(kind, copy=False)).all())
                for gradient, kind in zip(gradients, kinds, strict=True)
            )

    def _by_shard(self, gradients: Sequence[Array]) -> list[list[Array]]:
        flat = {p.name: np.ascontiguousarray(g).reshape(-1) for p, g in zip(self.parameters, gradients, strict=True)}
        return [[flat[range.parameter][range.start : range.stop] for range in shard.ranges] for shard in self.shards]

    def _about(self, counts: bool) -> list[Array]:
        """What every shard must know of gradients whose loss was scaled."""
        return [np.array([self._engine.loss_scale, counts], np.float32)] if self._scaled else []

    def pack(
        self,
        arrays: Sequence[Array],
        before: Sequence[Array],
        size: int,
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
        added = [*changes, *metrics, *sums, size, 1]
        kinds = self.shapes[0].pushed(0)[len(self.shards[0].ranges) :][: len(added)]
        parcels[0] += [np.array(value, kind.dtype).reshape(-1) for value, kind in zip(added, kinds, strict=True)]
        return [parcel + about for parcel in parcels] + self.tables.pack(ids, self._of_windows(gradients))

    def _named(self) -> list[tuple[Any, Any]]:
        return list(zip(self.parameters, self.variables, strict=True))

    def _shapes_of(self, shard: Shard) -> ShardShapes:
        kinds = {parameter.name: parameter.dtype for parameter in self.parameters}
        held = [(kinds[range.parameter], range.stop - range.start) for range in shard.ranges]
        held += [(about.dtype, _size(about)) for about in self.added_to(shard.number)]
        weights = [ArrayShape(dtype, size) for dtype, size in held]
        updates = [ArrayShape(_of_update(dtype), size) for dtype, size in held]
        weights += [ArrayShape("int64", 1)] if self.added_to(shard.number) else []
        if self._scaled:
            weights += [ArrayShape("float32", OF_SCALE.shape[0])] if shard.number == 0 else []
            updates.append(ArrayShape("float32", OF_SCALED.shape[0]))
        assigned = (*weights[: self._assignable(shard)], ArrayShape("int64", 1))
        return ShardShapes(tuple(weights), tuple(updates), len(updates) - len(shard.ranges), assigned)

    def _assignable(self, shard: Shard) -> int:
        """How many of a shard's arrays are the model's variables. Those behind them only servers can tell."""
        return len(shard.ranges) + (min(self._states, len(self._added)) if shard.number == 0 else 0)


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

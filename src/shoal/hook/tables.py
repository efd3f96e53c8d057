"""A worker's dealings with tables that live on servers: which rows a batch needs, and how they get into the model.

batch ──▶ ids of every table, each once and in order ──▶ rows from their parts' servers ──▶ the layers' windows
gradients of the windows ──▶ rows that have one, by part ──▶ their servers
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np

from shoal.collectives.group import AbstractGroup
from shoal.data.sources import Spec
from shoal.errors import CannotDistribute, UsageError
from shoal.hook import feeds
from shoal.hook.engine import AbstractEngine
from shoal.hook.row_table import RowTable
from shoal.hook.shard_optimizer import needs_of
from shoal.hook.sharded_embedding import NOWHERE, ShardedEmbedding, collecting
from shoal.store.client import Client
from shoal.store.rows import Table, deal
from shoal.store.shards import Needs
from shoal.store.tensors import Array, RowShapes

_NO_IDS = np.empty(0, np.int64)

Ids = list[Array]  # of each table: those that a batch needs, each once and in order


def layers_of(model: Any) -> list[Any]:
    """The model's tables that live on servers, in an order that is the same wherever it is built."""
    found = [layer for layer in model._flatten_layers() if isinstance(layer, ShardedEmbedding) and layer.is_sharded]
    return list(dict.fromkeys(found))


class TableShards:
    """How a model's tables are cut into shards, which come behind those of its other variables."""

    def __init__(self, layers: Sequence[Any], servers: int, smallest: int, first: int) -> None:
        """`smallest`: bytes below which a shard is not worth its messages. `first`: the first shard's number."""
        self.layers = layers
        self.tables = [_table(layer, servers, smallest) for layer in layers]
        parts = [(table, part) for table in range(len(layers)) for part in range(self.tables[table].parts)]
        self._held = dict(enumerate(parts, first))  # shard -> which part of which table
        self._shards = {held: shard for shard, held in self._held.items()}

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._held)

    @property
    def shapes(self) -> list[RowShapes]:
        about = ((self.tables[table], part) for table, part in self._held.values())
        return [RowShapes(table.rows_of(part), table.width) for table, part in about]

    @property
    def sizes(self) -> list[int]:
        return [shape.rows * shape.width * 4 for shape in self.shapes]

    def of_table(self, table: int) -> list[int]:
        return [self._shards[table, part] for part in range(self.tables[table].parts)]

    def place(self, shard: int) -> tuple[int, Table, int]:
        """Which table it is of, and which part of that."""
        table, part = self._held[shard]
        return table, self.tables[table], part

    def make(self, shard: int, optimizer: Any, jit_compile: bool | None) -> RowTable:
        """For a server."""
        table, part = self._held[shard]
        layer = self.layers[table]
        weakly = weakref.ref(layer)  # a server keeps its rows, but only while the script has it

        def loaded() -> tuple[Array, Array] | None:
            known = weakly()
            return known.given if known is not None else None

        return RowTable(self.tables[table], part, layer.window.path, optimizer, jit_compile, loaded)

    def ask(self, ids: Ids) -> dict[int, Array]:
        """What is to be asked for, shard by shard."""
        return {
            self._shards[table, part]: wanted[places]
            for table, wanted in enumerate(ids)
            for part, places in enumerate(deal(wanted, self.tables[table].parts))
        }

    def join(self, ids: Ids, answers: Mapping[int, Array]) -> list[Array]:
        """The rows of every table, in the order of its ids, from what shards have answered."""
        joined = []
        for table, wanted in enumerate(ids):
            width, parts = self.tables[table].width, self.tables[table].parts
            if parts == 1:
                joined.append(answers[self._shards[table, 0]].reshape(-1, width))
                continue
            rows = np.empty((wanted.size, width), np.float32)
            for part, places in enumerate(deal(wanted, parts)):
                rows[places] = answers[self._shards[table, part]].reshape(-1, width)
            joined.append(rows)
        return joined

    def pack(self, ids: Ids, gradients: Sequence[Array | None]) -> list[list[Array]]:
        """What an update pushes: for every shard ids, and a gradient for each; copies. Only of rows that have one."""
        parcels: list[list[Array]] = []
        for table, (wanted, gradient) in enumerate(zip(ids, gradients, strict=True)):
            width, parts = self.tables[table].width, self.tables[table].parts
            whole = np.zeros((0, width), np.float32) if gradient is None else gradient.reshape(-1, width)[: wanted.size]
            touched = np.flatnonzero(whole.any(axis=1))
            mine = wanted[touched]
            parcels += [
                [mine[places], np.asarray(whole[touched[places]], np.float32).reshape(-1)]
                for places in deal(mine, parts)
            ]
        return parcels


class Tables:
    """The tables of one model, as a worker uses them."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self.layers = layers_of(model)
        self._collect: Callable[[Any], Any] | None = None
        self._called: list[int] = []  # for each call of a table in the model: which
        self._shards: TableShards | None = None
        self._client: Client | None = None

    def __bool__(self) -> bool:
        return bool(self.layers)

    def widen(self, spec: Spec, request: feeds.Request, exactly: bool = False) -> None:
        """Makes room for the rows of a batch of such data, and for no others if `exactly`: then all workers have the
        same, whatever they have seen before. Before the model gets its engine.
        """
        if self.layers:
            wanted = [0] * len(self.layers)
            for table, found in self._found(feeds.example(spec, feeds.size_of_batches(request, spec))):
                wanted[table] += found.size
            for layer, count in zip(self.layers, wanted, strict=True):
                needed = min(count, layer.input_dim)
                layer.resize(needed if exactly else max(needed, layer.room))
            for layer in self._whole_model._flatten_layers():
                if hasattr(layer, "_torch_params"):  # which has every variable of the layers below, too
                    layer._track_variables()

    def ids(self, batch: Any, name: Callable[[int], str]) -> Ids:
        """Which rows a batch needs. `name` names its n-th sample, for errors."""
        wanted: list[list[Array]] = [[] for _ in self.layers]
        for table, found in self._found(batch):
            _refuse_outside(self.layers[table], found, name)
            wanted[table].append(found.reshape(-1))
        ids = [np.unique(np.concatenate(parts)).astype(np.int64) for parts in wanted]
        for layer, mine in zip(self.layers, ids, strict=True):
            _check_room(layer, mine)
        return ids

    def no_ids(self) -> Ids:
        """What no sample needs."""
        return [_NO_IDS] * len(self.layers)

    def show(self, engine: AbstractEngine, ids: Ids, rows: Sequence[Array]) -> None:
        """Put these rows into the windows."""
        windows = [np.zeros((layer.room, layer.output_dim), np.float32) for layer in self.layers]
        names = [np.full(layer.room, NOWHERE, np.int32) for layer in self.layers]
        for window, name, mine, found in zip(windows, names, ids, rows, strict=True):
            window[: mine.size], name[: mine.size] = found, mine
        engine.adopt([layer.window for layer in self.layers], windows)
        engine.write([layer.window_ids for layer in self.layers], names)

    # Beside training --------------------------------------------------------------------------------

    def open(self, shards: TableShards, client: Client) -> None:
        """From now on rows can be looked at: a training has begun."""
        self._shards, self._client = shards, client

    def close(self) -> None:
        self._client = None

    def bring(self, engine: AbstractEngine, batch: Any, number: int) -> None:
        """Put the rows that a batch needs into the windows, as they are now. To test or predict."""
        if not self.layers:
            return
        trained = _opened(self.layers)
        ids = self.ids(batch, lambda sample: f"sample {sample} of batch {number}")
        self.show(engine, ids, trained.look_up(self.layers, ids))

    def bring_for_all(self, engine: AbstractEngine, mine: Ids, group: AbstractGroup) -> Ids:
        """Within an act, for one step of all workers. Returns the ids that they need together, in whose order their
        windows are; this worker's has only the rows that it needs itself.
        """
        _, client = self._store
        *told, views = zip(*group.gather_rows("ids", [*mine, np.array([client.view])]), strict=True)
        least = int(max(view[0] for view in views))  # in which all updates before were acknowledged
        needed = [np.unique(np.concatenate(ids)) for ids in told]
        found = zip(self.layers, needed, mine, self.look_up(self.layers, mine, least), strict=True)
        windows = []
        for layer, ids, own, rows in found:
            _check_room(layer, ids)
            window = np.zeros((ids.size, layer.output_dim), np.float32)
            window[np.searchsorted(ids, own)] = rows
            windows.append(window)
        self.show(engine, needed, windows)
        return needed

    def look_up(self, layers: Sequence[Any], ids: Ids, least: int = 0) -> list[Array]:
        """The rows with these ids of some of the tables."""
        shards, client = self._store
        wanted = dict(zip(layers, ids, strict=True))
        whole = [wanted.get(layer, _NO_IDS) for layer in self.layers]
        rows = dict(zip(self.layers, shards.join(whole, client.look(0, shards.ask(whole), least)), strict=True))
        return [rows[layer] for layer in layers]

    def all_rows(self, layer: Any) -> tuple[Array, Array]:
        """Ids and values of the rows of a table that were ever updated, in the order of ids."""
        shards, client = self._store
        table = self.layers.index(layer)
        parts = [part for shard in shards.of_table(table) for part in client.listed(shard)]
        ids = np.concatenate([ids for ids, _ in parts])
        rows = np.concatenate([rows.reshape(-1, layer.output_dim) for _, rows in parts])
        order = np.argsort(ids)
        return ids[order], rows[order]

    @property
    def is_open(self) -> bool:
        return self._client is not None

    @property
    def _store(self) -> tuple[TableShards, Client]:
        assert self._shards is not None, "open first"
        assert self._client is not None, "open first"
        return self._shards, self._client

    # Which ids --------------------------------------------------------------------------------------

    def _found(self, batch: Any) -> list[tuple[int, Array]]:
        """For each call of a table: which one, and the ids."""
        inputs = feeds.inputs_of(batch)
        if self._collect is None:
            self._called = self._calls(inputs)
            self._collect = _compiled(self._ids_of)
        found = self._collect(inputs)
        return [
            (table, np.asarray(keras.ops.convert_to_numpy(ids))) for table, ids in zip(self._called, found, strict=True)
        ]

    def _calls(self, inputs: Any) -> list[int]:
        """Which tables the model calls, in its order."""
        called: list[int] = []

        def noted(inputs: Any) -> Any:
            with keras.StatelessScope(), collecting() as found:
                self._whole_model(inputs, training=False)
            called.extend(self.layers.index(layer) for layer, _ in found)
            return [ids for _, ids in found]

        _trace(noted, keras.tree.map_structure(lambda leaf: leaf[:1], inputs))
        missing = [layer.name for table, layer in enumerate(self.layers) if table not in called]
        if missing:
            raise CannotDistribute(
                f"calling the model does not call {', '.join(missing)}. Shoal finds the rows that a batch needs by "
                "calling the model on its inputs: use every ShardedEmbedding in `call`."
            )
        return called

    @property
    def _whole_model(self) -> Any:
        model = self._model()
        assert model is not None, "whoever uses a model holds it"
        return model

    def _ids_of(self, inputs: Any) -> list[Any]:
        with keras.StatelessScope(), collecting(enough=len(self._called)) as found:
            self._whole_model(inputs, training=False)
        return [ids for _, ids in found]


_tables: weakref.WeakKeyDictionary[Any, Tables] = weakref.WeakKeyDictionary()


def tables_of(model: Any) -> Tables:
    """A built model's tables that live on servers."""
    known = _tables.get(model)
    if known is None or known.layers != layers_of(model):
        known = _tables[model] = Tables(model)
    return known


def rows_of(layer: Any) -> tuple[Array, Array]:
    """Ids and values of a table's rows that were ever updated, from the servers."""
    return _opened([layer]).all_rows(layer)


def _opened(layers: Sequence[Any]) -> Tables:
    """Those of the model that was trained last, if they are among them."""
    for tables in _tables.values():
        if tables.is_open and all(layer in tables.layers for layer in layers):
            return tables
    raise UsageError(
        f"the rows of {layers[0].name} are on servers, which give them out from a fit of the model on, until another "
        "model is trained. Call fit first, or run this script without servers."
    )


def refuse_unless_row_wise(optimizer: Any) -> None:
    """Raises for optimizers that can't update some rows of a table alone."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise CannotDistribute(
            "a ShardedEmbedding on servers can't be trained in mixed_float16 yet; use mixed_bfloat16"
        )
    if needs_of(optimizer) is not Needs.SLICES:
        raise CannotDistribute(
            f"a ShardedEmbedding on servers needs an optimizer that treats every number by itself; this {kind} looks "
            "at whole tensors (clipnorm, global_clipnorm, or by its nature). Use Adam, Adagrad, Ftrl, SGD or RMSprop, "
            "with clipvalue if need be."
        )
    if optimizer.use_ema or optimizer.gradient_accumulation_steps:
        raise CannotDistribute(
            f"a ShardedEmbedding on servers can't be trained with use_ema or gradient_accumulation_steps yet ({kind})"
        )


def _table(layer: Any, servers: int, smallest: int) -> Table:
    whole = layer.input_dim * layer.output_dim * 4
    parts = max(1, min(servers, whole // smallest))
    return Table(layer.name, layer.input_dim, layer.output_dim, layer.new_rows, parts)


def _check_room(layer: Any, ids: Array) -> None:
    if ids.size > layer.room:
        raise UsageError(
            f"a batch has {ids.size:,} different ids for {layer.name}, and the first one had at most {layer.room:,}. "
            "Give batches of one size, or the largest first."
        )


def _refuse_outside(layer: Any, ids: Array, name: Callable[[int], str]) -> None:
    outside = np.flatnonzero((ids < 0) | (ids >= layer.input_dim))
    if outside.size:
        sample = int(outside[0]) // max(1, ids[0].size)
        found = ids.reshape(-1)[outside[0]]
        raise UsageError(
            f"{layer.name}: the id {found} in {name(sample)} is not one of its {layer.input_dim:,} rows "
            f"(0 to {layer.input_dim - 1:,})"
        )


def _trace(function: Callable[[Any], Any], inputs: Any) -> None:
    """Calls it once, without computing anything where the backend has a way to."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        jax.eval_shape(function, inputs)
    elif backend == "tensorflow":
        import tensorflow as tf

        tf.function(function, autograph=False).get_concrete_function(inputs)
    else:
        import torch

        torch.no_grad()(function)(inputs)


def _compiled(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """As one program, where the backend has such a thing."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return cast("Callable[[Any], Any]", jax.jit(function))
    if backend == "tensorflow":
        import tensorflow as tf

        return cast("Callable[[Any], Any]", tf.function(function, autograph=False, reduce_retracing=True))
    import torch

    return cast("Callable[[Any], Any]", torch.no_grad()(function))

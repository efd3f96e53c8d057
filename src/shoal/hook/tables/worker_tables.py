"""A worker's dealings with tables that live on servers: which rows a batch needs, and how they get into the model.

batch ──▶ ids of every table, each once and in order ──▶ rows from their parts' servers ──▶ the layers' windows
gradients of the windows ──▶ rows that have one, by part ──▶ their servers
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import keras
import numpy as np

from shoal.collectives.group import AbstractGroup
from shoal.data.sources import Spec
from shoal.errors import CannotDistribute, UsageError
from shoal.hook import keras_private
from shoal.hook.calls import feeds
from shoal.hook.tables.sharded_embedding import NOWHERE, ShardedEmbedding, collecting
from shoal.store.client import Client
from shoal.store.values.tensors import Array
from shoal.training.engine import Engine
from shoal.training.run import Run
from shoal.training.tables import Ids, TableShards

_NO_IDS = np.empty(0, np.int64)


def layers_of(model: Any) -> list[Any]:
    """The model's tables that live on servers, in an order that is the same wherever it is built."""
    found = [
        layer for layer in keras_private.layers_in(model) if isinstance(layer, ShardedEmbedding) and layer.is_sharded
    ]
    return list(dict.fromkeys(found))


class ModelTables:
    """The tables of one model, as a worker uses them."""

    def __init__(self, model: Any, others: TablesOnServers) -> None:
        self._model = weakref.ref(model)
        self._others = others
        self.layers = layers_of(model)
        self._collect: Callable[[Any], Any] | None = None
        self._called: list[int] = []  # for each call of a table in the model: which
        self._windows: list[Any] = []
        self._shards: TableShards | None = None
        self._client: Client | None = None

    def __bool__(self) -> bool:
        return bool(self.layers)

    def widen(self, spec: Spec, request: feeds.DataRequest, exactly: bool = False) -> None:
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
            for layer in keras_private.layers_in(self._whole_model):
                keras_private.track_again(layer)
            self._forget_other_windows()

    def ids(self, batch: Any, name: Callable[[int], str]) -> Ids:
        wanted: list[list[Array]] = [[] for _ in self.layers]
        for table, found in self._found(batch):
            _refuse_outside(self.layers[table], found, name)
            wanted[table].append(found.reshape(-1))
        ids = [np.unique(np.concatenate(parts)).astype(np.int64) for parts in wanted]
        for layer, mine in zip(self.layers, ids, strict=True):
            _check_room(layer, mine)
        return ids

    def no_ids(self) -> Ids:
        return [_NO_IDS] * len(self.layers)

    def show(self, engine: Engine, ids: Ids, rows: Sequence[Array]) -> None:
        windows = [np.zeros((layer.room, layer.output_dim), np.float32) for layer in self.layers]
        names = [np.full(layer.room, NOWHERE, np.int32) for layer in self.layers]
        for window, name, mine, found in zip(windows, names, ids, rows, strict=True):
            window[: mine.size], name[: mine.size] = found, mine
        engine.adopt([layer.window for layer in self.layers], windows)
        engine.write([layer.window_ids for layer in self.layers], names)

    def _forget_other_windows(self) -> None:
        """Keras keeps its functions, and on TensorFlow they know the variables that they were made with."""
        windows = [layer.window for layer in self.layers]
        if list(map(id, windows)) != list(map(id, self._windows)):
            self._windows = windows
            for kind in ("train", "test", "predict"):
                setattr(self._whole_model, f"{kind}_function", None)

    # Beside training --------------------------------------------------------------------------------

    def open(self, shards: TableShards, client: Client) -> None:
        self._shards, self._client = shards, client

    def close(self) -> None:
        self._client = None

    def bring(self, engine: Engine, batch: Any, number: int) -> None:
        """Put the rows that a batch needs into the windows, as they are now. To test or predict."""
        if not self.layers:
            return
        trained = self._others.opened(self.layers)
        ids = self.ids(batch, lambda sample: f"sample {sample} of batch {number}")
        self.show(engine, ids, trained.look_up(self.layers, ids))

    def bring_for_all(self, engine: Engine, mine: Ids, group: AbstractGroup) -> Ids:
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
        rows = dict(zip(self.layers, shards.join(whole, client.look(shards.ask(whole), least)), strict=True))
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
    def are_shown(self) -> bool:
        return self._others.holding(self.layers) is not None

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


class TablesOnServers:
    """The tables of all models, each as long as the script has the model and the model has the same layers. At most one
    model's are open: from its fit, evaluate or predict on, until another one's are.
    """

    def __init__(self) -> None:
        self.are_of_server = False  # whether this process is one
        self._by_model: weakref.WeakKeyDictionary[Any, ModelTables] = weakref.WeakKeyDictionary()

    def of(self, model: Any) -> ModelTables:
        """A built model's."""
        known = self._by_model.get(model)
        if known is None or known.layers != layers_of(model):
            known = self._by_model[model] = ModelTables(model, self)
        return known

    def rows_of(self, layer: Any) -> tuple[Array, Array]:
        return self.opened([layer]).all_rows(layer)

    def holding(self, layers: Sequence[Any]) -> ModelTables | None:
        """Those that are open, if they have all of these layers."""
        for tables in self._by_model.values():
            if tables.is_open and all(layer in tables.layers for layer in layers):
                return tables
        return None

    def opened(self, layers: Sequence[Any]) -> ModelTables:
        found = self.holding(layers)
        if found is None:
            raise UsageError(
                f"the rows of {layers[0].name} are on servers, which serve one model with tables at a time. Call fit, "
                "evaluate or predict of its model first, outside of another model's fit; or run the script without "
                "servers."
            )
        return found


def tables_of(run: Run, model: Any) -> ModelTables:
    """A built model's tables that live on servers."""
    return run.memory.of(TablesOnServers).of(model)


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

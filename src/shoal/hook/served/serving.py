"""`fit` on a server: it holds shards of the model that the script has built, and updates them until it is over.

Rows of tables, which only servers have, are shown to whoever evaluates or predicts with them, too.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from shoal.checkpoint.addresses import Place
from shoal.checkpoint.read import describe
from shoal.checkpoint.resumed import to_bytes
from shoal.codecs.codec import AS_THEY_ARE
from shoal.config import Servers
from shoal.errors import CannotServe
from shoal.hook.calls import feeds
from shoal.hook.calls.building import build_by_call
from shoal.hook.served import whole_optimizer
from shoal.hook.served.shard_maker import ShardMaker, TableMaker
from shoal.hook.served.shard_state import ShardState, ShardTensors
from shoal.hook.served.whole_optimizer import WholeOptimizer
from shoal.hook.tables import saved_rows
from shoal.hook.tables.row_table import RowTable
from shoal.hook.tables.worker_tables import layers_of
from shoal.store.decisions.shards import Shard
from shoal.store.server import KeptShard, Server
from shoal.store.values.ledger import Ledger
from shoal.store.values.messages import Point
from shoal.store.values.operations import Tally
from shoal.store.values.tensors import Array, Tensors
from shoal.training import position
from shoal.training.engine import is_window
from shoal.training.prepared import Prepared
from shoal.training.run import Run
from shoal.training.served_saving import CheckpointShardWriter, restore
from shoal.training.store_layout import ShardLayout, StoreLayout, TablesLayout

_Updated = dict[Shard, tuple[Point, ShardState]]


class _Parts(NamedTuple):
    """What this server has of a table."""

    loads: int  # of the layer by then
    held: dict[int, tuple[Point, RowTable]]  # by part


class KeptShards:
    """What this server has from trainings before: as long as the script has the optimizer, or the layer. Nothing of it
    holds a model or a layer that the script has let go. A training takes what it goes on from, and gives it back.
    """

    def __init__(self) -> None:
        self.updated: weakref.WeakKeyDictionary[Any, _Updated] = weakref.WeakKeyDictionary()  # by optimizer
        self.rows: weakref.WeakKeyDictionary[Any, _Parts] = weakref.WeakKeyDictionary()  # by layer
        # By optimizer: the checkpoint that the run goes on from, if that fit was over in it: nothing was updated.
        self.saved: weakref.WeakKeyDictionary[Any, Place] = weakref.WeakKeyDictionary()


def serve(run: Run, model: Any, prepared: Prepared, servers: Servers, scales: bool, call: int) -> None:
    """Until the fit is over. `scales`: stale updates count less."""
    optimizer, synchronous = prepared.optimizer.own, servers.staleness == 0
    layout = prepared.layout(servers.count, synchronous)
    resumed = run.calls.resumes(call)
    before = run.memory.of(KeptShards)
    begins_with = resumed or before.saved.pop(optimizer, None)
    files = None
    if run.saving is not None or begins_with is not None:
        dense = [variable for variable in prepared.engine.variables.trainable if not is_window(variable)]
        files = _Files(WholeOptimizer(optimizer, dense), partial(restore, run.saving, call, begins_with))
    shards = _Shards(layout, ShardMaker(layout, scales, model.jit_compile), before, files)
    with contextlib.ExitStack() as stack:
        shard_writer = None
        if files is not None:
            shard_writer = stack.enter_context(contextlib.closing(CheckpointShardWriter(shards.to_write)))
        kept, codec = shards.kept(), prepared.pushed(synchronous)
        server = run.server(call, layout.shapes, shards.make, scales, shard_writer, _ledger(resumed), kept, codec)
        stack.enter_context(contextlib.closing(server))
        _serve(server, run, counts=not synchronous)
    kept = server.kept()
    if begins_with is not None and not any(point.version for point, _ in kept.values()):
        before.saved[optimizer] = begins_with
    shards.keep(kept)


def show_tables(run: Run, model: Any, request: feeds.DataRequest, call: int) -> None:
    """For workers that evaluate or predict: until they do not look at the model's tables any more."""
    assert run.servers is not None
    if not model.built:
        with contextlib.closing(feeds.open_source(request, run)) as source:
            build_by_call(model, feeds.example(source.spec(), 1))
    layers = layers_of(model)
    if not layers:
        return
    layout = TablesLayout(layers, run.servers.count)
    parts = _TableParts(layout, TableMaker(layout), run.memory.of(KeptShards))
    server = run.server(call, layout.shapes, parts.make, False, None, Ledger(), parts.kept(), AS_THEY_ARE)
    with contextlib.closing(server):
        _serve(server, run)
    for number, (point, rows) in server.kept().items():
        assert isinstance(rows, RowTable)
        parts.keep(number, point, rows)


def _serve(server: Server, run: Run, counts: bool = False) -> None:
    """`counts`: updates may be stale, and how stale they are is told."""
    try:
        server.serve(run.record, run.counters.staleness if counts else None)
    except Exception as error:
        raise CannotServe(f"{type(error).__name__}: {error}") from error


class _Files(NamedTuple):
    """Checkpoints that a server writes to, or begins from."""

    whole: WholeOptimizer
    read_last: Callable[[Callable[[Place], None]], bool]  # has it read what the last one has, if there is one


class _TableParts:
    """What this server may hold of tables: made from their layers, or from a training before."""

    def __init__(self, layout: ShardLayout, maker: TableMaker, before: KeptShards, files: _Files | None = None) -> None:
        self._layout = layout
        self._maker = maker
        self._before = before
        self._files = files

    def make(self, number: int) -> RowTable:
        return self._restorable(number, self._maker.table(number))

    def kept(self) -> dict[int, KeptShard]:
        found = {}
        for table, layer in enumerate(self._layout.tables.layers):
            rows = self._before.rows.pop(layer, _Parts(0, {}))
            for part, number in enumerate(self._layout.tables.of_table(table)):
                if part in rows.held:
                    found[number] = self._rows_before(number, *rows.held[part], layer.loads != rows.loads)
        return found

    def keep(self, number: int, point: Point, rows: RowTable) -> None:
        rows.restore = lambda: False
        table, _, part = self._layout.tables.place(number)
        layer = self._layout.tables.layers[table]
        self._before.rows.setdefault(layer, _Parts(layer.loads, {})).held[part] = (point, rows)

    def to_write(self, number: int, rows: RowTable) -> dict[str, Array]:
        """For a checkpoint, by name."""
        return saved_rows.to_write(*self._layout.tables.place(number), rows)

    def _rows_before(self, number: int, point: Point, table: RowTable, is_loaded: bool) -> KeptShard:
        """The rows go on; what is kept beside them too, unless another optimizer updates them. All servers that have
        the part do the same with it: they have loaded the same file.
        """
        if self._layout.optimizer not in (None, table.optimizer):
            before, table = table, self._maker.table(number)
            table.go_on_from(before)
        if is_loaded:
            table.load_given(self._layout.tables.place(number)[1])
        return KeptShard(point, self._restorable(number, table))

    def _restorable(self, number: int, table: RowTable) -> RowTable:
        table.restore = lambda: False
        if self._files is not None:
            read = partial(saved_rows.read_into, *self._layout.tables.place(number), table)
            table.restore = partial(self._files.read_last, read)
        return table


class _Shards:
    """What this server may hold of one training's shards: made from the model, or from a training before."""

    def __init__(self, layout: StoreLayout, maker: ShardMaker, before: KeptShards, files: _Files | None) -> None:
        self._layout = layout
        self._maker = maker
        self._before = before
        self._files = files
        self._tables = _TableParts(layout, maker.tables(), before, files)

    def make(self, number: int) -> Tensors:
        if number in self._layout.tables.numbers:
            return self._tables.make(number)
        return self._holding(number, self._maker.shard(number))

    def kept(self) -> dict[int, KeptShard]:
        """What this server has from trainings before, as this one uses it."""
        found = {}
        updated = self._before.updated.pop(self._layout.optimizer, {})
        for shard in self._layout.shards:
            if shard in updated and self._is_of_this_model(updated[shard][1]):
                found[shard.number] = self._updated_before(shard.number, *updated[shard])
        return found | self._tables.kept()

    def keep(self, kept: dict[int, KeptShard]) -> None:
        """For trainings after this one."""
        updated: _Updated = {}
        self._before.updated[self._layout.optimizer] = updated
        for number, (point, tensors) in kept.items():
            if isinstance(tensors, ShardTensors):
                updated[self._layout.shards[number]] = (point, tensors.shard)
            elif isinstance(tensors, RowTable):
                self._tables.keep(number, point, tensors)

    def to_write(self, number: int, tensors: Tensors) -> dict[str, Array]:
        """For a checkpoint, by name."""
        if isinstance(tensors, RowTable):
            return self._tables.to_write(number, tensors)
        assert self._files is not None
        assert isinstance(tensors, ShardTensors)
        whole, is_first = self._files.whole, number == 0
        others = whole.never_updated(self._layout.optimizer, self._layout.variables) if is_first else {}
        return others | whole_optimizer.to_write(whole, tensors.shard, is_first)

    def _is_of_this_model(self, state: ShardState) -> bool:
        known = {id(variable) for variable in self._layout.variables}
        return all(id(one.model) in known for one in state.held)

    def _updated_before(self, number: int, point: Point, state: ShardState) -> KeptShard:
        """The optimizer's state goes on; weights, statistics and sums come from a worker."""
        if not self._maker.fits(number, state):  # other metrics, another strategy
            known = {variable.path: variable for variable in state.optimizer.variables}
            before, state = state, self._maker.shard(number)
            both = [variable for variable in state.optimizer.variables if variable.path in known]
            state.write(both, before.read([known[variable.path] for variable in both]))
        return KeptShard(point, self._holding(number, state))

    def _holding(self, number: int, state: ShardState) -> ShardTensors:
        read = None
        if self._files is not None:
            read = partial(self._files.read_last, partial(whole_optimizer.read_into, self._files.whole, state))
        return ShardTensors(state, read)


def _ledger(resumed: Place | None) -> Ledger:
    """What was counted already in the epoch that a checkpoint was taken in."""
    if resumed is None:
        return Ledger()
    at, _ = position.decode(to_bytes(describe(resumed).header["position"]))
    return Ledger(at.epoch, Tally(at.step))

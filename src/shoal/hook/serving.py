"""`fit` on a server: it holds shards of the model that the script has built, and updates them until it is over."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shoal.checkpoint.read import describe
from shoal.checkpoint.resumed import to_bytes
from shoal.config import Servers
from shoal.hook import saved_rows, whole_optimizer
from shoal.hook.engine import is_window
from shoal.hook.position import Position
from shoal.hook.row_table import RowTable
from shoal.hook.run import Run
from shoal.hook.served_saving import ShardScribe, restore
from shoal.hook.shard_state import ShardState, ShardTensors
from shoal.hook.store_layout import StoreLayout
from shoal.hook.training import Prepared
from shoal.hook.whole_optimizer import WholeOptimizer
from shoal.store.batches import Tally
from shoal.store.ledger import Ledger
from shoal.store.messages import Point
from shoal.store.server import Kept
from shoal.store.shards import Shard
from shoal.store.tensors import Array, Tensors

_ByOptimizer = weakref.WeakKeyDictionary[Any, dict[Shard, tuple[Point, ShardState]]]
_ByLayer = weakref.WeakKeyDictionary[Any, "_Parts"]


class _Parts(NamedTuple):
    """What this server has of a table."""

    loads: int  # of the layer by then
    held: dict[int, tuple[Point, RowTable]]  # by part


# What this server has from trainings before. Nothing of it holds a model or a layer that the script has let go.
_updated: _ByOptimizer = weakref.WeakKeyDictionary()
_rows: _ByLayer = weakref.WeakKeyDictionary()

# By the model's optimizer: the checkpoint that the run goes on from, if that fit was over in it: nothing was updated.
_saved: weakref.WeakKeyDictionary[Any, Path] = weakref.WeakKeyDictionary()


def serve(run: Run, prepared: Prepared, servers: Servers, scales: bool, call: int) -> None:
    """Until the fit is over. `scales`: stale updates count less."""
    optimizer, synchronous = prepared.model.optimizer, servers.staleness == 0
    layout = StoreLayout(prepared.engine, prepared.shape, optimizer, servers.count, synchronous)
    resumed = run.calls.resumes(call)
    begins_with = resumed or _saved.pop(optimizer, None)
    files = None
    if run.saving is not None or begins_with is not None:
        dense = [variable for variable in prepared.engine.variables.trainable if not is_window(variable)]
        files = _Files(WholeOptimizer(optimizer, dense), partial(restore, run.saving, call, begins_with))
    shards = _Shards(layout, optimizer, scales, files)
    with contextlib.ExitStack() as stack:
        scribe = None
        if files is not None:
            scribe = stack.enter_context(contextlib.closing(ShardScribe(shards.to_write)))
        server = run.server(call, layout.shapes, shards.make, scales, scribe, _ledger(resumed), shards.kept())
        stack.enter_context(contextlib.closing(server))
        server.serve(run.say)
    kept = server.kept()
    if begins_with is not None and not any(point.version for point, _ in kept.values()):
        _saved[optimizer] = begins_with
    shards.keep(kept)


class _Files(NamedTuple):
    """Checkpoints that a server writes to, or begins from."""

    whole: WholeOptimizer
    read_last: Callable[[Callable[[Path], None]], bool]  # has it read what the last one has, if there is one


class _Shards:
    """What this server may hold of one training's shards: made from the model, or from a training before."""

    def __init__(self, layout: StoreLayout, optimizer: Any, scales: bool, files: _Files | None) -> None:
        self._layout = layout
        self._optimizer = optimizer
        self._scales = scales
        self._files = files

    def make(self, number: int) -> Tensors:
        if number in self._layout.tables.numbers:
            return self._of_table(number, self._layout.make_table(number))
        return self._holding(number, self._layout.make(number, self._scales))

    def kept(self) -> dict[int, Kept]:
        """What this server has from trainings before, as this one uses it."""
        found = {}
        updated = _updated.pop(self._optimizer, {})
        for shard in self._layout.shards:
            if shard in updated and self._is_of_this_model(updated[shard][1]):
                found[shard.number] = self._updated_before(shard.number, *updated[shard])
        for table, layer in enumerate(self._layout.tables.layers):
            rows = _rows.pop(layer, _Parts(0, {}))
            for part, number in enumerate(self._layout.tables.of_table(table)):
                if part in rows.held:
                    found[number] = self._rows_before(number, *rows.held[part], layer.loads != rows.loads)
        return found

    def keep(self, kept: dict[int, Kept]) -> None:
        """For trainings after this one."""
        updated = _updated[self._optimizer] = {}
        for number, (point, tensors) in kept.items():
            if isinstance(tensors, ShardTensors):
                updated[self._layout.shards[number]] = (point, tensors.shard)
            elif isinstance(tensors, RowTable):
                tensors.restore = lambda: False
                table, _, part = self._layout.tables.place(number)
                layer = self._layout.tables.layers[table]
                _rows.setdefault(layer, _Parts(layer.loads, {})).held[part] = (point, tensors)

    def to_write(self, number: int, tensors: Tensors) -> dict[str, Array]:
        """For a checkpoint, by name."""
        if isinstance(tensors, RowTable):
            return saved_rows.to_write(*self._layout.tables.place(number), tensors)
        assert self._files is not None
        assert isinstance(tensors, ShardTensors)
        whole, is_first = self._files.whole, number == 0
        others = whole.never_updated(self._optimizer, self._layout.variables) if is_first else {}
        return others | whole_optimizer.to_write(whole, tensors.shard, is_first)

    def _is_of_this_model(self, state: ShardState) -> bool:
        known = {id(variable) for variable in self._layout.variables}
        return all(id(one.model) in known for one in state.held)

    def _updated_before(self, number: int, point: Point, state: ShardState) -> Kept:
        """The optimizer's state goes on; weights, statistics and sums come from a worker."""
        if not self._layout.fits(number, state, self._scales):  # other metrics, another strategy
            known = {variable.path: variable for variable in state.optimizer.variables}
            before, state = state, self._layout.make(number, self._scales)
            both = [variable for variable in state.optimizer.variables if variable.path in known]
            state.write(both, before.read([known[variable.path] for variable in both]))
        return Kept(point, self._holding(number, state))

    def _rows_before(self, number: int, point: Point, table: RowTable, is_loaded: bool) -> Kept:
        """The rows go on; what is kept beside them too, if the same optimizer updates them. All servers that have the
        part do the same with it: they have loaded the same file.
        """
        if table.optimizer is not self._optimizer:
            before, table = table, self._layout.make_table(number)
            table.go_on_from(before)
        if is_loaded:
            table.load_given(self._layout.tables.place(number)[1])
        return Kept(point, self._of_table(number, table))

    def _holding(self, number: int, state: ShardState) -> ShardTensors:
        read = None
        if self._files is not None:
            read = partial(self._files.read_last, partial(whole_optimizer.read_into, self._files.whole, state))
        return ShardTensors(state, partial(self._layout.epoch_of, number), read)

    def _of_table(self, number: int, table: RowTable) -> RowTable:
        table.restore = lambda: False
        if self._files is not None:
            read = partial(saved_rows.read_into, *self._layout.tables.place(number), table)
            table.restore = partial(self._files.read_last, read)
        return table


def _ledger(resumed: Path | None) -> Ledger:
    """What was counted already in the epoch that a checkpoint was taken in."""
    if resumed is None:
        return Ledger()
    position = to_bytes(describe(resumed).header["position"])
    at, _ = msgspec.msgpack.decode(position, type=tuple[Position, int])
    return Ledger(at.epoch, Tally(at.step))

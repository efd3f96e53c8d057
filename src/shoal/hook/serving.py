"""`fit` on a server: it holds shards of the model that the script has built, and updates them until it is over."""

from __future__ import annotations

import contextlib
import weakref
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
from shoal.store.server import Server
from shoal.store.shards import Shard
from shoal.store.tensors import AnyShapes, Array, Tensors


class _Kept(NamedTuple):
    """What a server has from a model's last fit, and of which shards."""

    optimizer: Any
    shards: tuple[Shard, ...]
    shapes: list[AnyShapes]
    server: Server


# By the model. The next fit goes on with it; all weights but those of tables come from the workers anew.
_kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()

# By the model's optimizer: the checkpoint that the run goes on from, if that fit was over in it: nothing was updated.
_saved: weakref.WeakKeyDictionary[Any, Path] = weakref.WeakKeyDictionary()


def serve(run: Run, prepared: Prepared, servers: Servers, scales: bool, call: int) -> None:
    """Until the fit is over. `scales`: stale updates count less."""
    optimizer, synchronous = prepared.model.optimizer, servers.staleness == 0
    layout = StoreLayout(prepared.engine, prepared.shape, optimizer, servers.count, synchronous)
    resumed = run.calls.resumes(call)
    begins_with = resumed or _saved.pop(optimizer, None)
    saves = run.saving is not None or begins_with is not None
    dense = [variable for variable in prepared.engine.variables.trainable if not is_window(variable)]
    whole = WholeOptimizer(optimizer, dense) if saves else None
    back = partial(restore, saving=run.saving, call=call, resumed=begins_with)

    def holding(number: int, state: ShardState) -> ShardTensors:
        read = partial(back, partial(whole_optimizer.read_into, whole, state)) if whole is not None else None
        return ShardTensors(state, partial(layout.epoch_of, number), read)

    def of_table(number: int, table: RowTable) -> RowTable:
        table.restore = partial(back, partial(saved_rows.read_into, *layout.tables.place(number), table))
        return table

    def make(number: int) -> Tensors:
        if number in layout.tables.numbers:
            return of_table(number, layout.make_table(number))
        return holding(number, layout.make(number, scales))

    def arrays_of(number: int, tensors: Tensors) -> dict[str, Array]:
        if isinstance(tensors, RowTable):
            return saved_rows.to_write(*layout.tables.place(number), tensors)
        assert whole is not None
        assert isinstance(tensors, ShardTensors)
        others = whole.never_updated(optimizer, layout.variables) if number == 0 else {}
        return others | whole_optimizer.to_write(whole, tensors.shard, is_first=number == 0)

    def again(number: int, tensors: Tensors, is_compiled_anew: bool) -> Tensors:
        if isinstance(tensors, ShardTensors):
            return make(number) if is_compiled_anew else holding(number, tensors.shard)
        assert isinstance(tensors, RowTable)
        if not is_compiled_anew:
            return of_table(number, tensors)
        table = of_table(number, layout.make_table(number))
        table.go_on_from(tensors)
        return table

    kept = _kept.pop(prepared.model, None)
    before = None
    if kept is not None and (kept.shards, kept.shapes) == (layout.shards, layout.shapes):
        before, anew = kept.server, kept.optimizer is not optimizer
        before.tensors = {number: again(number, tensors, anew) for number, tensors in before.tensors.items()}
    with contextlib.ExitStack() as stack:
        scribe = None
        if whole is not None:
            scribe = stack.enter_context(contextlib.closing(ShardScribe(arrays_of)))
        server = run.server(call, layout.shapes, make, scales, scribe, _ledger(resumed), before)
        stack.enter_context(contextlib.closing(server))
        server.serve(run.say)
    if begins_with is not None and not server.applied:
        _saved[optimizer] = begins_with
    _kept[prepared.model] = _Kept(optimizer, layout.shards, layout.shapes, server)


def _ledger(resumed: Path | None) -> Ledger:
    """What was counted already in the epoch that a checkpoint was taken in."""
    if resumed is None:
        return Ledger()
    position = to_bytes(describe(resumed).header["position"])
    at, _ = msgspec.msgpack.decode(position, type=tuple[Position, int])
    return Ledger(at.epoch, Tally(at.step))

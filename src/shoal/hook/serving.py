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
from shoal.hook.position import Position
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
from shoal.store.tensors import AnyShapes, Tensors


class _Kept(NamedTuple):
    """What a server has from a model's last fit, and of which shards."""

    shards: tuple[Shard, ...]
    shapes: list[AnyShapes]
    server: Server


# By the model's optimizer. The next fit goes on with it; all weights but those of tables come from the workers anew.
_kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()

# The same, if that fit was over before a checkpoint that the run goes on from, so that nothing was updated.
_saved: weakref.WeakKeyDictionary[Any, Path] = weakref.WeakKeyDictionary()


def serve(run: Run, prepared: Prepared, servers: Servers, scales: bool, call: int) -> None:
    """Until the fit is over. `scales`: stale updates count less."""
    optimizer, synchronous = prepared.model.optimizer, servers.staleness == 0
    layout = StoreLayout(prepared.engine, prepared.shape, optimizer, servers.count, synchronous)
    resumed = run.calls.resumes(call)
    begins_with = resumed or _saved.pop(optimizer, None)
    saves = run.saving is not None or begins_with is not None
    whole = WholeOptimizer(optimizer, prepared.engine.variables.trainable) if saves else None

    def holding(number: int, state: ShardState) -> ShardTensors:
        back = partial(restore, whole, state, run.saving, call, begins_with) if whole is not None else None
        return ShardTensors(state, partial(layout.epoch_of, number), back)

    def make(number: int) -> Tensors:
        if number in layout.tables.numbers:
            return layout.make_table(number)
        return holding(number, layout.make(number, scales))

    before = _before(optimizer, layout)
    if before is not None:
        before.tensors = {
            number: holding(number, tensors.shard) if isinstance(tensors, ShardTensors) else tensors
            for number, tensors in before.tensors.items()
        }
    with contextlib.ExitStack() as stack:
        scribe = None
        if whole is not None:
            others = partial(whole.never_updated, optimizer, layout.variables)
            scribe = stack.enter_context(contextlib.closing(ShardScribe(whole, _state_of, others)))
        server = run.server(call, layout.shapes, make, scales, scribe, _ledger(resumed), before)
        stack.enter_context(contextlib.closing(server))
        server.serve(run.say)
    if begins_with is not None and not server.applied:
        _saved[optimizer] = begins_with
    _kept[optimizer] = _Kept(layout.shards, layout.shapes, server)


def _before(optimizer: Any, layout: StoreLayout) -> Server | None:
    """This server in the last fit of the model, if its shards are the same."""
    kept = _kept.pop(optimizer, None)
    fits = kept is not None and (kept.shards, kept.shapes) == (layout.shards, layout.shapes)
    return kept.server if kept is not None and fits else None


def _ledger(resumed: Path | None) -> Ledger:
    """What was counted already in the epoch that a checkpoint was taken in."""
    if resumed is None:
        return Ledger()
    position = to_bytes(describe(resumed).header["position"])
    at, _ = msgspec.msgpack.decode(position, type=tuple[Position, int])
    return Ledger(at.epoch, Tally(at.step))


def _state_of(tensors: Tensors) -> ShardState:
    assert isinstance(tensors, ShardTensors)
    return tensors.shard

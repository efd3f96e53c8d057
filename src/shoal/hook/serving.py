"""`fit` on a server: it holds shards of the model that the script has built, and updates them until it is over."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from shoal.checkpoint.read import describe
from shoal.checkpoint.resumed import to_bytes
from shoal.config import Servers
from shoal.hook.position import Position
from shoal.hook.run import Run
from shoal.hook.served_saving import ShardScribe, restore
from shoal.hook.shard_state import ShardState
from shoal.hook.store_layout import StoreLayout
from shoal.hook.training import Prepared
from shoal.hook.whole_optimizer import WholeOptimizer
from shoal.store.batches import Tally
from shoal.store.ledger import Ledger
from shoal.store.shards import Shard
from shoal.store.tensors import Array, ArrayShape, Shapes, Tensors

# Of a model's last fit, by its optimizer: what the next one goes on with. Weights come from the workers every time.
_kept: weakref.WeakKeyDictionary[Any, dict[Shard, ShardState]] = weakref.WeakKeyDictionary()

# The same, if that fit was over before a checkpoint that the run goes on from, so that nobody asked for anything.
_saved: weakref.WeakKeyDictionary[Any, Path] = weakref.WeakKeyDictionary()


def serve(run: Run, prepared: Prepared, servers: Servers, scales: bool, call: int) -> None:
    """Until the fit is over. `scales`: stale updates count less."""
    optimizer, synchronous = prepared.model.optimizer, servers.staleness == 0
    layout = StoreLayout(prepared.engine, prepared.shape, optimizer, servers.count, synchronous)
    trainable = prepared.engine.variables.trainable
    whole = WholeOptimizer(optimizer, trainable)
    trained = [trainable[i] for i in prepared.shape.gradients]
    resumed = run.calls.resumes(call)
    begins_with = resumed or _saved.pop(optimizer, None)
    kept = _kept.pop(optimizer, {})

    def make(number: int) -> ShardTensors:
        state = kept.pop(layout.shards[number], None) or layout.make(number)
        back = partial(restore, whole, state, run.saving, call, begins_with)
        return ShardTensors(state, partial(layout.epoch_of, number), back)

    scribe = ShardScribe(whole, _state_of, partial(whole.never_updated, optimizer, trained))
    with (
        contextlib.closing(scribe),
        contextlib.closing(run.server(call, layout.shapes, make, scales, scribe, _ledger(resumed))) as server,
    ):
        server.serve(run.say)
    if begins_with is not None and not server.tensors:
        _saved[optimizer] = begins_with
    _kept[optimizer] = {layout.shards[number]: _state_of(tensors) for number, tensors in server.tensors.items()}


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


class ShardTensors:
    """A shard's state, as the store asks for it."""

    def __init__(
        self, state: ShardState, epoch_of: Callable[[Sequence[Array]], int], restore: Callable[[], None]
    ) -> None:
        """`restore` gives the optimizer the state of the last checkpoint, if there is one."""
        self.shard = self._state = state
        self._epoch_of = epoch_of
        self._restore = restore

    def apply(self, epoch: int, gradients: Sequence[Array], rate: float | None, scale: float) -> None:
        state = self._state
        if rate is not None:
            state.learning_rate = rate
        own = state.learning_rate
        if scale != 1.0 and own is not None:
            state.learning_rate = own * scale
        state.apply(epoch, gradients)
        if scale != 1.0:
            state.learning_rate = own

    def weights(self) -> Sequence[Array]:
        return self._state.weights()

    def set_weights(self, weights: Sequence[Array]) -> None:
        self._restore()
        self._state.set_weights(weights)
        self._state.restart(self._epoch_of(weights))

    def state(self) -> Sequence[Array]:
        return self._state.state()

    def state_shapes(self) -> Shapes:
        return tuple(ArrayShape(spec.dtype, spec.shape[0]) for spec in self._state.specs.state)

    def load(self, state: Sequence[Array]) -> None:
        self._state.load(state)

    def digest(self) -> int:
        return self._state.digest()

"""`fit` on a server: it holds shards of the model that the script has built, and updates them until it is over."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

from shoal.config import Servers
from shoal.hook.run import Run
from shoal.hook.shard_state import ShardState
from shoal.hook.store_layout import StoreLayout
from shoal.hook.training import Prepared
from shoal.store.shards import Shard
from shoal.store.tensors import Array, ArrayShape, Shapes, Tensors

# Of a model's last fit, by its optimizer: what the next one goes on with. Weights come from the workers every time.
_kept: weakref.WeakKeyDictionary[Any, dict[Shard, Tensors]] = weakref.WeakKeyDictionary()


def serve(run: Run, prepared: Prepared, servers: Servers, scales: bool, call: int) -> None:
    """Until the fit is over. `scales`: stale updates count less."""
    optimizer, synchronous = prepared.model.optimizer, servers.staleness == 0
    layout = StoreLayout(prepared.engine, prepared.shape, optimizer, servers.count, synchronous)
    kept = _kept.pop(optimizer, {})
    server = run.server(
        call,
        layout.shapes,
        lambda number: kept.pop(layout.shards[number], None) or ShardTensors(layout.make(number)),
        scales,
    )
    with contextlib.closing(server):
        server.serve(run.say)
    _kept[optimizer] = {layout.shards[number]: tensors for number, tensors in server.tensors.items()}


class ShardTensors:
    """A shard's state, as the store asks for it."""

    def __init__(self, state: ShardState) -> None:
        self._state = state

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
        self._state.set_weights(weights)
        self._state.restart()

    def state(self) -> Sequence[Array]:
        return self._state.state()

    def state_shapes(self) -> Shapes:
        return tuple(ArrayShape(spec.dtype, spec.shape[0]) for spec in self._state.specs.state)

    def load(self, state: Sequence[Array]) -> None:
        self._state.load(state)

    def digest(self) -> int:
        return self._state.digest()

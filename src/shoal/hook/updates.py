"""Who applies the update of a synchronous step: every worker its own copy, or the servers, once.

With servers, the workers deliver the summed gradients, each to its part of the shards. When all have heard that theirs
is applied, everybody pulls the new weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import keras

from shoal.collectives.group import AbstractGroup, Result
from shoal.config import Servers
from shoal.errors import CannotDistribute
from shoal.hook.engine import AbstractEngine, StepShape
from shoal.hook.run import Run
from shoal.hook.served_saving import ServersParts
from shoal.hook.store_layout import StoreLayout
from shoal.store.batches import Batch
from shoal.store.client import Client
from shoal.store.letters import Open
from shoal.strategies.schema import Array


class AbstractUpdates(ABC):
    """What becomes of the totals of a step."""

    parts: ServersParts | None = None  # what servers write of a checkpoint, where they hold the optimizer's state

    @abstractmethod
    def open(self, epoch: int, steps: int | None, kept: int | None) -> None:
        """The first step begins; all workers have the chief's weights. `kept`: the step of the checkpoint before it."""

    @abstractmethod
    def apply(self, epoch: int, step: int, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        """The model's variables are those after the step when this returns."""

    @abstractmethod
    def finish(self) -> None:
        """The last step is done."""

    @abstractmethod
    def close(self) -> None: ...


class OwnUpdates(AbstractUpdates):
    """Every worker updates its own copy of the model."""

    def __init__(self, engine: AbstractEngine, model: Any) -> None:
        self._engine = engine
        self._model = model

    def open(self, epoch: int, steps: int | None, kept: int | None) -> None:
        pass

    def apply(self, epoch: int, step: int, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        self._engine.apply(gradients, states)

    def finish(self) -> None:
        optimizer = self._model.optimizer
        if isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer.finalize_variable_values(self._model.trainable_weights)

    def close(self) -> None:
        pass


class ServedUpdates(AbstractUpdates):
    """Servers update the weights."""

    def __init__(self, run: Run, engine: AbstractEngine, shape: StepShape, servers: Servers, call: int) -> None:
        self._run = run
        self._engine = engine
        self._shape = shape
        self._servers = servers
        self._call = call
        self._optimizer = engine.model.optimizer
        self._layout = StoreLayout(engine, shape, self._optimizer, servers.count, synchronous=True)
        self._client: Client | None = None
        self.parts = ServersParts(lambda: self._store)
        if run.company.is_late:
            self._client = run.client(call, self._layout.shapes, None, 0)

    @property
    def _store(self) -> Client:
        assert self._client is not None, "open first"
        return self._client

    def open(self, epoch: int, steps: int | None, kept: int | None) -> None:
        layout, servers = self._layout, self._servers
        self._client = self._run.client(self._call, layout.shapes, layout.initial(), 0)
        self._client.open(Open(self._call, layout.sizes, epoch, steps or 1, 0, servers.replicas, 1, kept=kept))

    def apply(self, epoch: int, step: int, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        parcels = self._layout.pack_gradients(gradients)
        rate = rate_of(self._optimizer)

        def act(group: AbstractGroup) -> Result:
            mine = {shard: parcels[shard] for shard in range(group.rank, len(parcels), group.size)}
            self._store.deliver(Batch(epoch, step), mine, rate)
            told = group.gather(f"fit epoch {epoch} step {step}: applied", str(self._store.view).encode())
            return Result(told, [])

        views = self._run.company.commit(act).values
        weights = self._layout.unpack_weights(self._store.pull(epoch, max(map(int, views))))
        variables = self._engine.variables
        self._engine.adopt([variables.trainable[i] for i in self._shape.gradients], weights)
        changed = [variables.states[i] for i in self._shape.changed]
        shaped = [state.reshape(tuple(v.shape)) for state, v in zip(states, changed, strict=True)]
        self._engine.write(changed, shaped)
        count_update(self._optimizer, 1)

    def finish(self) -> None:
        self._store.finish()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def rate_of(optimizer: Any) -> float | None:
    """The learning rate that callbacks may have set; None where a schedule tells it."""
    rate = getattr(optimizer, "_learning_rate", None)
    return float(keras.ops.convert_to_numpy(rate)) if isinstance(rate, keras.Variable) else None


def count_update(optimizer: Any, updates: int) -> None:
    """On a worker, whose optimizer does nothing else: schedules and callbacks may look at its count."""
    optimizer.iterations.assign(optimizer.iterations + updates)


def refuse_unless_served(run: Run, optimizer: Any) -> None:
    """Raises for what does not work with parameter servers yet."""
    if getattr(optimizer, "use_ema", False):
        raise CannotDistribute("an optimizer with use_ema=True does not work with parameter servers yet")
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise CannotDistribute("mixed_float16 does not work with parameter servers yet; use mixed_bfloat16")

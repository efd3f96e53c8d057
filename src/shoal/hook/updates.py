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
from shoal.data.sources import AbstractSource, Taken
from shoal.errors import CannotDistribute
from shoal.hook import feeds
from shoal.hook.engine import AbstractEngine, StepShape
from shoal.hook.fit_store import FitStore
from shoal.hook.run import Run
from shoal.hook.served_saving import ServersParts
from shoal.hook.shard_optimizer import levels
from shoal.hook.store_layout import StoreLayout
from shoal.hook.tables import Ids, refuse_unless_row_wise
from shoal.store.batches import Batch
from shoal.store.client import Client, Weights
from shoal.store.letters import Open
from shoal.strategies.schema import Array


class AbstractUpdates(ABC):
    """What becomes of the totals of a step."""

    parts: ServersParts | None = None  # what servers write of a checkpoint, where they hold the optimizer's state

    @abstractmethod
    def open(self, epoch: int, steps: int | None, kept: int | None) -> None:
        """The first step begins; all workers have the chief's weights. `kept`: the step of the checkpoint before it."""

    def bring(self, source: AbstractSource, step: int, taken: Taken, group: AbstractGroup) -> None:  # noqa: B027
        """Within an act: what this worker's part of a step's batch needs besides the model."""

    @abstractmethod
    def apply(self, epoch: int, step: int, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        """The model's variables are those after the step when this returns."""

    @abstractmethod
    def finish(self, is_trained: bool) -> None:
        """The fit is over. `is_trained`: it had epochs, in this run or in one that it goes on from."""

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

    def finish(self, is_trained: bool) -> None:
        if not is_trained:
            return
        optimizer = self._model.optimizer
        if isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer.finalize_variable_values(self._model.trainable_weights)
        if keeps_averages(optimizer):  # on JAX weights lie where their averages lie now: no update could use both up
            trainable = self._engine.variables.trainable
            self._engine.write(trainable, [self._engine.read(variable) for variable in trainable])

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
        self._fit_store = FitStore(run, self._layout, engine.model, call, ahead=0)
        self._tables = self._fit_store.tables
        self._ids: Ids = []  # of each table: those that the step needs
        self.parts = ServersParts(lambda: self._store)
        if self._tables:
            refuse_unless_row_wise(self._optimizer)
        if run.company.is_late:
            self._fit_store.come_late()

    @property
    def _store(self) -> Client:
        return self._fit_store.client

    def open(self, epoch: int, steps: int | None, kept: int | None) -> None:
        layout, replicas = self._layout, self._servers.replicas
        about = Open(self._call, layout.sizes, epoch, steps or 1, bound=0, replicas=replicas, ahead=1, kept=kept)
        self._fit_store.open(layout.initial(), about)

    def bring(self, source: AbstractSource, step: int, taken: Taken, group: AbstractGroup) -> None:
        if not self._tables:
            return
        self._run.say("waiting for rows of tables")

        def name(sample: int) -> str:
            return source.names(step, range(taken.first + sample, taken.first + sample + 1))

        if len(taken.rows[0]):
            mine = self._tables.ids(feeds.as_batch(source.spec(), taken.rows), name)
        else:
            mine = self._tables.no_ids()
        self._ids = self._tables.bring_for_all(self._engine, mine, group)

    def apply(self, epoch: int, step: int, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        counts = self._layout.counts(gradients)
        parcels = self._layout.pack_gradients(gradients, self._ids, counts)
        rate = rate_of(self._optimizer)

        def act(group: AbstractGroup) -> Result:
            mine = {shard: parcels[shard] for shard in range(group.rank, len(parcels), group.size)}
            self._store.deliver(Batch(epoch, step), mine, rate)
            told = group.gather(f"fit epoch {epoch} step {step}: applied", str(self._store.view).encode())
            return Result(told, [])

        views = self._run.company.commit(act).values
        pulled = self._store.pull(epoch, max(map(int, views)))
        self._adopt(self._layout.unpack_weights(pulled))
        self._engine.loss_scale = self._layout.loss_scale(pulled)
        changed = [self._engine.variables.states[i] for i in self._shape.changed]
        shaped = [state.reshape(tuple(v.shape)) for state, v in zip(states, changed, strict=True)]
        self._engine.write(changed, shaped)
        if counts:
            count_update(self._optimizer, 1)

    def finish(self, is_trained: bool) -> None:
        if is_trained and keeps_averages(self._optimizer):
            self._adopt(self._layout.unpack_weights(take_averages(self._run, self._store)))
        self._fit_store.finish()

    def close(self) -> None:
        self._fit_store.close()

    def _adopt(self, weights: Sequence[Array]) -> None:
        self._engine.adopt(self._layout.variables, weights)


def rate_of(optimizer: Any) -> float | None:
    """The learning rate that callbacks may have set; None where a schedule tells it."""
    rate = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
    return float(keras.ops.convert_to_numpy(rate)) if isinstance(rate, keras.Variable) else None


def count_update(optimizer: Any, updates: int) -> None:
    """On a worker, whose optimizer does nothing else: schedules and callbacks may look at its count."""
    optimizer.iterations.assign(optimizer.iterations + updates)


def keeps_averages(optimizer: Any) -> bool:
    """Whether the weights become averages of theirs when a fit is over."""
    return any(getattr(level, "use_ema", False) for level in levels(optimizer))


def take_averages(run: Run, store: Client) -> Weights:
    """After the last update: what the weights become. The servers stay until every worker has pulled it."""
    weights = store.pull_averages(0)
    run.company.gather("fit: all have the averages", b"")
    return weights


def refuse_unless_served(callbacks: Any) -> None:
    """Raises for what does not work with parameter servers."""
    given = getattr(callbacks, "callbacks", callbacks)  # of a CallbackList
    if any(isinstance(each, keras.callbacks.SwapEMAWeights) for each in keras.tree.flatten(given)):
        raise CannotDistribute(
            "SwapEMAWeights swaps weights with averages that the optimizer keeps, and with parameter servers it keeps "
            "them on the servers. Leave it out: the weights become the averages when fit ends, and every n updates "
            "with ema_overwrite_frequency=n. Or use --strategy allreduce."
        )

"""Who applies the update of a synchronous step: every worker its own copy, or the servers, once.

With servers, the workers deliver the summed gradients, each to its part of the shards. When all have heard that theirs
is applied, everybody pulls the new weights.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from shoal.collectives.group import AbstractGroup
from shoal.config import Servers
from shoal.data.sources import AbstractSource, Taken
from shoal.observe.phases import Phase
from shoal.store.client import Client
from shoal.store.decisions.director_messages import Open
from shoal.store.decisions.worker_state import Weights
from shoal.store.values.operations import Assignment, Batch
from shoal.strategies.balance import Balance
from shoal.strategies.schema import Array
from shoal.training.callback_changes import CallbackChanges
from shoal.training.engine import Engine
from shoal.training.fit_store import FitStore
from shoal.training.optimizer import TrainedOptimizer
from shoal.training.prepared import Prepared
from shoal.training.run import Run
from shoal.training.served_saving import ServersParts
from shoal.training.tables import Ids


class PartTotals(NamedTuple):
    """What a part of a step has summed, where it lies."""

    gradients: Sequence[Array]
    states: Sequence[Array]
    summed: Array  # all that is float32, gradients first: the exchange's vector
    balance: Balance  # how fast everybody is


class AbstractUpdates(ABC):
    """What becomes of the totals of a step."""

    parts: ServersParts | None = None  # what servers write of a checkpoint, where they hold the optimizer's state
    is_sliced = False  # whether each worker updates some of the weights only
    seconds = 0.0  # that the last update took this worker itself, whatever its part of the batch was

    @abstractmethod
    def open(self, epoch: int, steps: int | None, kept: int | None) -> None:
        """The first step begins; all workers have the chief's weights. `kept`: the step of the checkpoint before it."""

    def bring(self, source: AbstractSource, step: int, taken: Taken, group: AbstractGroup) -> None:  # noqa: B027
        """Within an act: what this worker's part of a step's batch needs besides the model."""

    @abstractmethod
    def apply(self, epoch: int, step: int, part: int, totals: PartTotals) -> None:
        """When this returns for the last part of a step, the model's variables are those after the step."""

    def settle(self) -> None:  # noqa: B027
        """Waits until the last update is over, where it goes on in the background."""

    def took(self) -> None:  # noqa: B027
        """The model has what another worker has told: this one came late, or goes on from a checkpoint."""

    def show(self) -> None:  # noqa: B027
        """Somebody may look next: the model's variables, and its optimizer's, are to hold what counts."""

    def watch(self) -> None:  # noqa: B027 (callbacks change a worker's own copy wherever they like)
        """The callbacks of an epoch come next."""

    def hear(self, epoch: int, step: int) -> None:  # noqa: B027
        """Callbacks have been called: what they have changed counts, from this step on. Collective."""

    @abstractmethod
    def finish(self, is_trained: bool) -> None:
        """The fit is over. `is_trained`: it had epochs, in this run or in one that it goes on from."""

    @abstractmethod
    def close(self) -> None: ...


class OwnUpdates(AbstractUpdates):
    """Every worker updates its own copy of the model."""

    def __init__(self, engine: Engine, optimizer: TrainedOptimizer) -> None:
        self._engine = engine
        self._optimizer = optimizer

    def open(self, epoch: int, steps: int | None, kept: int | None) -> None:
        pass

    def apply(self, epoch: int, step: int, part: int, totals: PartTotals) -> None:
        begun = time.perf_counter()
        self._engine.apply(part, totals.gradients, totals.states)
        self.seconds = time.perf_counter() - begun + (self.seconds if part else 0.0)

    def settle(self) -> None:
        begun = time.perf_counter()
        self._engine.settle()
        self.seconds += time.perf_counter() - begun

    def finish(self, is_trained: bool) -> None:
        if is_trained:
            self._optimizer.finish()

    def close(self) -> None:
        pass


class ServedUpdates(AbstractUpdates):
    """Servers update the weights."""

    def __init__(self, run: Run, prepared: Prepared, servers: Servers, call: int) -> None:
        self._run = run
        self._engine = prepared.engine
        self._shape = prepared.shape.only
        self._servers = servers
        self._call = call
        self._optimizer = prepared.optimizer
        self._layout = prepared.layout(servers.count, synchronous=True)
        self._fit_store = FitStore(run, self._layout, prepared.tables, call, 0, prepared.pushed(synchronous=True))
        self._tables = prepared.tables
        self._ids: Ids = []  # of each table: those that the step needs
        self._changes = CallbackChanges(self._engine, self._optimizer, prepared.callbacks, self._layout.variables)
        self.parts = ServersParts(lambda: self._store)
        if self._tables:
            self._optimizer.refuse_unless_row_wise()
        self._is_late = run.worker_group.is_late
        if self._is_late:
            self._fit_store.come_late()

    @property
    def _store(self) -> Client:
        return self._fit_store.client

    def open(self, epoch: int, steps: int | None, kept: int | None) -> None:
        layout, replicas = self._layout, self._servers.replicas
        about = Open(self._call, layout.sizes, epoch, steps or 1, bound=0, replicas=replicas, ahead=1, kept=kept)
        self._fit_store.open(layout.initial(), about)
        self._changes.watch()

    def bring(self, source: AbstractSource, step: int, taken: Taken, group: AbstractGroup) -> None:
        if not self._tables:
            return
        self._run.record(Phase.WAITING, "for rows of tables")

        def name(sample: int) -> str:
            return source.names(step, range(taken.first + sample, taken.first + sample + 1))

        if len(taken.rows[0]):
            mine = self._tables.ids(self._engine.batch(source.spec(), taken.rows), name)
        else:
            mine = self._tables.no_ids()
        self._ids = self._tables.bring_for_all(self._engine, mine, group)

    def apply(self, epoch: int, step: int, part: int, totals: PartTotals) -> None:
        gradients, states = totals.gradients, totals.states
        counts = self._layout.counts(gradients)
        parcels = self._layout.pack_gradients(gradients, self._ids, counts)
        what = f"fit epoch {epoch} step {step}"
        batch = Batch(epoch, step)
        self._run.record(Phase.EXCHANGING, batch.title)
        pulled = self._fit_store.deliver(batch, parcels, self._optimizer.rate(), what)
        self._run.record(Phase.APPLYING)
        self._adopt(self._layout.unpack_weights(pulled))
        self._engine.loss_scale = self._layout.loss_scale(pulled)
        changed = [self._engine.variables.weights[i] for i in self._shape.changed]
        shaped = [state.reshape(tuple(v.shape)) for state, v in zip(states, changed, strict=True)]
        self._engine.write(changed, shaped)
        if counts:
            self._optimizer.count_updates(1)
        self._changes.watch(is_batch=True)

    def hear(self, epoch: int, step: int) -> None:
        found = self._changes.found()
        if not found:  # another who has found something is told that the scripts have diverged
            return
        parcels = self._layout.assigned(self._changes.count_in(found))
        weights = self._fit_store.assign(Assignment(epoch, step), parcels, f"fit epoch {epoch} step {step}")
        if weights is not None:
            self._adopt(self._layout.unpack_weights(weights))

    def took(self) -> None:
        if self._is_late:
            self._store.offer(self._layout.initial())
            self._is_late = False

    def watch(self) -> None:
        self._changes.watch()

    def finish(self, is_trained: bool) -> None:
        if is_trained and self._optimizer.keeps_averages:
            self._adopt(self._layout.unpack_weights(take_averages(self._run, self._store)))
        self._fit_store.finish()

    def close(self) -> None:
        self._fit_store.close()

    def _adopt(self, weights: Sequence[Array]) -> None:
        self._engine.adopt(self._layout.variables, weights)


def take_averages(run: Run, store: Client) -> Weights:
    """After the last update: what the weights become. The servers stay until every worker has pulled it."""
    weights = store.pull_averages()
    run.worker_group.gather("fit: all have the averages", b"")
    return weights

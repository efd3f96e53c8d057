"""Training with parameter servers: each worker computes batches at its own pace, and servers apply them as they come.

The order of an update: a batch is granted and the weights for it are pulled (in the background) → backward on the
whole batch → push (in the background) → logs. The end of an epoch is a barrier: when every batch is counted, all
workers take the same weights, validate together and call their callbacks with the same logs. What those change, the
servers take over before the next epoch begins.

A checkpoint needs a moment in which nothing changes: the chief asks for a pause, and when everything that was granted
is finished, it and the servers copy what they hold. Writing happens in the background.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from shoal.collectives.group import AbstractGroup, Result
from shoal.config import Servers
from shoal.data.sources import Taken
from shoal.errors import CannotDistribute
from shoal.observe.phases import Phase
from shoal.store.client import Client
from shoal.store.decisions.director_messages import Open
from shoal.store.decisions.worker_state import BatchWork, EpochEnd, LookUp, Rest
from shoal.store.values.operations import Assignment, Batch
from shoal.training import epoch_snapshot, position
from shoal.training.callback_changes import CallbackChanges
from shoal.training.counted import counted_piece
from shoal.training.engine import to_float
from shoal.training.fit_loop import AbstractTraining
from shoal.training.fit_store import FitStore
from shoal.training.logs import Logs
from shoal.training.prepared import FitArguments, Prepared
from shoal.training.run import Run
from shoal.training.seeds import Seeds
from shoal.training.served_saving import ServersParts
from shoal.training.store_layout import PulledState
from shoal.training.tables import Ids
from shoal.training.updates import take_averages

_LEAVES_WITHIN = 30.0  # seconds in which what a leaving worker is at must be acknowledged


class AsynchronousTraining(AbstractTraining):
    """A `fit` in which every worker computes whole batches, from weights that may lack others' latest updates."""

    asynchronous = True

    def __init__(self, run: Run, prepared: Prepared, arguments: FitArguments, call: int, servers: Servers) -> None:
        super().__init__(run, prepared, arguments, call)
        self._part = prepared.shape.only
        self._servers = servers
        self._layout = prepared.layout(servers.count, synchronous=False)
        self._seeds = self._engine.seeds  # as the fit began
        self._fit_store = FitStore(run, self._layout, prepared.tables, call, self._ahead, prepared.codec)
        self._first: BatchWork | EpochEnd | LookUp | None = None  # what a latecomer was given first
        self._tables = prepared.tables
        self._looked_up: dict[Batch, tuple[Taken, Ids]] = {}  # loaded, while the rows are on their way
        self._opens: Open | None = None  # how the training is opened, when its first epoch begins
        self._opened = -1  # the last epoch that this worker knows to be open
        self._before = 0  # steps of the whole run before this epoch
        self._seen_before = 0  # samples in them
        self._number = 0  # of the batch that this worker is at, among the steps of the whole run
        self._counted = 0  # updates of this epoch that are in the optimizer's count
        states = [self._engine.variables.weights[i] for i in self._part.changed]
        watched = [*self._layout.variables, *states]
        self._changes = CallbackChanges(self._engine, self._optimizer, self._callbacks, watched)
        self._saver = self._make_saver(ServersParts(lambda: self._store))
        _refuse_unless_possible(prepared)

    @property
    def _store(self) -> Client:
        return self._fit_store.client

    def close(self) -> None:
        self._fit_store.close()
        if self._saver is not None:
            self._saver.close()

    # From beginning to end --------------------------------------------------------------------------

    def _begin(self) -> bytes | None:
        if self._run.worker_group.is_late:
            return self._come_late()
        self._agree_on_start()
        self._resume(served=True)
        at, steps = self._at, self._source.steps
        assert steps is not None
        if self._saver is not None and self._resumed_at is not None:
            self._saver.resumed(self._resumed_at)
        self._counted = at.step
        self._seeds = self._engine.seeds.after(-((at.epoch - at.initial) * steps + at.step))
        at.seeds = self._seeds.rows().tolist()
        done = at.step if at.epoch < self._arguments.epochs and not self._was_stopped else steps
        self._opens = Open(
            self._call,
            self._layout.sizes,
            at.epoch,
            steps,
            bound=self._servers.staleness,
            replicas=self._servers.replicas,
            ahead=self._ahead,
            facts=position.encode(at),
            done=done,
            kept=self._resumed_at,
        )
        return None

    def _open(self) -> None:
        """The first epoch begins, or there is none. Not sooner: callbacks may still change the weights."""
        if self._opens is not None:
            start = partial(self._start_apart, self._at.epoch)
            self._fit_store.open(self._layout.initial(self._so_far()), self._opens, start)
            self._opened, self._opens = self._at.epoch, None

    def _come_late(self) -> bytes | None:
        """Be let in while the others compute; the next epoch's beginning tells the rest."""
        self._run.record(Phase.JOINING)
        self._engine.rehearse(self._example, applies=False)
        self._fit_store.come_late()
        over = self._run.wait_in(self._call)
        if over is not None:
            return over
        first = self._store.next(self._say_wait)
        assert not isinstance(first, Rest), "who has just come has not asked for a pause"
        self._first = first
        told, _ = position.decode(self._store.facts)
        self._source.use_seed(told.seed)
        self._seeds = Seeds.of_rows(np.array(told.seeds, np.uint64))
        at = self._at
        at.seed, at.seeds, at.initial = told.seed, told.seeds, told.initial
        at.trained, at.seen = told.trained, told.seen
        at.epoch = self._opened = first.epoch if isinstance(first, EpochEnd) else first.batch.epoch
        return None

    def _so_far(self) -> PulledState | None:
        """The sums of an epoch that a checkpoint was taken in."""
        at = self._at
        if at.step == 0:
            return None
        extras = [np.asarray(value) for value in at.extras] or [np.zeros(())] * len(self._part.extras)
        return PulledState([], [], self._engine.metric_changes(), extras, at.samples, at.epoch, at.step)

    @property
    def _ahead(self) -> int:
        """Updates at a time: the second one's weights are pulled while the first is computed."""
        bound = self._servers.staleness
        return 2 if bound is None or bound >= 2 else 1

    def _end(self) -> None:
        if self._saver is not None:
            self._finish_saving()
            if self._run.is_chief and self._has_trained:
                self._begin_saving(None)  # nobody pushes any more
            self._finish_saving()
        self._open()
        if self._arguments.epochs > 0 and self._optimizer.keeps_averages:
            self._take_weights(take_averages(self._run, self._store))
        self._fit_store.finish()

    # An epoch ---------------------------------------------------------------------------------------

    def _steps(self, epoch: int) -> Logs:
        steps, at = self._source.steps, self._at
        assert steps is not None
        self._before, self._seen_before = at.trained - at.step, at.seen - (at.samples if at.step else 0)
        self._number = at.trained
        if not self._run.worker_group.is_late:
            self._run.snapshots.leave(f"{self._call}-{epoch}", self._snapshot)
        self._open()
        if epoch > self._opened:
            self._hear(epoch)
            self._start_apart(epoch)
            self._store.go_on(epoch, steps)
            self._opened = epoch
        while not isinstance(todo := self._next(), EpochEnd):
            if isinstance(todo, LookUp):
                self._look_up(todo.batch)
                continue
            if isinstance(todo, Rest):
                self._save(todo)
                continue
            self._train(todo)
            if self._model.stop_training:
                self._store.halt(epoch)
            self._consider_saving(todo.batch.place)
            if self._run.drains and not self._store.is_pausing:
                self._leave()
        pulled = self._take_weights(todo.weights)
        self._count(pulled.updates, pulled.samples)
        at.step, self._counted = steps, 0
        self._meet(epoch, pulled)
        self._advance_seeds(epoch + 1, 0)
        self._changes.watch()
        return self._logs_of(pulled)

    def _start_apart(self, epoch: int) -> None:
        """From here on nobody waits for the others, or looks whether one of them is behind."""
        self._run.worker_group.start_apart(f"fit epoch {epoch}: all begin", lambda: self._store.has_begun(epoch))

    def _hear(self, epoch: int) -> None:
        """All callbacks between two epochs have been called, and nobody computes: what they have changed counts."""
        if not self._changes.are_possible:
            return
        found = self._changes.found()
        parcels = self._layout.assigned(self._changes.count_in(found)) if found else []
        weights = self._fit_store.assign(Assignment(epoch, 0), parcels, f"fit epoch {epoch}")
        if weights is not None:
            self._take_weights(weights)

    def _next(self) -> BatchWork | EpochEnd | LookUp | Rest:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        self._run.record(Phase.WAITING, "for servers", self._number)
        return self._store.next(self._say_wait)

    def _count(self, updates: int, samples: int) -> None:
        """So many updates of this epoch are in the weights, with so many samples."""
        self._optimizer.count_updates(updates - self._counted)
        self._counted = updates
        self._at.trained, self._at.seen = self._before + updates, self._seen_before + samples

    # Checkpoints ------------------------------------------------------------------------------------

    @property
    def _saves(self) -> bool:
        """Whether it is this worker that writes checkpoints. Not one that does not know what callbacks remember."""
        return self._saver is not None and self._run.is_chief and not self._run.worker_group.is_late

    def _consider_saving(self, place: int) -> None:
        if self._saver is None:
            return
        self._saver.go_on_alone()
        is_due = self._run.drains or self._saver.is_due(self._before + place + 1)
        if is_due and self._saves and not self._store.is_pausing:
            self._store.pause()

    def _save(self, rest: Rest) -> None:
        """Everything is at rest. A worker that is to leave does so in the pause: nothing is granted to it any more."""
        pulled = self._take_weights(rest.weights)
        self._count(rest.counted, pulled.samples)
        self._advance_seeds(rest.epoch, rest.counted)
        at = self._at
        at.logs = self._logs_of(pulled)
        at.step, at.samples, at.extras = rest.counted, pulled.samples, [value.tolist() for value in pulled.extras]
        self._begin_saving(rest)
        if self._run.drains:
            assert self._saver is not None
            self._saver.finish_alone()
            self._run.leave()
        self._store.end_pause()

    def _begin_saving(self, rest: Rest | None) -> None:
        assert self._saver is not None
        me, returned = self._run.me, self._run.calls.returned
        self._run.record(Phase.SAVING, step=self._number)
        with self._run.counters.checkpointing():
            given = self.give()
            self._saver.begin(self._at.trained, self._store.view, (me,), given, self._call, returned, True, rest)

    def give(self) -> Result:
        self._at.pieces = 0
        return super().give()

    def _say_wait(self, for_what: str) -> None:
        self._run.record(Phase.WAITING, f"for {for_what}", self._number)
        if self._run.drains and not self._saves:
            self._leave()

    def _load(self, place: int) -> Taken:
        self._run.record(Phase.READING, step=self._number)
        taken = self._source.whole(place)
        assert taken is not None, f"batch {place} was granted, and the data does not have it"
        return taken

    def _look_up(self, batch: Batch) -> None:
        """Ask for the rows of tables that a batch needs; they come while another is computed."""
        taken, source = self._load(batch.place), self._source

        def name(sample: int) -> str:
            return source.names(batch.place, range(sample, sample + 1))

        ids = self._tables.ids(self._engine.batch(source.spec(), taken.rows), name)
        self._looked_up[batch] = (taken, ids)
        self._store.look_up(batch, self._layout.tables.ask(ids))

    def _train(self, work: BatchWork) -> None:
        """One update: from its weights to its push."""
        epoch, place = work.batch.epoch, work.batch.place
        at, source = self._at, self._source
        self._number = self._before + place
        self._run.record(Phase.APPLYING, step=self._number)
        pulled = self._take_weights(work.weights)
        self._changes.watch(is_batch=True)
        self._callbacks.on_train_batch_begin(place)
        ids: Ids = []
        if self._tables:
            taken, ids = self._looked_up.pop(work.batch)
            answers = {shard: work.weights[shard][0] for shard in self._layout.tables.numbers}
            self._tables.show(self._engine, ids, self._layout.tables.join(ids, answers))
        else:
            taken = self._load(place)
        self._run.record(Phase.COMPUTING, f"batch {place}: {source.names(place, range(taken.size))}", self._number)
        self._advance_seeds(epoch, place)
        inputs = self._engine.batch(source.spec(), taken.rows)
        arrays = counted_piece(self._run, self._engine, 0, inputs, 0, 1.0, taken.size)
        self._run.record(Phase.EXCHANGING, work.batch.title, self._number)
        copy = not self._engine.pieces_last
        parcels = self._layout.pack(arrays, pulled.states, taken.size, copy, ids)
        self._store.push(work.batch, parcels, self._optimizer.rate())
        self._run.record(Phase.COMPUTING, "metrics", self._number)
        _, _, metrics, extras = self._part.split(arrays)
        mine = PulledState(
            [], [], list(metrics), [np.asarray(v) * taken.size for v in extras.values()], taken.size, epoch
        )
        at.logs = self._logs_of(_sum(pulled, mine))
        at.total += 1
        self._number += 1
        self._run.record(Phase.CALLBACKS, step=self._number)
        self._run.count(taken.size, pieces=1)
        self._callbacks.on_train_batch_end(place, at.logs)
        self._refuse_changes()

    def _refuse_changes(self) -> None:
        """Of callbacks of a batch."""
        if found := self._changes.found():
            raise CannotDistribute(
                f"a callback has changed {found[0].path} after a batch. With a staleness other than 0, other workers "
                "update it meanwhile. Change weights between two epochs (on_epoch_end), or use --staleness 0, or "
                "--strategy allreduce."
            )

    def _take_weights(self, weights: list[Any]) -> PulledState:
        pulled = self._layout.unpack(weights)
        held = self._engine.variables.weights
        self._engine.adopt(self._layout.variables, pulled.trainable)
        self._engine.write([held[i] for i in self._part.changed], pulled.states)
        self._engine.loss_scale = self._layout.loss_scale(weights)
        return pulled

    def _advance_seeds(self, epoch: int, place: int) -> None:
        """Random numbers depend on the batch alone, never on who computes it."""
        steps = self._source.steps or 0
        self._engine.seeds = self._seeds.after((epoch - self._at.initial) * steps + place)

    def _logs_of(self, pulled: PulledState) -> Logs:
        """The logs of the epoch so far."""
        self._engine.reset_metrics()
        self._engine.add_metrics(pulled.metrics)
        logs = self._engine.metric_results()
        samples = max(1, pulled.samples)
        logs |= {name: total / samples for name, total in zip(self._part.extras, pulled.extras, strict=True)}
        return {name: to_float(logs[name]) for name in self._shape.logs}

    def _meet(self, epoch: int, pulled: PulledState) -> None:
        """All workers, at the end of an epoch. Who came while it went on is told here what it can't know.

        If nobody is left who was there when it began, that is what was left in the run's folder then.
        """
        worker_group = self._run.worker_group
        self._run.record(Phase.WAITING, "for the others at the end of the epoch", self._at.trained)
        if worker_group.is_late:
            worker_group.enter(self, self._call, partial(self._found, epoch, pulled))
            self._restore_callbacks()

        def act(group: AbstractGroup) -> Result:
            return Result(group.gather(f"fit epoch {epoch}: the end", b""), [])

        worker_group.commit(act, keeper=self)

    def _snapshot(self) -> bytes:
        return epoch_snapshot.pack(self.give(), self._part)

    def _found(self, epoch: int, pulled: PulledState) -> Result | None:
        left = self._run.snapshots.find(f"{self._call}-{epoch}")
        if left is None:
            return None
        return epoch_snapshot.unpack(left, self._engine, self._optimizer, self._at.step, pulled.updates, pulled.samples)

    def _leave(self) -> None:
        self._run.record(Phase.LEAVING, step=self._number)
        self._store.drained(_LEAVES_WITHIN)
        self._run.leave()


def _sum(pulled: PulledState, mine: PulledState) -> PulledState:
    """What was pulled with this worker's own update on top; without what is of an epoch before."""
    if pulled.epoch != mine.epoch:
        return mine
    metrics = [a + b.reshape(a.shape) for a, b in zip(pulled.metrics, mine.metrics, strict=True)]
    extras = [a + b for a, b in zip(pulled.extras, mine.extras, strict=True)]
    return PulledState([], [], metrics, extras, pulled.samples + mine.samples, mine.epoch)


def _refuse_unless_possible(prepared: Prepared) -> None:
    if prepared.source.together or prepared.source.steps is None:
        raise CannotDistribute(
            "with parameter servers every worker asks for batches by their number, which a stream (a generator, a "
            "tf.data.Dataset) can't give. Use arrays, a keras.utils.PyDataset or a map-style torch DataLoader, or "
            "--staleness 0, or --strategy allreduce."
        )
    if prepared.tables:
        prepared.optimizer.refuse_unless_row_wise()

"""Training with parameter servers: each worker computes batches at its own pace, and servers apply them as they come.

The order of an update: a batch is granted and the weights for it are pulled (in the background) → backward on the
whole batch → push (in the background) → logs. The end of an epoch is a barrier: when every batch is counted, all
workers take the same weights, validate together and call their callbacks with the same logs.

A checkpoint needs a moment in which nothing changes: the chief asks for a pause, and when everything that was granted
is finished, it and the servers copy what they hold. Writing happens in the background.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np

from shoal.collectives.group import AbstractGroup, Result
from shoal.config import Servers
from shoal.data.sources import Taken
from shoal.errors import CannotDistribute
from shoal.hook import deposit, feeds
from shoal.hook.engine import Logs, to_float
from shoal.hook.fit_store import FitStore
from shoal.hook.resuming import Expected
from shoal.hook.run import Run
from shoal.hook.saving import Saver
from shoal.hook.seeds import Seeds
from shoal.hook.served_saving import ServersParts
from shoal.hook.store_layout import Pulled, StoreLayout
from shoal.hook.tables import Ids, refuse_unless_row_wise, tables_of
from shoal.hook.training import AbstractTraining, FitArguments, Prepared
from shoal.hook.updates import count_update, keeps_averages, rate_of, refuse_unless_served, take_averages
from shoal.store.batches import Batch
from shoal.store.client import Client, EpochEnd, LookUp, Rest, Work
from shoal.store.letters import Open

_LEAVES_WITHIN = 30.0  # seconds in which what a leaving worker is at must be acknowledged


class Facts(msgspec.Struct, frozen=True):
    """What a worker that comes late must know to compute a batch."""

    seed: int
    initial: int
    trained: int
    seeds: list[list[int]]


class AsynchronousTraining(AbstractTraining):
    """A `fit` in which every worker computes whole batches, from weights that may lack others' latest updates."""

    def __init__(self, run: Run, prepared: Prepared, arguments: FitArguments, call: int, servers: Servers) -> None:
        super().__init__(run, prepared, arguments, call)
        self._servers = servers
        self._layout = StoreLayout(self._engine, self._shape, self._model.optimizer, servers.count)
        self._seeds = self._engine.seeds  # as the fit began
        self._fit_store = FitStore(run, self._layout, self._model, call, self._ahead)
        self._first: Work | EpochEnd | LookUp | None = None  # what a latecomer was given first
        self._tables = self._fit_store.tables
        self._looked_up: dict[Batch, tuple[Taken, Ids]] = {}  # loaded, while the rows are on their way
        self._opened = -1  # the last epoch that this worker knows to be open
        self._before = 0  # steps of the whole run before this epoch
        self._counted = 0  # updates of this epoch that are in the optimizer's count
        parts = ServersParts(lambda: self._store)
        self._saver = Saver(run.saving, run.me, self._model, self._engine, run.trained, parts) if run.saving else None
        _refuse_unless_possible(run, prepared, arguments, self._model.optimizer)

    @property
    def _store(self) -> Client:
        return self._fit_store.client

    def close(self) -> None:
        self._fit_store.close()
        if self._saver is not None:
            self._saver.close()

    # From beginning to end --------------------------------------------------------------------------

    def _begin(self) -> bytes | None:
        if self._run.company.is_late:
            return self._come_late()
        self._agree_on_start(self._model._initial_epoch or self._arguments.initial_epoch)
        self._resume(Expected(self._engine, served=True))
        at, steps = self._at, self._source.steps
        assert steps is not None
        if self._saver is not None and self._resumed_at is not None:
            self._saver.resumed(self._resumed_at)
        self._counted = at.step
        self._seeds = self._engine.seeds.after(-((at.epoch - at.initial) * steps + at.step))
        facts = Facts(at.seed, at.initial, at.trained, self._seeds.rows().tolist())
        done = at.step if at.epoch < self._arguments.epochs and not self._was_stopped else steps
        about = Open(
            self._call,
            self._layout.sizes,
            at.epoch,
            steps,
            bound=self._servers.staleness,
            replicas=self._servers.replicas,
            ahead=self._ahead,
            facts=msgspec.msgpack.encode(facts),
            done=done,
            kept=self._resumed_at,
        )
        self._fit_store.open(self._layout.initial(self._so_far()), about)
        self._opened = at.epoch
        return None

    def _come_late(self) -> bytes | None:
        """Be let in while the others compute; the next epoch's beginning tells the rest."""
        self._run.say("waiting to be let in")
        self._engine.rehearse(self._example, applies=False)
        self._fit_store.come_late()
        over = self._run.wait_in(self._call)
        if over is not None:
            return over
        first = self._store.next(self._say_wait)
        assert not isinstance(first, Rest), "who has just come has not asked for a pause"
        self._first = first
        facts = msgspec.msgpack.decode(self._store.facts, type=Facts)
        self._source.use_seed(facts.seed)
        self._seeds = Seeds.of_rows(np.array(facts.seeds, np.uint64))
        at = self._at
        at.seed, at.initial, at.trained = facts.seed, facts.initial, facts.trained
        at.epoch = self._opened = first.epoch if isinstance(first, EpochEnd) else first.batch.epoch
        return None

    def _so_far(self) -> Pulled | None:
        """The sums of an epoch that a checkpoint was taken in."""
        at = self._at
        if at.step == 0:
            return None
        extras = [np.asarray(value) for value in at.extras] or [np.zeros(())] * len(self._shape.extras)
        return Pulled([], [], self._engine.metric_changes(), extras, at.samples, at.epoch, at.step)

    @property
    def _ahead(self) -> int:
        """Updates at a time: the second one's weights are pulled while the first is computed."""
        bound = self._servers.staleness
        return 2 if bound is None or bound >= 2 else 1

    def _end(self) -> None:
        if self._saver is not None:
            company, chief = self._run.company, self._run.is_chief
            self._saver.finish(company, chief)
            if chief and self._has_trained:
                self._begin_saving(None)  # nobody pushes any more
            self._saver.finish(company, chief)
        if self._arguments.epochs > 0 and keeps_averages(self._model.optimizer):
            self._take_weights(take_averages(self._run, self._store))
        self._fit_store.finish()

    # An epoch ---------------------------------------------------------------------------------------

    def _steps(self, epoch: int) -> Logs:
        steps, at = self._source.steps, self._at
        assert steps is not None
        self._before = at.trained - at.step
        if not self._run.company.is_late:
            self._run.deposits.leave(f"{self._call}-{epoch}", self._deposit)
        if epoch > self._opened:
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
        self._count(pulled.updates)
        at.step, self._counted = steps, 0
        self._meet(epoch, pulled.updates)
        self._advance_seeds(epoch + 1, 0)
        return self._logs_of(pulled)

    def _next(self) -> Work | EpochEnd | LookUp | Rest:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return self._store.next(self._say_wait)

    def _count(self, updates: int) -> None:
        """So many updates of this epoch are in the weights."""
        count_update(self._model.optimizer, updates - self._counted)
        self._counted, self._at.trained = updates, self._before + updates

    # Checkpoints ------------------------------------------------------------------------------------

    @property
    def _saves(self) -> bool:
        """Whether it is this worker that writes checkpoints. Not one that does not know what callbacks remember."""
        return self._saver is not None and self._run.is_chief and not self._run.company.is_late

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
        self._count(rest.counted)
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
        self._run.say("copying for a checkpoint", self._at.total)
        given = self.give()
        self._saver.begin(self._at.trained, self._store.view, (me,), given, self._call, returned, True, rest)

    def give(self) -> Result:
        self._at.pieces = 0
        return super().give()

    def _say_wait(self, for_what: str) -> None:
        self._run.say(f"waiting for {for_what}", self._at.total)
        if self._run.drains and not self._saves:
            self._leave()

    def _load(self, place: int) -> Taken:
        self._run.say("loading data", self._at.total)
        taken = self._source.whole(place)
        assert taken is not None, f"batch {place} was granted, and the data does not have it"
        return taken

    def _look_up(self, batch: Batch) -> None:
        """Ask for the rows of tables that a batch needs; they come while another is computed."""
        taken, source = self._load(batch.place), self._source

        def name(sample: int) -> str:
            return source.names(batch.place, range(sample, sample + 1))

        ids = self._tables.ids(feeds.as_batch(source.spec(), taken.rows), name)
        self._looked_up[batch] = (taken, ids)
        self._store.look_up(batch, self._layout.tables.ask(ids))

    def _train(self, work: Work) -> None:
        """One update: from its weights to its push."""
        epoch, place = work.batch.epoch, work.batch.place
        at, source = self._at, self._source
        pulled = self._take_weights(work.weights)
        self._callbacks.on_train_batch_begin(place)
        ids: Ids = []
        if self._tables:
            taken, ids = self._looked_up.pop(work.batch)
            answers = {shard: work.weights[shard][0] for shard in self._layout.tables.numbers}
            self._tables.show(self._engine, ids, self._layout.tables.join(ids, answers))
        else:
            taken = self._load(place)
        self._run.say(f"computing batch {place}: {source.names(place, range(taken.size))}", at.total)
        self._advance_seeds(epoch, place)
        arrays = self._engine.piece(feeds.as_batch(source.spec(), taken.rows), 0, 1.0)
        copy = not self._engine.pieces_last
        parcels = self._layout.pack(arrays, pulled.states, taken.size, epoch, copy, ids)
        self._store.push(work.batch, parcels, rate_of(self._model.optimizer))
        _, _, metrics, extras = self._shape.split(arrays)
        mine = Pulled([], [], list(metrics), [np.asarray(v) * taken.size for v in extras.values()], taken.size, epoch)
        at.logs = self._logs_of(_sum(pulled, mine))
        at.total += 1
        self._run.say("running callbacks", at.total)
        self._run.count(taken.size)
        self._callbacks.on_train_batch_end(place, at.logs)

    def _take_weights(self, weights: list[Any]) -> Pulled:
        pulled = self._layout.unpack(weights)
        variables, shape = self._engine.variables, self._shape
        self._engine.adopt(self._layout.variables, pulled.trainable)
        self._engine.write([variables.states[i] for i in shape.changed], pulled.states)
        self._engine.loss_scale = self._layout.loss_scale(weights)
        return pulled

    def _advance_seeds(self, epoch: int, place: int) -> None:
        """Random numbers depend on the batch alone, never on who computes it."""
        steps = self._source.steps or 0
        self._engine.seeds = self._seeds.after((epoch - self._at.initial) * steps + place)

    def _logs_of(self, pulled: Pulled) -> Logs:
        """The logs of the epoch so far."""
        self._engine.reset_metrics()
        logs = self._engine.add_metrics(pulled.metrics)
        samples = max(1, pulled.samples)
        logs |= {name: total / samples for name, total in zip(self._shape.extras, pulled.extras, strict=True)}
        return {name: to_float(logs[name]) for name in self._shape.logs}

    def _meet(self, epoch: int, updates: int) -> None:
        """All workers, at the end of an epoch. Who came while it went on is told here what it can't know.

        If nobody is left who was there when it began, that is what was left in the run's folder then.
        """
        company = self._run.company
        self._run.say("waiting for the others at the end of the epoch", self._at.total)
        if company.is_late:
            company.enter(self, self._call, partial(self._found, epoch, updates))
            self._restore_callbacks()

        def act(group: AbstractGroup) -> Result:
            return Result(group.gather(f"fit epoch {epoch}: the end", b""), [])

        company.commit(act, keeper=self)

    def _deposit(self) -> bytes:
        return deposit.pack(self.give(), self._engine, self._shape)

    def _found(self, epoch: int, updates: int) -> Result | None:
        left = self._run.deposits.find(f"{self._call}-{epoch}")
        return deposit.unpack(left, self._engine, self._at.step, updates) if left is not None else None

    def _leave(self) -> None:
        self._run.say("leaving", self._at.total)
        self._store.drained(_LEAVES_WITHIN)
        self._run.leave()


def _sum(pulled: Pulled, mine: Pulled) -> Pulled:
    """What was pulled with this worker's own update on top; without what is of an epoch before."""
    if pulled.epoch != mine.epoch:
        return mine
    metrics = [a + b.reshape(a.shape) for a, b in zip(pulled.metrics, mine.metrics, strict=True)]
    extras = [a + b for a, b in zip(pulled.extras, mine.extras, strict=True)]
    return Pulled([], [], metrics, extras, pulled.samples + mine.samples, mine.epoch)


def _refuse_unless_possible(run: Run, prepared: Prepared, arguments: FitArguments, optimizer: Any) -> None:
    if prepared.source.together or prepared.source.steps is None:
        raise CannotDistribute(
            "with parameter servers every worker asks for batches by their number, which a stream (a generator, a "
            "tf.data.Dataset) can't give. Use arrays, a keras.utils.PyDataset or a map-style torch DataLoader, or "
            "--staleness 0, or --strategy allreduce."
        )
    refuse_unless_served(arguments.callbacks)
    if tables_of(prepared.model):
        refuse_unless_row_wise(optimizer)

"""A worker's script: what it calls, and how much of that is the product's own.

A fit is: the real `SynchronousTraining` or `AsynchronousTraining`, over the real data agreement and a real source, on a
toy model (toy.py). What hook/calls/fit.py does before it with Keras (the seed, tracing, callbacks), what
hook/served/serving.py does around the real `Server`, and hook/calls/evaluate.py is done here.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from shoal.codecs.codec import AS_THEY_ARE
from shoal.collectives.abstract import AbstractGroup, Result
from shoal.data.sources import Arrays, Bookmark
from shoal.session import Session
from shoal.store.decisions.worker_state import BatchWork, EpochEnd, LookUp, Rest
from shoal.store.server import KeptShard
from shoal.store.values.ledger import Ledger
from shoal.strategies.abstract import PipelineSettings, RoundSettings
from shoal.strategies.allreduce import Division, Exchanged, Reduction
from shoal.strategies.notes import Note
from shoal.strategies.schema import Array, Combine, Entry, Schema
from shoal.training.asynchronous import AsynchronousTraining
from shoal.training.calls import decode_plain, encode_plain
from shoal.training.data_agreement import DataState, agree_on_data
from shoal.training.fit_store import leave_last
from shoal.training.local import LocalTraining
from shoal.training.logs import Logs
from shoal.training.prepared import Description, FitArguments, Prepared
from shoal.training.replicas import RoundStart
from shoal.training.served_saving import CheckpointShardWriter
from shoal.training.streamed import StreamedTraining
from shoal.training.synchronous import SynchronousTraining
from shoal.training.updates import AbstractUpdates, OwnUpdates, ServedUpdates

from .local_toy import LocalToyEngine, ToyOuter, uneven_counts
from .machine import Process, current
from .staged import ObservedPipeline, StagedEngine, ToyStages
from .toy import BATCH, EPOCHS, SAMPLES, NoTables, PacedEngine, ToyEngine, ToyModel, ToyOptimizer, stops, tested
from .toy_server import ToyTensors

if TYPE_CHECKING:
    from .elastic import Simulation

TRIALS = 4


class Script:
    """What the user's script and the hook do in one worker."""

    def __init__(self, sim: Simulation, process: Process, run: Session) -> None:
        self.sim = sim
        self.plan = sim.plan
        self.process = process
        self.number = int(process.name.rpartition("-")[2])
        self.run = run
        self.model = ToyModel(self.plan.executes)
        self.engine = self._make_engine()
        self.optimizer = ToyOptimizer(self.engine)
        self.outer = ToyOuter(self.engine)
        self.knows = not run.worker_group.is_late  # its weights are the run's
        self.halts = self.saves = False  # at the next batch
        self.stages: ToyStages | None = None  # of the fit that is going on, or was last
        self.pipeline: ObservedPipeline | None = None  # the same
        self._kept: dict[int, KeptShard] = {}  # of a server: what it has from the fit before
        self.fails: str | None = None
        self.dawdles = 0.0  # seconds that what it does next takes longer
        self._tests = Schema(
            [
                Entry("total", Combine.SUM, "int64", (1,)),
                Entry("counted", Combine.SUM, "int64", (self.plan.pieces,)),
                Entry("who", Combine.SUM, "int64", (self.plan.pieces,)),
            ]
        )

    @property
    def weights(self) -> int | float:
        return self.engine.digest() if isinstance(self.engine, StagedEngine) else self.engine.weights.value[0].item()

    def _make_engine(self) -> ToyEngine:
        if self.plan.stages:
            return StagedEngine(self.plan, self.number, partial(self.work, 0.01))
        if self.plan.every:
            return LocalToyEngine(self.plan, self.number, partial(self.work, 0.05))
        if not self.plan.at_own_pace:
            return ToyEngine(self.plan, self.number, partial(self.work, 0.05))
        slowness = self.plan.slow if self.number == 0 else 1.0
        return PacedEngine(self.plan, self.number, partial(self.work, 0.006 * slowness), self.sim.history.computed)

    def execute(self) -> None:
        if self.plan.at_own_pace:
            self.run.calls.count("fit", self._fit_at_own_pace, encode_plain, decode_plain, waits=False)
            return
        self.work(0.05)
        for name in EPOCHS:
            self.work(0.02)
            fit = partial(self._fit, name)
            returned = self.run.calls.count("fit", fit, encode_plain, decode_plain, waits=False)
            self.sim.watcher.returned(self, name, returned)
            if name == "first":
                self.work(0.02)
                if self.plan.raises is not None:
                    self.try_something()
                self.evaluate("between the fits")

    def try_something(self) -> None:
        """As a tuner does: what it tries may raise, and then it goes on."""
        try:
            self.run.calls.count("evaluate", lambda call: self._trial(), encode_plain, decode_plain)
        except ValueError:
            self.sim.watcher.caught.append(self.process.name)

    def _trial(self) -> int:
        for act in range(TRIALS):
            self.sim.mark("trial")
            self.work(0.02)
            if act == TRIALS // 2 and self.plan.raises in ("all", self.number):
                raise ValueError("a trial that came to nothing")
            self.test(f"trial {act}")
        return TRIALS

    def evaluate(self, name: str) -> None:
        returned = self.run.calls.count("evaluate", lambda call: self.test(name), encode_plain, decode_plain)
        self.sim.watcher.returned(self, name, returned)

    def work(self, seconds: float) -> None:
        """Takes about that long; the script may fail meanwhile."""
        task = current()
        longer, self.dawdles = self.dawdles, 0.0
        task.sleep(seconds * (0.5 + self.sim.world.random.random()) + longer)
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise ValueError(error)

    def test(self, name: str) -> int:
        """As hook/calls/evaluate.py does: one act that takes data together, agrees on names and reduces."""
        reduction = Reduction(self.run.worker_group, self._tests, Division(self.plan.pieces), None)

        def act(group: AbstractGroup) -> Result:
            self.sim.mark("evaluate")
            self.work(0.05)
            names = group.gather(f"{name}: names of logs", b"loss")
            tests = lambda piece: (self._piece(name, piece), 1.0)  # noqa: E731
            reduced = reduction.reduce(group, name, self.plan.pieces, tests, lambda: Note(0))
            return Result([names[0], *reduced.values], reduced.arrays)

        try:
            result = self.run.worker_group.commit(act)
            exchanged = reduction.exchanged(Result(result.values[1:], result.arrays))
            self.sim.watcher.counted(self, name, exchanged)
            return int(exchanged.totals[0][0])
        finally:
            reduction.close()

    def _piece(self, name: str, piece: int) -> list[Array]:
        """One piece: what it contributes, that it has been counted, and by whom."""
        counted, who = np.zeros(self.plan.pieces, np.int64), np.zeros(self.plan.pieces, np.int64)
        counted[piece], who[piece] = 1, 1 + self.number
        return [np.array([tested(self.weights, name, piece)]), counted, who]

    # A fit ----------------------------------------------------------------------------------------------

    def _fit_at_own_pace(self, call: int) -> Any:
        seed, plan = 7, self.plan
        source = Arrays([np.arange(plan.batches)], "leaf", 1, seed)
        if self.run.is_server:
            return self._serve(self._prepared(source, seed, PacedCallbacks(self)), call)
        assert self.run.servers is not None
        source = agree_on_data("fit", source, [], self.run)
        self.engine.begin(seed)
        prepared = self._prepared(source, seed, PacedCallbacks(self))
        training = ObservedPace(self.run, prepared, FitArguments(epochs=plan.epochs), call, self.run.servers)
        with closing(training):
            training.observe(self)
            over = training.run()
        return decode_plain(over) if over is not None else [int(v.value[0]) for v in self.engine.variables.trainable]

    def _prepared(self, source: Any, seed: int, callbacks: Any, validation: Any = None) -> Prepared:
        return Prepared(
            self.model,
            self.engine,
            self.optimizer,
            NoTables(),  # type: ignore[arg-type]
            Description(None, "jax", "3.15"),
            self.engine.trace(None),
            source,
            seed,
            None,
            validation,
            callbacks,
            AS_THEY_ARE,
        )

    def _serve(self, prepared: Prepared, call: int) -> Any:
        """As hook/served/serving.py does: until the fit is over; then what it returned to the workers."""
        run = self.run
        assert run.servers is not None
        layout = prepared.layout(run.servers.count, run.servers.staleness == 0)
        model = {variable.path: variable.value for variable in layout.variables}

        def make(number: int) -> ToyTensors:
            return ToyTensors(layout, layout.shards[number], model)

        with closing(CheckpointShardWriter(lambda number, held: {f"{number}": held.weights(())[0]})) as writer:
            server = run.server(call, layout.shapes, make, False, writer, Ledger(), self._kept, AS_THEY_ARE)
            with closing(server):
                server.serve(run.record)
        self._kept = server.kept()
        return decode_plain(run.calls.unpack(call, run.result_of(call)))

    def _fit(self, name: str, call: int) -> Any:
        run, engine, plan = self.run, self.engine, self.plan
        if run.is_server:
            source = Arrays([np.arange(SAMPLES)], "leaf", BATCH, 0)
            return self._serve(self._prepared(source, 0, ToyCallbacks(self, name)), call)
        leave_last(run)
        seed = self._agree_on_seed(name)
        source = agree_on_data("fit", Arrays([np.arange(SAMPLES)], "leaf", BATCH, seed), [], run)
        engine.begin(seed)
        callbacks = ToyCallbacks(self, name)
        optimizer, finished = self.optimizer, self.optimizer.finished
        prepared = self._prepared(source, seed, callbacks, ToyValidation(self, name) if plan.validates else None)
        arguments = FitArguments(epochs=EPOCHS[name])
        if plan.every:
            return self._fit_in_rounds(name, call, prepared, arguments, callbacks)
        if plan.stages:
            return self._fit_in_stages(name, call, prepared)
        updates: AbstractUpdates = OwnUpdates(engine, optimizer)
        if run.servers is not None:
            updates = ServedUpdates(run, prepared, run.servers, call)
        training = ObservedTraining(run, prepared, arguments, call, plan.pieces, True, updates)
        training.observe(self, name)
        with closing(training):
            if run.worker_group.is_late:
                training.prepare()
            over = training.run()
        if over is not None:
            return decode_plain(over)
        times = optimizer.finished - finished + (run.servers is not None)
        self.sim.watcher.check(times == 1, f"{name}: its optimizer was finished {times} times")
        return callbacks.returned

    def _fit_in_rounds(
        self, name: str, call: int, prepared: Prepared, arguments: FitArguments, callbacks: ToyCallbacks
    ) -> Any:
        finished = self.outer.finished
        settings = RoundSettings(
            self.plan.pieces, self.plan.every, self.plan.streaming or None, uneven=self.plan.uneven
        )
        training: ObservedRounds
        if self.plan.streaming:
            overlap = partial(Sometime, self.sim.world.random)
            training = ObservedStreams(self.run, prepared, arguments, call, settings, self.outer, overlap)
        else:
            training = ObservedRounds(self.run, prepared, arguments, call, settings, self.outer)
        training.observe(self, name)
        with closing(training):
            if self.run.worker_group.is_late:
                training.prepare()
            over = training.run()
        if over is not None:
            return decode_plain(over)
        self.sim.watcher.check(
            self.outer.finished == finished + 1, f"{name}: its outer optimizer was not finished once"
        )
        return callbacks.returned

    def _fit_in_stages(self, name: str, call: int, prepared: Prepared) -> Any:
        """As hook/calls/fit.py does."""
        engine, plan = self.engine, self.plan
        assert isinstance(engine, StagedEngine)
        if plan.lean:
            engine.forget_optimizer()
        self.stages = ToyStages(engine, plan)
        settings = PipelineSettings(plan.pieces, plan.stages, plan.lean)
        arguments, metrics = FitArguments(epochs=EPOCHS[name]), prepared.shape.only
        training = ObservedPipeline(self.run, prepared, arguments, call, settings, self.stages, metrics)
        training.observe(self, name)
        with closing(training):
            over = training.run()
        return decode_plain(over) if over is not None else prepared.callbacks.returned  # type: ignore[attr-defined]

    def holds_stage(self, stage: int) -> bool:
        """Whether others could get it from here: what is given in an act counts once that has committed."""
        if self.pipeline is None or self.stages is None:
            return False
        return stage in self.pipeline.holds() and self.stages.parts[stage].momentum is not None

    def _agree_on_seed(self, name: str) -> int:
        """The chief's counts; one that came late has another until it is told."""
        mine = 1000 + self.number
        if self.run.worker_group.is_late:
            return mine
        told = self.run.worker_group.gather(f"{name}: the seed", str(mine).encode())
        self.sim.watcher.agreed_on_seed(self, name, told)
        return int(told.chiefs)


class ObservedTraining(SynchronousTraining):
    """The product's own, which tells the watcher what it has done; it does nothing else than that one."""

    def observe(self, script: Script, name: str) -> None:
        self._script, self._name = script, name
        self._exchanged: list[Exchanged] = []

    def give(self) -> Result:
        given = super().give()
        self._script.sim.watcher.gave(self._script, self._name, self._at)
        return given

    def take(self, given: Result) -> None:
        super().take(given)
        self._script.knows = True
        self._script.sim.watcher.took(self._script, self._name, self._at)
        self._script.sim.mark("let in")

    def _exchange(self, part: int, what: str, task: Any) -> Exchanged | None:
        exchanged = super()._exchange(part, what, task)
        if exchanged is not None:
            self._script.sim.watcher.counted(self._script, f"{self._name}: {what}", exchanged)
            self._exchanged.append(exchanged)
        return exchanged

    def _train(self, epoch: int) -> Logs | None:
        self._exchanged, step = [], self._at.step
        logs = super()._train(epoch)
        if logs is not None:
            done = (self._name, epoch, step, self._script.weights)
            self._script.sim.watcher.committed(self._script, done, self._exchanged[0], logs)
            self._script.sim.watcher.same(self._script, f"speeds after {done}", self._division.balance)
        return logs


class ObservedRounds(LocalTraining):
    """The product's own, with replicas that train by themselves, which tells the watcher what it has done."""

    def observe(self, script: Script, name: str) -> None:
        self._script, self._name = script, name

    def give(self) -> Result:
        given = super().give()
        self._script.sim.watcher.gave(self._script, self._name, self._at)
        return given

    def take(self, given: Result) -> None:
        super().take(given)
        self._script.knows = True
        self._script.sim.watcher.took(self._script, self._name, self._at)
        self._script.sim.mark("let in")

    def _count(self, start: RoundStart, sizes: Sequence[int], exchanged: Exchanged) -> Logs:
        watcher, at = self._script.sim.watcher, self._at
        epoch, first = at.epoch, at.step
        self._check(f"{self._name}: round {epoch} {first}", exchanged, len(sizes))
        logs = super()._count(start, sizes, exchanged)
        for step in range(first, at.step):
            watcher.committed(self._script, (self._name, epoch, step, self._script.weights), exchanged, logs)
        watcher.same(self._script, f"speeds after {self._name} {epoch} {at.step}", self._division.balance)
        return logs

    def _next_counts(self, members: tuple[str, ...]) -> tuple[int, ...]:
        """Those that the reference has, since it does not know how fast workers are; the product's own are the same
        on all.
        """
        counts = super()._next_counts(members)
        self._script.sim.watcher.same(self._script, f"counts after {self._name} {self._at.total}", counts)
        return uneven_counts(self._at.total, len(counts), sum(counts) // len(counts))

    def _check(self, what: str, exchanged: Exchanged, steps: int) -> None:
        if self._uneven:
            self._check_who_took_what(what, exchanged, steps)
        else:
            self._script.sim.watcher.counted(self._script, what, self._in_steps(exchanged, steps))

    def _check_who_took_what(self, what: str, exchanged: Exchanged, steps: int) -> None:
        """Every piece of every batch once, by the member that hosts the replica that it was dealt to."""
        shared, pieces = exchanged.shared, range(self._replicas)
        counted, who = ((total * self._replicas).tolist() for total in exchanged.totals[1:3])
        hosts = [0] * self._replicas
        for member, held in zip(shared.members, shared.held, strict=True):
            for replica in range(*held):
                hosts[replica] = 1 + int(member.rpartition("-")[2])
        expected = [0] * self._replicas
        for runs in self._dealt[:steps]:
            takers = [replica for replica, run in enumerate(itertools.pairwise(runs)) for _ in range(*run)]
            expected = [expected[piece] + hosts[takers[piece]] for piece in pieces]
        self._script.sim.watcher.check(counted == [steps] * self._replicas, f"{what}: pieces were counted {counted}")
        self._script.sim.watcher.check(who == expected, f"{what}: {who}, expected {expected} of {shared}")

    def _in_steps(self, exchanged: Exchanged, steps: int) -> Exchanged:
        """What was exchanged, with what tells of replicas as one step of all together would have it."""
        weights, *told = exchanged.totals[:3]
        totals = [weights, *((one * self._replicas / steps).astype(np.int64) for one in told)]
        return msgspec.structs.replace(exchanged, totals=totals)


class ObservedStreams(ObservedRounds, StreamedTraining):
    """The same, of replicas that exchange a fragment at a time. What tells who has computed is not of one round."""

    def _check(self, what: str, exchanged: Exchanged, steps: int) -> None:
        pass


class Sometime:
    """What a thread would do meanwhile is done before the steps, or after them."""

    def __init__(self, chance: random.Random, act: Callable[[], Any]) -> None:
        self._act = act
        self._done = [act()] if chance.random() < 0.5 else []

    def check(self) -> None:
        pass

    def result(self) -> Any:
        self._done = self._done or [self._act()]
        return self._done[0]


class ObservedPace(AsynchronousTraining):
    """The product's own, at each worker's own pace, which tells what it has done."""

    def observe(self, script: Script) -> None:
        self._script = script
        if self._saver is not None:
            self._saver._schedule = ToySchedule(script)

    def _next(self) -> BatchWork | EpochEnd | LookUp | Rest:
        todo = super()._next()
        history, me = self._script.sim.history, self._script.process.name
        match todo:
            case EpochEnd(epoch, weights):
                history.saw_the_end(me, epoch, _values(weights))
            case Rest(epoch=epoch, counted=counted, weights=weights):
                for shard, held in enumerate(_values(weights)):
                    history.is_exact(f"the pause of {me}", shard, held, epoch, counted)
            case BatchWork(batch):
                history.is_at(me, batch.epoch, len(self._store._state._updates))
        return todo

    def _train(self, work: BatchWork) -> None:
        super()._train(work)
        if self._script.halts:
            self._script.halts = False
            self._script.sim.history.halted.add(work.batch.epoch)
            self._model.stop_training = True

    def _steps(self, epoch: int) -> Logs:
        logs = super()._steps(epoch)
        self._script.sim.watcher.met(self._script, epoch, logs, self._at)
        self._model.stop_training = False  # an epoch is halted, not the fit: it is short enough
        self._script.knows = True
        return logs

    def _save(self, rest: Rest) -> None:
        self._script.saves = False
        super()._save(rest)


class ToySchedule:
    """A checkpoint is due when a plan says so."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def due(self, step: int, last_step: int, seconds: float) -> bool:
        return self._script.saves


def _values(weights: Sequence[Any]) -> list[int]:
    return [int(arrays[0][0]) for arrays in weights]


class PacedCallbacks:
    """`Callbacks` that remember how many epochs they have seen."""

    stopped_by = ""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._epochs: list[int] = []

    def on_train_begin(self) -> None: ...

    def on_train_end(self, logs: Logs | None = None) -> None: ...

    def on_epoch_begin(self, epoch: int) -> None: ...

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._epochs.append(epoch)
        due = list(range(epoch + 1))
        me = self._script.process.name
        self._script.sim.watcher.check(self._epochs == due, f"{me}: callbacks saw the epochs {self._epochs}, not {due}")

    def on_train_batch_begin(self, batch: int) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Logs) -> None: ...

    def first_epoch(self, given: int) -> int:
        return given

    def run_users_code(self, hooks: Collection[str]) -> bool:
        return False

    def remember(self) -> tuple[bytes, list[Array]]:
        return encode_plain(self._epochs), []

    def restore(self, remembered: bytes, arrays: Sequence[Array]) -> None:
        self._epochs = decode_plain(remembered)


class ToyValidation:
    """A `Validation`."""

    bookmark = Bookmark()
    data = DataState()

    def __init__(self, script: Script, name: str) -> None:
        self._script, self._name = script, name

    def join(self, state: DataState) -> None:
        """Its data is always the same."""

    def run(self, epoch: int) -> Logs:
        return {"total": self._script.test(f"{self._name} epoch {epoch}: validation")}


class ToyCallbacks:
    """`Callbacks`: a History, one that stops the fit, one that evaluates; and they check when they are called."""

    stopped_by = ""

    def __init__(self, script: Script, name: str) -> None:
        self._script, self._name = script, name
        self._where = ""  # in which of Keras's pairs of begin and end
        self._epoch = 0
        self._next: int | None = None  # batch, as soon as one has been
        self._calls = 0  # for the batches of this fit
        self._history: list[Any] = []

    @property
    def returned(self) -> list[Any]:
        return [self._script.weights, self._calls, self._history]

    def on_train_begin(self) -> None:
        self._go("", "fit", "the fit begins")

    def on_train_end(self, logs: Logs | None = None) -> None:
        self._go("fit", "", "the fit ends")

    def on_epoch_begin(self, epoch: int) -> None:
        self._go("fit", "epoch", f"epoch {epoch} begins")
        self._epoch, self._next = epoch, None

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._go("epoch", "fit", f"epoch {epoch} ends")
        self._history.append([epoch, logs])
        if self._script.plan.nested:
            self._script.evaluate(f"{self._name} epoch {epoch}: callback")

    def on_train_batch_begin(self, batch: int) -> None:
        self._go("epoch", "batch", f"batch {batch} begins")
        self._script.sim.watcher.check(self._next in (None, batch), f"{self._next} was due, not batch {batch}")

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._go("batch", "epoch", f"batch {batch} ends")
        self._script.sim.watcher.logged(self._script, (self._name, self._epoch, batch), logs)
        self._next = batch + 1
        self._calls += 1
        listens = self._script.plan.stops_on in (None, self._script.number)
        if listens and stops(self._script.plan, self._name, self._epoch, batch):
            self._script.model.stop_training = True

    def first_epoch(self, given: int) -> int:
        return given

    def run_users_code(self, hooks: Collection[str]) -> bool:
        return True

    def remember(self) -> tuple[bytes, list[Array]]:
        return encode_plain(self._history), [np.array([self._calls])]

    def restore(self, remembered: bytes, arrays: Sequence[Array]) -> None:
        self._history, self._calls = decode_plain(remembered), int(arrays[0][0])

    def _go(self, before: str, after: str, what: str) -> None:
        me = self._script.process.name
        # A batch that did not count has no end: the data was over, or another has stopped before it.
        where = "epoch" if self._where == "batch" and before == "epoch" and after == "fit" else self._where
        self._script.sim.watcher.check(where == before, f"{me}: {what} within {self._where!r}, not {before!r}")
        self._where = after

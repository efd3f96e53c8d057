"""Training in stages: every step, pieces go through the workers' stages forward and back, and each stage is updated by
those who hold it.

The order of a step: take the rows of my pieces → my actions, one by one; what crosses a cut goes straight to who needs
it → for each of my stages, the sum of its gradients along the piece tree, among those who hold it → one exchange of
all, with the metrics and the notes → my stages' optimizers. The step counts when the last exchange has committed. Until
then nothing of the model has changed, and who is lost is replaced by others that hold the same stage: all pieces are
computed again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import numpy as np

from shoal.checkpoint.addresses import Place, place_of
from shoal.checkpoint.read import describe, newest_whole
from shoal.collectives.group import AbstractGroup, Result
from shoal.collectives.layout import Vector
from shoal.data.order import piece_bounds, pieces_of
from shoal.errors import Diverged, StageLost
from shoal.observe.phases import Phase
from shoal.observe.story import StoryKind
from shoal.planning.correction import StepSeen
from shoal.strategies.abstract import PipelineSettings
from shoal.strategies.balance import Balance
from shoal.strategies.holders import first_holder, may_leave, share
from shoal.strategies.notes import Note, check_agreement, decode, encode, stopped
from shoal.strategies.placement import StagePlacement
from shoal.strategies.schedule import Held
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape, to_float
from shoal.training.held_stages import HeldStages
from shoal.training.logs import Logs
from shoal.training.pipeline_step import PipelineStep, Sent
from shoal.training.plan_in_force import PlanInForce, StepClock
from shoal.training.prepared import FitArguments, Prepared
from shoal.training.resuming import Expected, resume_by_stage
from shoal.training.run import Run
from shoal.training.stage_engine import AbstractStageEngine, AbstractStages
from shoal.training.stage_sums import StageSums
from shoal.training.stepwise import AbstractStepwiseTraining

_OF_CHECKPOINT = 2  # values of a state that a checkpoint has too; a newcomer is told one more


class PipelinedTraining(AbstractStepwiseTraining):
    """A `fit` in which each worker trains its stages of the model."""

    holds_apart = "a pipeline's stages"

    def __init__(
        self,
        run: Run,
        prepared: Prepared,
        arguments: FitArguments,
        call: int,
        settings: PipelineSettings,
        stages: AbstractStages,
        metrics: PartShape,
        plan: PlanInForce | None = None,
    ) -> None:
        """`metrics`: what the last stage gives out besides its gradients. `plan`: may change while training goes on."""
        super().__init__(run, prepared, arguments, call)
        self._stages = stages
        self._held = HeldStages(run, stages, prepared.optimizer, copies=not settings.lean)
        self._is_lean = settings.lean
        self._pieces = settings.pieces
        self._speeds = settings.speeds
        self._plan = plan
        self._clock = StepClock()
        self._count = len(stages.engines)
        self._balances = [Balance.start()] * self._count
        self._sums = StageSums([engine.shape.schema for engine in stages.engines], metrics.schema)
        self._metrics = metrics
        self._totals: dict[int, list[Array]] = {}  # of this worker's stages, in the step that is going on
        self._tied = _tied(stages.engines)

    def close(self) -> None:
        self._held.close()
        self._sums.close()
        super().close()

    # Before and after -------------------------------------------------------------------------------

    def _start(self) -> None:
        told = self._run.worker_group.gather("fit: the stages", self._stages.fingerprint)
        if odd := told.unlike_chiefs():
            raise Diverged(
                f"fit: the stages of {', '.join(odd)} are not the chief's. Every worker must build the same model: do "
                "not make it depend on the rank."
            )
        if self._plan is not None:
            self._plan.start()
            self._pieces = self._plan.candidate.pieces
        self._held.start(told.members, self._speeds)
        self._resume(served=True)
        self._tell_stages(told.members)

    def _tell_stages(self, members: Sequence[str]) -> None:
        total, placement = sum(self._stages.costs), self._held.placement
        for stage, layers in enumerate(self._stages.described):
            names = ", ".join(member for member in members if stage in placement.computes[member])
            part = self._stages.costs[stage] / total
            keepers = ", ".join(member for member in members if stage in placement.keeps[member])
            kept = f"; a copy: {keepers}" if keepers else ""
            self._run.tell(f"stage {stage} ({layers}, {part:.0%} of the work): {names}{kept}")

    def _end(self) -> None:
        self._save_last()
        self._sums.close()
        if self._arguments.epochs > 0:
            self._held.finish()
        self._held.gather(not self._is_lean, self._at.trained)
        if self._is_lean and self._has_trained:
            self._run.tell(
                "fit is over: every worker has all weights. The optimizer's state was divided and is gone, as "
                "Pipeline(lean=True) says: a file that model.save writes has none"
            )

    # What a newcomer is told, and a checkpoint keeps ------------------------------------------------

    def give(self) -> Result:
        self._at.pieces, self._at.balance = self._pieces, Balance.start()
        self._at.samples, self._at.extras = 0, []
        if self._plan is not None:
            self._plan.give(self._at)
        given = super().give()
        return Result([*given.values, msgspec.msgpack.encode((self._held.placement, self._balances))], given.arrays)

    def take(self, given: Result) -> None:
        """From a checkpoint, or, for a newcomer, from another. It gets its stage with the first step."""
        super().take(given)
        if self._plan is not None:
            self._plan.take(self._at)
            self._pieces = self._plan.candidate.pieces
        if len(given.values) > _OF_CHECKPOINT:
            told = given.values[_OF_CHECKPOINT]
            self._held.placement, self._balances = msgspec.msgpack.decode(
                told, type=tuple[StagePlacement, list[Balance]]
            )

    def _state(self) -> list[Array]:
        return [*self._engine.progress(), *(self._engine.read(variable) for variable in self._stages.shared())]

    def _set_state(self, arrays: Sequence[Array]) -> None:
        shared = self._stages.shared()
        count = len(arrays) - len(shared)
        self._engine.set_progress(arrays[:count])
        self._engine.write(shared, arrays[count:])

    def _read(self, checkpoint: Place, expected: Expected) -> Result:
        variables = self._optimizer.own.variables
        shared = {id(variable) for variable in self._stages.shared()}
        numbers = [number for number, variable in enumerate(variables) if id(variable) in shared]
        return resume_by_stage(self._run.worker_group, checkpoint, expected._replace(shared=numbers), self._held.load)

    def _begin_checkpoint(self) -> None:
        assert self._saver is not None
        saver, run = self._saver, self._run
        given, (members, view) = super().give(), self._held.whole_among()
        *metrics, seeds = self._engine.progress()
        remembered = given.arrays[len(self._state()) :]

        def tensors() -> dict[str, Array]:
            mine = self._held.to_write(members)
            return mine | saver.small(metrics, seeds, remembered) if members[0] == run.me else mine

        step, returned = self._at.trained, run.calls.returned
        saver.begin_apart(step, view, members, given.values, tensors, self._call, returned)

    def _to_the_end(self) -> None:
        lost: StageLost | None = None
        while True:
            try:
                if lost is not None:
                    self._go_back(lost)
                super()._to_the_end()
                return
            except StageLost as error:
                if error is lost:  # there is nothing to go back to
                    raise
                lost = error

    def _go_back(self, lost: StageLost) -> None:
        """A stage is lost, with its copy if there was one: all go on from the last checkpoint of this fit."""
        run, saving = self._run, self._run.saving
        if saving is None or self._saver is None:
            raise lost
        self._saver.give_up()
        self._source.end(self._at.step)
        folder = place_of(saving.folder)
        told = run.worker_group.gather(
            "fit: the checkpoint to go back to", lambda group: _last_of(folder, self._call, group)
        )
        if not told.chiefs:
            raise lost
        path, at = place_of(told.chiefs.decode()), self._at.trained
        self._held.start(told.members, self._speeds)
        self._balances = [Balance.start()] * self._count
        self._newcomers, self._leavers, self._save_next = (), (), False
        self._go_to(path, served=True)
        text = f"{lost.why}: all go back from step {at} to {path.name}, which was taken after step {self._at.trained}"
        run.happened(StoryKind.REDONE, text, at)
        if run.is_chief:
            run.tell(text, below_bar=True)

    # Steps ------------------------------------------------------------------------------------------

    def _after_steps(self) -> None:
        """Validation and the callbacks of the epoch's end see the whole model."""
        users = self._callbacks.run_users_code(("on_epoch_end", "on_test_begin", "on_test_end"))
        if self._validation is not None or self._arguments.callbacks or users:
            self._held.gather(bool(self._arguments.callbacks) and not self._is_lean, self._at.trained)

    def _train(self, epoch: int) -> Logs | None:
        return self._take_step(epoch)

    def _tell_stop(self, epoch: int) -> None:
        self._take_step(epoch, stop=True)

    def _take_step(self, epoch: int, stop: bool = False) -> Logs | None:
        engine, at = self._engine, self._at
        if self._source.is_over(at.step):
            return None
        self._do_what_is_due()
        result = self._run.worker_group.commit(
            lambda group: self._act(group, f"fit epoch {epoch} step {at.step}", stop),
            keeper=self,
            admit=self._newcomers,
            leavers=self._leavers,
        )
        if not result.values:
            return None
        shared = msgspec.msgpack.decode(result.values[0], type=_CommittedStep)
        members, notes = shared.members, decode(result.values[1:])
        check_agreement(members, notes)
        self._held.settled(shared.placement, at.trained)
        self._hear(members, notes)
        self._leavers = may_leave(self._held.placement.holds, self._count, members, self._leavers)
        if stopped(notes):
            self._model.stop_training = True
            return None
        engine.add_metrics(self._metrics.schema.views(Vector(*result.arrays)), self._metrics.metrics)
        logs = {log: to_float(value) for log, value in engine.metric_results().items()}
        self._apply()
        self._step_is_done(shared.size, self._pieces)
        held = [[range(*run) for run in runs] for runs in shared.held]
        self._learn(members, held, notes, shared.size)
        self._consider_plan(shared, held, notes)
        return {name: logs[name] for name in self._shape.logs}

    def _apply(self) -> None:
        self._run.record(Phase.APPLYING, step=self._at.trained)
        rate, engines = self._optimizer.rate(), self._stages.engines
        tied = [
            (places, np.array(self._engine.read(engines[min(mine)].trainable[places[min(mine)]])))
            for places in self._tied
            if len(mine := places.keys() & self._totals.keys()) > 1
        ]
        for stage, totals in self._totals.items():
            holder = engines[stage]
            holder.follow_rate(rate)
            for places, before in tied:  # each stage's optimizer updates it, from the same value
                if stage in places:
                    holder.put_back(places[stage], before)
            gradients, states, _, _ = holder.shape.split(totals)
            holder.apply(gradients, states)
        self._optimizer.count_updates(1)
        self._totals = {}

    def _act(self, group: AbstractGroup, what: str, stop: bool) -> Result:
        """A step up to its commit. Leaves the totals of this worker's stages behind."""
        placement = self._held.settle(group)
        for engine in self._stages.engines:
            engine.forget()
        at, members = self._at, group.members
        self._run.record(Phase.READING, step=at.trained)
        held: Held = ()

        def split(size: int) -> Sequence[range]:
            nonlocal held
            pieces = pieces_of(size, self._pieces)
            held = share(placement.computes, pieces, members, self._balances)
            bounds = piece_bounds(size, pieces)
            runs = [_hull([of_stage[rank] for of_stage in held]) for rank in range(len(members))]
            return [range(bounds[run.start], bounds[run.stop]) for run in runs]

        taken = self._source.take(at.step, split, group)
        if taken is None:
            return Result([], [])
        if not held:
            split(taken.size)
        step = PipelineStep(self._run, self._engine, self._stages.engines, self._source.spec(), taken, held, group)
        began = time.perf_counter()
        holding = self._held.ranks(placement, members)
        fillings = self._sums.open(group, held, holding)
        step.compute(what, fillings, at.trained)
        self._run.record(Phase.EXCHANGING, step=at.trained)
        group.flush(what)
        pieces = pieces_of(taken.size, self._pieces)
        self._totals = self._sums.reduce(group, what, pieces, held, holding)
        self._sum_tied(group, what, placement)
        note = Note(
            at.total,
            stop=stop,
            seconds=min(step.seconds, time.perf_counter() - began),
            checkpoint=self._is_due(),
            part=self._saver.word() if self._saver is not None else None,
            candidates=self._run.candidates(self._call),
            leaves=self._run.drains,
            took=self._clock.took,
        )
        total, notes = self._sums.reduce_metrics(what, pieces, held, encode(note))
        runs = [[(run.start, run.stop) for run in of_stage] for of_stage in held]
        shared = _CommittedStep(taken.size, members, runs, placement)
        return Result([msgspec.msgpack.encode(shared), *notes], list(total))

    def _sum_tied(self, group: AbstractGroup, what: str, placement: StagePlacement) -> None:
        """Weights that several stages use have the sum of their gradients, in the order of stages, on all of them."""
        holds = placement.holds
        for number, places in enumerate(self._tied):
            mine = [stage for stage in places if stage in self._totals]
            if not mine:
                continue
            parts = []
            for stage, place in places.items():
                speaks = first_holder(holds, stage, group.members)
                others = [
                    rank
                    for rank, member in enumerate(group.members)
                    if stage not in holds[member] and set(holds[member]) & places.keys()
                ]
                if stage in self._totals:
                    parts.append(self._totals[stage][place])
                    if speaks == group.rank and others:
                        group.send(others, (Sent.TIED, number, stage), [parts[-1]])
                else:
                    (array,) = group.receive(speaks, (Sent.TIED, number, stage), what)
                    parts.append(array)
            total = parts[0] + parts[1]
            for part in parts[2:]:
                total = total + part
            for stage in mine:
                self._totals[stage][places[stage]] = total
        group.flush(what)

    def _consider_plan(self, shared: _CommittedStep, held: Held, notes: Sequence[Note]) -> None:
        """What steps take may call for other pieces, or for stages at other workers. Decided alike by all."""
        if self._plan is None:
            return
        self._clock.step()
        ranks = range(len(shared.members))
        seen = StepSeen(
            shared.members,
            shared.size,
            pieces_of(shared.size, self._pieces),
            tuple(tuple((stage, runs[rank]) for stage, runs in enumerate(held) if runs[rank]) for rank in ranks),
            tuple(note.seconds for note in notes),
            (0.0,) * len(notes),
            tuple(note.took for note in notes),
            shared.placement,
        )
        if self._plan.step(seen, self._at, self._source.steps):
            self._pieces = self._plan.candidate.pieces
            if self._plan.placement is not None:
                self._held.want(self._plan.placement)

    def _learn(self, members: tuple[str, ...], held: Held, notes: Sequence[Note], size: int) -> None:
        """Those who share a stage share its pieces by their paces. Decided alike by all."""
        computes = self._held.placement.computes
        if any(len(computes.get(member, ())) != 1 for member in members):
            return
        for stage in range(self._count):
            ranks = [rank for rank, member in enumerate(members) if stage in computes[member]]
            if len(ranks) > 1:
                runs = tuple(held[stage][rank] for rank in ranks)
                seconds = tuple(notes[rank].seconds for rank in ranks)
                names = tuple(members[rank] for rank in ranks)
                self._balances[stage] = self._balances[stage].observe(names, runs, seconds, size)


class _CommittedStep(msgspec.Struct, frozen=True, array_like=True):
    """Of a committed step, the same on all."""

    size: int
    members: tuple[str, ...]
    held: list[list[tuple[int, int]]]  # of each stage, by rank: the first piece, and one past the last
    placement: StagePlacement


def _last_of(folder: Place, call: int, group: AbstractGroup) -> bytes:
    """The chief's word: the newest checkpoint that was taken in this call; empty if there is none."""
    if group.rank:
        return b""
    path, _ = newest_whole(folder)
    return str(path).encode() if path is not None and describe(path).header["call"] == call else b""


def _hull(runs: Sequence[range]) -> range:
    filled = [run for run in runs if run]
    return range(min(run.start for run in filled), max(run.stop for run in filled)) if filled else range(0)


def _tied(engines: Sequence[AbstractStageEngine]) -> list[dict[int, int]]:
    """Weights that several stages train: for each, the stages and its place among their gradients."""
    places: dict[int, dict[int, int]] = {}
    for engine in engines:
        for place, variable in enumerate(engine.trainable):
            places.setdefault(id(variable), {})[engine.stage.number] = place
    return [found for found in places.values() if len(found) > 1]

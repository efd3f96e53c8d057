"""Synchronous training: every step, all workers' gradients are summed and every worker applies the same update.

The order of a step: take the rows of my pieces → backward per piece, summed into my slots → exchange → apply → logs. A
step that applies several optimizers does this part by part. A part counts when its exchange has committed; who is lost
in the middle of a step is replaced by those who are left, and newcomers come in between two steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from shoal.codecs.codec import AbstractCodec
from shoal.collectives.group import AbstractGroup, Result
from shoal.data.sources import AbstractSource, Split, Taken
from shoal.errors import Diverged
from shoal.observe.phases import Phase
from shoal.observe.story import StoryKind
from shoal.planning.candidates import Kind
from shoal.planning.correction import StepSeen
from shoal.strategies.allreduce import Division, Exchanged, Reduction, seconds_of
from shoal.strategies.notes import Note, stopped
from shoal.strategies.piece_choice import EVERY as LOOK_EVERY
from shoal.strategies.schema import Array
from shoal.strategies.share_news import ShareNews
from shoal.training.codec_choice import CodecChoice
from shoal.training.counted import counted_piece
from shoal.training.engine import Engine, to_float
from shoal.training.left_out import left_out_tensors, refuse_own_folders, resume_left_out
from shoal.training.logs import Logs
from shoal.training.model_state import fingerprint
from shoal.training.plan_in_force import PlanInForce, StepClock
from shoal.training.position import Position
from shoal.training.prepared import FitArguments, Prepared
from shoal.training.run import Run
from shoal.training.stepwise import AbstractStepwiseTraining
from shoal.training.updates import AbstractUpdates, PartTotals


class SynchronousTraining(AbstractStepwiseTraining):
    """A `fit` in which all workers take every step together."""

    def __init__(
        self,
        run: Run,
        prepared: Prepared,
        arguments: FitArguments,
        call: int,
        pieces: int,
        fixed: bool,
        updates: AbstractUpdates,
        plan: PlanInForce | None = None,
        updates_for: Callable[[bool], AbstractUpdates] | None = None,
    ) -> None:
        """`plan`: may change while training goes on; then `updates_for` makes updates that are sliced, or are not."""
        super().__init__(run, prepared, arguments, call, updates.parts)
        self._updates = updates
        self._plan = plan
        self._updates_for = updates_for
        self._clock = StepClock()
        self._fixed_pieces = fixes_pieces(fixed, prepared.codec)
        self._division = Division(pieces)
        self._reductions = [
            Reduction(
                run.worker_group,
                part.schema,
                self._division,
                name,
                self._engine.release,
                prepared.codec,
                self._tell_of_lost_residuals,
                loss_scale=self._loss_scale,
            )
            for part, name in zip(self._shape.parts, _names("fit", len(self._shape.parts)), strict=True)
        ]
        refuse_own_folders(run, self._reductions)
        self._share_news = ShareNews()
        self._choice: CodecChoice | None = None
        if prepared.codec.is_auto:
            gradients = sum(run.hi - run.lo for part in self._shape.parts for run in part.schema.gradients)
            self._choice = CodecChoice(run.counters.traffic, gradients)

    def prepare(self) -> None:
        """For a newcomer, before it is let in."""
        for reduction in self._reductions:
            reduction.prepare()

    def close(self) -> None:
        self._updates.close()
        super().close()
        for reduction in self._reductions:
            reduction.close()

    def _start(self) -> None:
        if self._plan is not None:
            self._plan.start()
            self._follow_plan()
        path = self._run.calls.resumes(self._call)
        self._resume(served=self._updates.parts is not None)
        if path is not None:
            resume_left_out(self._run, path, self._reductions)
        self._updates.open(self._at.epoch, self._source.steps, self._resumed_at)

    def _end(self) -> None:
        self._save_last()
        self._updates.finish(is_trained=self._arguments.epochs > 0)

    # What a newcomer is told ------------------------------------------------------------------------

    def give(self) -> Result:
        self._updates.show()
        self._at.pieces, self._at.balance = self._division.pieces, self._division.balance
        self._at.samples, self._at.extras = 0, []
        self._at.codec = self._choice.current if self._choice is not None else ""
        if self._plan is not None:
            self._plan.give(self._at)
        return super().give()

    def take(self, given: Result) -> None:
        super().take(given)
        self._division.pieces = self._at.pieces or self._division.pieces
        self._division.balance = self._at.balance
        if self._choice is not None and self._at.codec != self._choice.current:
            self._round_like(self._choice.take(self._at.codec))
        if self._plan is not None:
            self._plan.take(self._at)
            self._follow_plan()
        self._updates.took()

    def _begin_checkpoint(self) -> None:
        assert self._saver is not None
        left_out = left_out_tensors(self._reductions)
        worker_group, run = self._run.worker_group, self._run
        step, returned = self._at.trained, run.calls.returned
        members = worker_group.members
        self._saver.begin(
            step, worker_group.view, members, self.give(), self._call, returned, run.is_chief, left_out=left_out
        )

    def _is_worth_saving(self) -> bool:
        # Without a step, servers that were never asked for anything have nothing to write.
        return self._updates.parts is None or self._has_trained

    # Steps ------------------------------------------------------------------------------------------

    def _after_steps(self) -> None:
        self._updates.watch()

    def _train(self, epoch: int) -> Logs | None:
        engine, at = self._engine, self._at
        if self._source.is_over(at.step):
            return None
        self._updates.hear(epoch, at.step)
        self._do_what_is_due()
        task = _StepTask(self._run, engine, self._source, self._updates, at, self._note)
        name = f"fit epoch {epoch} step {at.step}"
        extras: Logs = {}
        parts: list[Exchanged] = []
        for part, what in enumerate(_names(name, len(self._shape.parts))):
            exchanged = self._exchange(part, what, task)
            if exchanged is None:
                return None
            parts.append(exchanged)
            gradients, states, metrics, found = self._shape.parts[part].split(exchanged.totals)
            extras |= {log: to_float(value) for log, value in found.items()}
            engine.add_metrics(metrics, self._shape.parts[part].metrics)
            if part == len(self._shape.parts) - 1:
                logs = engine.metric_results() | extras
                logs = {log: to_float(logs[log]) for log in self._shape.logs}
            self._run.record(Phase.APPLYING, step=at.trained)
            totals = PartTotals(gradients, states, exchanged.vector.f32, self._division.balance)
            self._updates.apply(epoch, at.step, part, totals)
        self._step_is_done(parts[0].shared.size, self._division.pieces)
        self._division.learn(parts)
        self._clock.step()
        shared = parts[-1].shared
        if told := self._share_news.of(shared.members, shared.held, self._at.trained):
            self._run.happened(StoryKind.BALANCE, told, self._at.trained)
        self._choose_codec(parts[-1])
        self._consider_pieces(parts)
        self._consider_plan(parts)
        return logs

    def _exchange(self, part: int, what: str, task: _StepTask) -> Exchanged | None:
        """One part of a step; None if the step does not count, which its first part tells."""
        task.part = part
        reduction = self._reductions[part]
        if part == 0:
            exchanged = reduction.step(what, task, keeper=self, admit=self._newcomers, leavers=self._leavers)
        else:
            exchanged = reduction.step(what, task)
        if exchanged is None:
            if part > 0:
                raise Diverged(f"{what}: the data ended in the middle of a step, after the chief was lost")
            return None
        if stopped(exchanged.notes):
            self._model.stop_training = True
        if part == len(self._shape.parts) - 1 or stopped(exchanged.notes):
            self._hear(exchanged.shared.members, exchanged.notes)
        return None if stopped(exchanged.notes) else exchanged

    def _consider_pieces(self, parts: Sequence[Exchanged]) -> None:
        """Unequal workers need more pieces than equal ones to be used well. Decided alike by all."""
        shared, division, at = parts[-1].shared, self._division, self._at
        if self._fixed_pieces or any(part.shared != shared for part in parts):
            return
        took = tuple(note.took for note in parts[-1].notes)  # the exchange too: more pieces may mean more bytes
        at.piece_choice = at.piece_choice.observe(shared.members, took, shared.size)
        if at.total % LOOK_EVERY:
            return
        before = division.pieces
        division.pieces, at.piece_choice = at.piece_choice.look(division.balance, before, shared.size)
        if division.pieces != before:
            why = "the workers' speeds differ" if division.pieces > before else "steps did not get shorter by it"
            text = f"{why}: {division.pieces} pieces, not {before}, from step {at.trained} on"
            self._run.tell(text, below_bar=True)
            self._run.happened(StoryKind.BALANCE, text, at.trained)

    def _consider_plan(self, parts: Sequence[Exchanged]) -> None:
        """What steps take may call for another plan. Decided alike by all."""
        if self._plan is None:
            return
        shared, notes = parts[-1].shared, parts[-1].notes
        if any(part.shared != shared for part in parts):
            return  # somebody was lost in the middle of it
        seen = StepSeen(
            shared.members,
            shared.size,
            shared.pieces,
            tuple(((0, range(start, stop)),) for start, stop in shared.held),
            seconds_of(parts),
            tuple(note.update for note in parts[0].notes),
            tuple(note.took for note in notes),
        )
        if self._plan.step(seen, self._at, self._source.steps):
            self._follow_plan()

    def _follow_plan(self) -> None:
        """Between two steps: trains as the plan in force says."""
        assert self._plan is not None
        plan = self._plan.candidate
        self._division.pieces = plan.pieces
        sliced = plan.kind is Kind.SLICED
        if sliced != self._updates.is_sliced and self._updates_for is not None:
            self._engine.settle()
            self._updates.close()
            self._updates = self._updates_for(sliced)

    def _loss_scale(self) -> float:
        """By which the loss of the step that goes on is multiplied."""
        number, variables = self._optimizer.number_of_loss_scale, self._engine.variables
        if self._engine.loss_scale is not None:
            return self._engine.loss_scale
        if number is None or len(variables.optimizers) != 1:
            return 1.0
        return float(self._engine.read(self._optimizer.known(variables)[number]))

    def _tell_of_lost_residuals(self, slots: Sequence[int]) -> None:
        text = (
            f"what gradients of {len(slots)} piece{'s' if len(slots) > 1 else ''} had left out was lost with a host: "
            "zero from now on, for everybody"
        )
        self._run.happened(StoryKind.CODEC, text, self._at.trained)

    def _choose_codec(self, exchanged: Exchanged) -> None:
        """What is measured of the link may call for another codec. Decided alike by all."""
        if self._choice is None:
            return
        self._choice.step()
        codec = self._choice.hear([note.link for note in exchanged.notes])
        if codec is not None:
            self._round_like(codec)
            form = f"as {self._choice.current}" if self._choice.current else "as they are"
            text = f"gradients travel {form} from step {self._at.trained} on: measured to be faster on these links"
            self._run.happened(StoryKind.CODEC, text, self._at.trained)

    def _round_like(self, codec: AbstractCodec) -> None:
        for reduction in self._reductions:
            reduction.round_like(codec)

    def _note(self, seconds: float, part: int, stop: bool = False) -> Note:
        """What stood before the step is said with its first part; what is to be done after it with its last."""
        at, run, saver = self._at, self._run, self._saver
        due = part == 0 and not stop and at.total % run.check_every == 0
        weights = fingerprint(self._engine) if due else None
        note = Note(at.total, stop=stop, seconds=seconds, weights=weights, update=self._updates.seconds)
        if part < len(self._shape.parts) - 1 and not stop:
            return note
        return msgspec.structs.replace(
            note,
            took=self._clock.took,
            candidates=run.candidates(self._call),
            checkpoint=self._is_due(),
            part=saver.word() if saver is not None else None,
            leaves=run.drains,
            link=self._choice.note() if self._choice is not None else None,
        )

    def _tell_stop(self, epoch: int) -> None:
        if self._source.is_over(self._at.step):
            return
        stops = partial(self._note, stop=True)
        task = _StepTask(self._run, self._engine, self._source, self._updates, self._at, stops)
        what = _names(f"fit epoch {epoch} step {self._at.step}", len(self._shape.parts))[0]
        self._reductions[0].step(what, task, stops=True)


def fixes_pieces(told: bool, codec: AbstractCodec) -> bool:
    """Whether batches are cut into as many pieces throughout: if somebody has told so, or if something is left out of
    pieces, by their numbers, that would never be sent with fewer of them.
    """
    return told or codec.by_slot is not None


class _StepTask:
    """One worker's part of a step, as often as it is asked for."""

    def __init__(
        self,
        run: Run,
        engine: Engine,
        source: AbstractSource,
        updates: AbstractUpdates,
        at: Position,
        note: Callable[[float, int], Note],
    ) -> None:
        self._run = run
        self._engine = engine
        self._source = source
        self._updates = updates
        self._at = at
        self._note = note
        self.part = 0  # of the step
        self._taken: Taken | None = None
        self._taken_in: AbstractGroup | None = None
        self._started = 0.0
        self._last: tuple[int, int, Sequence[Array]] | None = None  # the last piece: a redo need not compute it again

    def take(self, split: Split, group: AbstractGroup) -> int | None:
        # In another view everyone's rows are others.
        if self._taken_in is not None and group is not self._taken_in:
            self._run.happened(StoryKind.REDONE, "computed anew among those who are left", self._at.trained)
        if self.part == 0 or group is not self._taken_in:
            self._run.record(Phase.READING, step=self._at.trained)
            self._taken = self._source.take(self._at.step, split, group)
            self._taken_in = group
            if self._taken is not None:
                self._updates.bring(self._source, self._at.step, self._taken, group)
        self._updates.settle()  # what is left of the last update is no part of this step's pieces
        self._started = time.perf_counter()
        return self._taken.size if self._taken is not None else None

    def compute(self, piece: int, low: int, high: int) -> Sequence[Array]:
        taken = self._taken
        assert taken is not None, "take() first"
        if self._last is not None and self._last[:2] == (self.part, piece):
            return self._last[2]
        self._run.record(
            Phase.COMPUTING, f"piece {piece}: {self._source.names(self._at.step, range(low, high))}", self._at.trained
        )
        batch, weight = self._engine.batch(self._source.spec(), taken.part(low, high)), (high - low) / taken.size
        arrays = counted_piece(self._run, self._engine, self.part, batch, piece, weight, high - low)
        self._last = (self.part, piece, arrays) if self._engine.pieces_last else None
        return arrays

    def note(self) -> Note:
        self._engine.settle()  # a worker without a piece in this step has not waited for its last update yet
        self._run.record(Phase.EXCHANGING, step=self._at.trained)
        return self._note(time.perf_counter() - self._started, self.part)


def _names(what: str, parts: int) -> list[str]:
    """Of the parts of a step, for people and for the exchange."""
    return [what] if parts == 1 else [f"{what} part {part}" for part in range(parts)]

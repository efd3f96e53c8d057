"""Synchronous training: every step, all workers' gradients are summed and every worker applies the same update.

The order of a step: take the rows of my pieces → backward per piece, summed into my slots → exchange → apply → logs.
A step counts when its exchange has committed; until then nothing of the model has changed but the rows that it shows.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial

from shoal.collectives.group import AbstractGroup, Result
from shoal.data.sources import AbstractSource, Split, Taken
from shoal.hook import feeds
from shoal.hook.engine import AbstractEngine, Logs, to_float
from shoal.hook.model_state import fingerprint
from shoal.hook.position import Position
from shoal.hook.resuming import Expected
from shoal.hook.run import Run
from shoal.hook.saving import Saver
from shoal.hook.training import AbstractTraining, FitArguments, Prepared
from shoal.hook.updates import AbstractUpdates
from shoal.strategies.allreduce import Reduction, Shared
from shoal.strategies.balance import suggest_pieces
from shoal.strategies.notes import Note, leavers, newcomers, stopped
from shoal.strategies.schema import Array

_WORTHWHILE = 0.75  # the part of the workers' summed speeds that is used: below it, more pieces are worth their price
_MOST_PIECES = 8  # per worker
_CONSIDER_EVERY = 20  # steps between two looks at whether more pieces would pay


class SynchronousTraining(AbstractTraining):
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
    ) -> None:
        super().__init__(run, prepared, arguments, call)
        self._updates = updates
        self._fixed_pieces = fixed
        self._reduction = Reduction(run.company, self._shape.schema, pieces, "fit", on_reopen=self._engine.release)
        self._newcomers: tuple[str, ...] = ()  # to be let in before the next step
        self._leavers: tuple[str, ...] = ()  # gone before the next step
        self._saver = (
            Saver(run.saving, run.me, self._model, self._engine, run.trained, updates.parts) if run.saving else None
        )
        self._save_next = False

    def prepare(self) -> None:
        """For a newcomer, before it is let in."""
        self._reduction.prepare()

    def close(self) -> None:
        self._updates.close()
        self._engine.release()
        self._reduction.close()
        if self._saver is not None:
            self._saver.close()

    def _begin(self) -> bytes | None:
        if self._run.company.is_late:
            self._run.say("waiting to be let in")
            return self._run.company.enter(self, self._call)
        self._agree_on_start(self._model._initial_epoch or self._arguments.initial_epoch)
        self._resume(Expected(self._engine, served=self._updates.parts is not None))
        if self._saver is not None and self._resumed_at is not None:
            self._saver.resumed(self._resumed_at)
        self._updates.open(self._at.epoch, self._source.steps, self._resumed_at)
        return None

    def _end(self) -> None:
        self._save_last()
        self._updates.finish(is_trained=self._arguments.epochs > 0)

    # What a newcomer is told ------------------------------------------------------------------------

    def give(self) -> Result:
        self._at.pieces, self._at.balance = self._reduction.pieces, self._reduction.balance
        self._at.samples, self._at.extras = 0, []
        return super().give()

    def take(self, given: Result) -> None:
        super().take(given)
        self._reduction.pieces = self._at.pieces or self._reduction.pieces
        self._reduction.balance = self._at.balance

    def _save(self) -> None:
        """Between two steps: begin a checkpoint."""
        assert self._saver is not None
        self._save_next = False
        company = self._run.company
        self._run.say("copying for a checkpoint", self._at.total)
        returned = self._run.calls.returned
        step, chief = self._at.trained, self._run.is_chief
        self._saver.begin(step, company.view, company.members, self.give(), self._call, returned, chief)

    def _leave(self) -> None:
        """Between two steps: give up the seat. The last ones to leave write a checkpoint before they go."""
        if set(self._leavers) >= set(self._run.company.members):
            self._save_last()
        self._run.leave()

    def _save_last(self) -> None:
        """The fit is over: its end is worth a checkpoint, on disk before the script goes on."""
        if self._saver is not None:
            self._saver.finish(self._run.company, self._run.is_chief)
            # Without a step, servers that were never asked for anything have nothing to write.
            if self._updates.parts is None or self._has_trained:
                self._save()
            self._saver.finish(self._run.company, self._run.is_chief)

    # Steps ------------------------------------------------------------------------------------------

    def _steps(self, epoch: int) -> Logs:
        """The steps of an epoch, `steps_per_execution` of them between two calls of the callbacks."""
        model, steps, at = self._model, self._source.steps, self._at
        while steps is None or at.step < steps:
            # Counted from the epoch's start: a worker that comes in the middle calls its callbacks when the others do.
            first = at.step
            last = first - first % model.steps_per_execution + model.steps_per_execution
            last = last if steps is None else min(last, steps)
            self._callbacks.on_train_batch_begin(first)
            while at.step < last and (done := self._train(epoch)) is not None:
                at.logs = done
            if at.step > first:
                self._callbacks.on_train_batch_end(at.step - 1, at.logs)
            if at.step < last:  # the data ran out, or another worker stopped
                self._warn_if_short(at.step, steps)
                break
            if model.stop_training and at.step != steps:
                self._tell_stop(epoch)
                break
        return at.logs

    def _train(self, epoch: int) -> Logs | None:
        """One step; None when there is no data for it, or a worker stopped before it so that it does not count."""
        engine, at = self._engine, self._at
        if self._source.is_over(at.step):
            return None
        if self._run.me in self._leavers:
            self._leave()
        if self._save_next:
            self._save()
        task = _StepTask(self._run, engine, self._source, self._updates, at, self._note)
        name = f"fit epoch {epoch} step {at.step}"
        exchanged = self._reduction.step(name, task, keeper=self, admit=self._newcomers, leavers=self._leavers)
        if exchanged is None:
            return None
        self._newcomers = newcomers(exchanged.notes)
        self._leavers = leavers(exchanged.shared.members, exchanged.notes)
        if self._saver is not None:
            self._saver.hear(exchanged.shared.members, exchanged.notes, self._run.is_chief)
            self._save_next = any(note.checkpoint for note in exchanged.notes)
        if stopped(exchanged.notes):
            self._model.stop_training = True
            return None
        self._run.say("applying the update", at.total)
        gradients, states, metrics, extras = self._shape.split(exchanged.totals)
        logs = engine.add_metrics(metrics)
        logs |= extras
        logs = {name: to_float(logs[name]) for name in self._shape.logs}
        self._updates.apply(epoch, at.step, gradients, states)
        engine.seeds.advance()
        if engine.dirties_seeds:
            engine.put_seeds_back()
        at.step += 1
        at.total += 1
        at.trained += 1
        self._run.say("running callbacks", at.total)
        self._run.count(exchanged.shared.size)
        self._consider_pieces(exchanged.shared)
        return logs

    def _consider_pieces(self, shared: Shared) -> None:
        """Unequal workers need more pieces than equal ones to be used well. Decided alike by all."""
        if self._fixed_pieces or len(shared.members) == 1 or self._at.total % _CONSIDER_EVERY:
            return
        reduction, members = self._reduction, shared.members
        if reduction.balance.efficiency(reduction.pieces, members) > _WORTHWHILE:
            return  # smaller pieces have a price too
        more = suggest_pieces(reduction.balance, reduction.pieces, members, shared.size, _MOST_PIECES * len(members))
        if more > reduction.pieces:
            reduction.pieces = more
            if self._run.is_chief:
                text = f"the workers' speeds differ: {more} pieces, not {shared.pieces}, from step {self._at.total} on"
                print(f"\nshoal: {text}", file=sys.stderr, flush=True)

    def _note(self, seconds: float, stop: bool = False) -> Note:
        at = self._at
        due = at.total % self._run.check_every == 0
        return Note(
            at.total,
            stop=stop,
            seconds=seconds,
            weights=fingerprint(self._engine) if due and not stop else None,
            candidates=self._run.candidates(self._call),
            checkpoint=self._saver is not None and self._run.is_chief and self._saver.is_due(at.trained + 1),
            part=self._saver.word() if self._saver is not None else None,
            leaves=self._run.drains,
        )

    def _tell_stop(self, epoch: int) -> None:
        """This worker stopped after the last step: the next one, which others may have begun, must not count."""
        if self._source.is_over(self._at.step):
            return
        stops = partial(self._note, stop=True)
        task = _StepTask(self._run, self._engine, self._source, self._updates, self._at, stops)
        self._reduction.step(f"fit epoch {epoch} step {self._at.step}", task, stops=True)

    def _warn_if_short(self, step: int, steps: int | None) -> None:
        if steps is not None and step < steps and not self._model.stop_training:
            warnings.warn(
                f"the data ran out after {step} of {steps} steps: this epoch ends early. Give data for "
                "`steps_per_epoch * epochs` batches, for example with `.repeat()`.",
                stacklevel=2,
            )


class _StepTask:
    """One worker's part of a step, as often as it is asked for."""

    def __init__(
        self,
        run: Run,
        engine: AbstractEngine,
        source: AbstractSource,
        updates: AbstractUpdates,
        at: Position,
        note: Callable[[float], Note],
    ) -> None:
        self._run = run
        self._engine = engine
        self._source = source
        self._updates = updates
        self._at = at
        self._note = note
        self._taken: Taken | None = None
        self._started = 0.0
        self._last: tuple[int, Sequence[Array]] | None = None  # the last piece, which a redo need not compute again

    def take(self, split: Split, group: AbstractGroup) -> int | None:
        self._run.say("waiting for data", self._at.total)
        self._taken = self._source.take(self._at.step, split, group)
        if self._taken is not None:
            self._updates.bring(self._source, self._at.step, self._taken, group)
        self._started = time.perf_counter()
        return self._taken.size if self._taken is not None else None

    def compute(self, piece: int, low: int, high: int) -> Sequence[Array]:
        taken = self._taken
        assert taken is not None, "take() first"
        if self._last is not None and self._last[0] == piece:
            return self._last[1]
        self._run.say(f"computing piece {piece}: {self._source.names(self._at.step, range(low, high))}", self._at.total)
        rows = [row[low - taken.first : high - taken.first] for row in taken.rows]
        arrays = self._engine.piece(feeds.as_batch(self._source.spec(), rows), piece, (high - low) / taken.size)
        self._last = (piece, arrays) if self._engine.pieces_last else None
        return arrays

    def note(self) -> Note:
        self._engine.settle()  # a worker without a piece in this step has not waited for its last update yet
        self._run.say("exchanging gradients", self._at.total)
        return self._note(time.perf_counter() - self._started)

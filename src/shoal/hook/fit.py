"""`fit` on many workers: Keras's loop with the same callbacks in the same order, around Shoal's step.

The order of a step: take the rows of my pieces → backward per piece, summed into my slots → exchange → apply → logs.
A step counts when its exchange has committed; until then nothing of the model has changed.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import msgspec

from shoal.collectives.group import AbstractGroup, Company, Result
from shoal.data.sources import AbstractSource, Split, Taken
from shoal.errors import Diverged, UsageError
from shoal.hook import feeds
from shoal.hook.callback_state import capture, restore
from shoal.hook.calls import encode_plain
from shoal.hook.chief import callback_list
from shoal.hook.engine import AbstractEngine, Logs, StepShape, to_float
from shoal.hook.engines import engine_for
from shoal.hook.evaluate import Evaluation
from shoal.hook.model_state import fingerprint, share_chiefs_state
from shoal.hook.run import Run
from shoal.hook.saving import Saver, cannot_resume, resume
from shoal.strategies.allreduce import AllReduce, Reduction, Shared, check_batch
from shoal.strategies.balance import Balance, suggest_pieces
from shoal.strategies.notes import Note, leavers, newcomers, stopped
from shoal.strategies.schema import Array

_WORTHWHILE = 0.75  # the part of the workers' summed speeds that is used: below it, more pieces are worth their price
_MOST_PIECES = 8  # per worker
_CONSIDER_EVERY = 20  # steps between two looks at whether more pieces would pay


class FitArguments(msgspec.Struct, frozen=True):
    """What `fit` was called with, by Keras's names."""

    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: Any = "auto"
    callbacks: Any = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: bool | str = True
    class_weight: Any = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: Any = 1


def fit(run: Run, strategy: AllReduce, model: Any, arguments: FitArguments, call: int) -> Any:
    """Trains; returns the History, the same on every worker."""
    if not model.compiled:
        raise ValueError("You must call `compile()` before calling `fit()`.")
    company = run.company
    pieces = strategy.pieces_for(run.pieces, run.workers)
    fixed = strategy.fixes_pieces(run.pieces)
    seed = _agree_on_seed(company)
    request = feeds.Request(
        "fit",
        arguments.x,
        arguments.y,
        arguments.sample_weight,
        arguments.batch_size,
        arguments.steps_per_epoch,
        arguments.class_weight,
        arguments.shuffle,
        seed,
    )
    held_out = arguments.validation_data
    if arguments.validation_split and held_out is None:
        request, held_out = feeds.split_validation(request, arguments.validation_split)
    source = feeds.open_source(request, company)
    training = None
    try:
        run.say("building the model")
        spec = source.spec()
        size = _batch_size(request)
        if size is not None:
            check_batch(size, pieces)
        batch = feeds.example(spec, max(1, (size or pieces) // pieces))
        model._symbolic_build(data_batch=batch)
        engine = engine_for(model)
        engine.begin(seed)  # and again when all have the chief's state
        engine.refuse_unless_distributable()
        run.say("tracing the training step")
        shape = engine.trace(batch)
        engine.put_seeds_back()
        validation = None
        if held_out is not None:
            validation = Evaluation.of_held_out(run, strategy, model, held_out, arguments)
        training = Training(run, model, engine, shape, source, pieces, seed, arguments, validation, call, fixed)
        if company.is_late:
            engine.rehearse(batch)  # compiles, so that nobody waits for this worker later
            training.prepare()
        return training.run()
    finally:
        source.close()
        if training is not None:
            training.close()


class Position(msgspec.Struct):
    """Where a fit stands, between two steps."""

    epoch: int = 0
    step: int = 0  # of the epoch
    total: int = 0  # steps of this fit, over its epochs
    initial: int = 0  # the first epoch
    seed: int = 0
    pieces: int = 1
    balance: Balance = Balance()
    stream: int = 0  # batches of a stream that are used up
    held_out: int = 0  # the same, of a stream for validation
    call: int = 0  # the number of this fit among the script's calls
    calls: int = 0  # that the script has made, this one included
    trained: int = 0  # steps of the whole run, over all fits
    stop: bool = False
    logs: dict[str, Any] = {}


class Training:
    """One `fit`: its epochs and steps."""

    def __init__(
        self,
        run: Run,
        model: Any,
        engine: AbstractEngine,
        shape: StepShape,
        source: AbstractSource,
        pieces: int,
        seed: int,
        arguments: FitArguments,
        validation: Evaluation | None,
        call: int,
        fixed: bool,
    ) -> None:
        self._run = run
        self._engine = engine
        self._model = model
        self._shape = shape
        self._source = source
        self._arguments = arguments
        self._validation = validation
        self._call = call
        self._fixed_pieces = fixed
        self._reduction = Reduction(run.company, shape.schema, pieces, "fit", on_reopen=engine.release)
        self._at = Position(seed=seed, trained=run.trained)
        self._remembered: tuple[bytes, list[Array]] | None = None  # what another worker's callbacks remember
        self._newcomers: tuple[str, ...] = ()  # to be let in before the next step
        self._leavers: tuple[str, ...] = ()  # gone before the next step
        self._saver = Saver(run.saving, run.me, model, engine, run.trained) if run.saving is not None else None
        self._save_next = False
        self._callbacks = callback_list(
            self._model,
            arguments.callbacks,
            arguments.verbose,
            run,
            history=True,
            epochs=arguments.epochs,
            steps=source.steps,
        )

    def run(self) -> Any:
        model, arguments, at = self._model, self._arguments, self._at
        model.stop_training = False
        self._callbacks.on_train_begin()
        if self._run.company.is_late:
            self._run.say("waiting to be let in")
            over = self._run.company.enter(self, self._call)
            if over is not None:
                return self._over_already(over)
        else:
            self._agree_on_start(model._initial_epoch or arguments.initial_epoch)
            self._resume()
        while self._at.epoch < arguments.epochs:
            self._epoch(self._at.epoch)
            if model.stop_training:
                break
        at = self._at
        self._save_last()
        self._run.trained = at.trained
        if isinstance(model.optimizer, keras.optimizers.Optimizer) and arguments.epochs > 0:
            model.optimizer.finalize_variable_values(model.trainable_weights)
        self._callbacks.on_train_end(at.logs)
        return model.history

    def prepare(self) -> None:
        """For a newcomer, before it is let in."""
        self._reduction.prepare()

    def close(self) -> None:
        self._engine.release()
        self._reduction.close()
        if self._saver is not None:
            self._saver.close()
        if self._validation is not None:
            self._validation.close()

    # What a newcomer is told ------------------------------------------------------------------------

    def give(self) -> Result:
        """Everything that a worker needs to go on from here, between two steps."""
        at = self._at
        at.stop = bool(self._model.stop_training)
        at.call, at.calls = self._call, self._run.calls.number
        at.pieces, at.balance = self._reduction.pieces, self._reduction.balance
        at.stream = self._source.place_in_stream(at.step)
        at.held_out = self._validation.place if self._validation is not None else 0
        self._engine.settle()
        state = self._engine.state()
        remembered, arrays = capture(self._callbacks)
        return Result([encode_plain((at, len(state))), remembered], [*state, *arrays])

    def take(self, given: Result) -> None:
        """Go to where another worker stands."""
        self._at, count = msgspec.msgpack.decode(given.values[0], type=tuple[Position, int])
        at = self._at
        self._source.use_seed(at.seed)
        self._engine.set_state(given.arrays[:count])
        self._model.stop_training = at.stop
        self._run.calls.number = at.calls
        self._reduction.pieces, self._reduction.balance = at.pieces, at.balance
        self._source.go_to(at.stream)
        if self._validation is not None:
            self._validation.place = at.held_out
        self._remembered = (given.values[1], given.arrays[count:])

    def _resume(self) -> None:
        """Go to where a checkpoint was taken, if it was taken in this fit."""
        resumed = self._run.calls.resumes(self._call)
        if resumed is None:
            return
        self._run.say(f"resuming from {resumed}")
        try:
            self.take(resume(self._run.company, resumed))
        except Diverged as error:
            raise cannot_resume(resumed, error) from error

    def _save(self) -> None:
        """Between two steps: begin a checkpoint."""
        assert self._saver is not None
        self._save_next = False
        company = self._run.company
        self._run.say("copying for a checkpoint", self._at.total)
        returned = self._run.calls.returned
        self._saver.begin(self._at.trained, company.view, company.members, self.give(), self._call, returned)

    def _leave(self) -> None:
        """Between two steps: give up the seat. The last ones to leave write a checkpoint before they go."""
        if set(self._leavers) >= set(self._run.company.members):
            self._save_last()
        self._run.leave()

    def _save_last(self) -> None:
        """The fit is over: its end is worth a checkpoint, on disk before the script goes on."""
        if self._saver is not None:
            self._saver.finish(self._run.company, self._run.is_chief)
            self._save()
            self._saver.finish(self._run.company, self._run.is_chief)

    def _over_already(self, returned: bytes) -> Any:
        """The others finished this fit before this worker could be let in."""
        self._callbacks.on_train_end()
        return history_of(self._model, self._run.calls.unpack(returned))

    # Epochs and steps -------------------------------------------------------------------------------

    def _epoch(self, epoch: int) -> None:
        model, at = self._model, self._at
        model.reset_metrics()
        if at.step == 0:
            self._engine.reset_metrics()
            at.logs = {}
        self._callbacks.on_epoch_begin(epoch)
        self._source.begin(epoch, at.initial, first=at.step)
        if self._remembered is not None:
            restore(self._callbacks, *self._remembered)
            self._remembered = None
        logs = self._steps(epoch)
        self._source.end()
        self._engine.put_seeds_back()
        if self._validation is not None and _is_due(epoch, self._arguments.validation_freq):
            found = self._validation.run(self._callbacks, epoch)
            logs = logs | {f"val_{name}": value for name, value in found.items()}
        self._callbacks.on_epoch_end(epoch, logs)
        model.stop_training = self._agree_on_stop(f"fit epoch {epoch}: stop?", bool(model.stop_training))
        at.epoch, at.step, at.logs = epoch + 1, 0, logs

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
        task = _StepTask(self._run, engine, self._source, at, self._note)
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
        engine.apply(gradients, states)
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
        task = _StepTask(self._run, self._engine, self._source, self._at, partial(self._note, stop=True))
        self._reduction.step(f"fit epoch {epoch} step {self._at.step}", task, stops=True)

    def _warn_if_short(self, step: int, steps: int | None) -> None:
        if steps is not None and step < steps and not self._model.stop_training:
            warnings.warn(
                f"the data ran out after {step} of {steps} steps: this epoch ends early. Give data for "
                "`steps_per_epoch * epochs` batches, for example with `.repeat()`.",
                stacklevel=2,
            )

    def _agree_on_start(self, initial_epoch: int) -> None:
        """All start from the chief's state, which a callback (BackupAndRestore) may just have restored."""
        self._run.say("taking the chief's weights")
        company = self._run.company
        share_chiefs_state(company, self._engine, "fit")
        self._engine.begin(self._at.seed)
        first = int(company.gather("fit: the first epoch", str(initial_epoch).encode()).chiefs)
        self._at.epoch = self._at.initial = first

    def _agree_on_stop(self, what: str, stop: bool) -> bool:
        return any(told == b"\1" for told in self._run.company.gather(what, b"\1" if stop else b"\0").values)


class _StepTask:
    """One worker's part of a step, as often as it is asked for."""

    def __init__(
        self,
        run: Run,
        engine: AbstractEngine,
        source: AbstractSource,
        at: Position,
        note: Callable[[float], Note],
    ) -> None:
        self._run = run
        self._engine = engine
        self._source = source
        self._at = at
        self._note = note
        self._taken: Taken | None = None
        self._started = 0.0
        self._last: tuple[int, Sequence[Array]] | None = None  # the last piece, which a redo need not compute again

    def take(self, split: Split, group: AbstractGroup) -> int | None:
        self._run.say("waiting for data", self._at.total)
        self._taken = self._source.take(self._at.step, split, group)
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


def returned_by_fit(history: Any) -> bytes:
    """What is kept of a fit for workers that come when it is over."""
    return encode_plain({"history": history.history, "epoch": history.epoch})


def history_of(model: Any, returned: bytes) -> Any:
    """The History of a fit that others have finished."""
    kept = msgspec.msgpack.decode(returned)
    history = keras.callbacks.History()
    history.set_model(model)
    history.history, history.epoch = kept["history"], kept["epoch"]
    model.history = history
    return history


def _agree_on_seed(company: Company) -> int:
    """The order of samples comes from Python's random numbers, which `keras.utils.set_random_seed` seeds.

    Every worker draws one, so that their random numbers stay in step; the chief's counts.
    """
    drawn = random.getrandbits(63)
    if company.is_late:
        return drawn  # until the others tell theirs
    return int(company.gather("fit: the seed", str(drawn).encode()).chiefs)


def _batch_size(request: feeds.Request) -> int | None:
    """The size of a whole batch where the arguments tell it: for arrays and torch loaders. Streams tell themselves."""
    if request.batch_size is not None and request.batch_size < 1:
        raise UsageError(f"batch_size={request.batch_size}: expected at least 1")
    if feeds.is_arrays(request.x):
        return request.batch_size or feeds.DEFAULT_BATCH_SIZE
    size = getattr(request.x, "batch_size", None)
    return size if isinstance(size, int) else None


def _is_due(epoch: int, frequency: Any) -> bool:
    """Whether validation runs after this epoch: every n-th one, or the listed ones (counted from 1)."""
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return epoch + 1 in frequency

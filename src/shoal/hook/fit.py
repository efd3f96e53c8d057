"""`fit` on many workers: Keras's loop with the same callbacks in the same order, around Shoal's step.

The order of a step: take the rows of my pieces → backward per piece, summed into my slots → exchange → apply → logs.
A step counts when its exchange has committed; until then nothing of the model has changed.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import msgspec

from shoal.data.sources import AbstractSource, Taken
from shoal.errors import UsageError
from shoal.hook import feeds
from shoal.hook.chief import callback_list
from shoal.hook.engine import AbstractEngine, Logs, StepShape, to_float
from shoal.hook.engines import engine_for
from shoal.hook.evaluate import Evaluation
from shoal.hook.model_state import fingerprint, share_chiefs_state
from shoal.hook.run import Run
from shoal.strategies.allreduce import AllReduce, Reduction, check_batch
from shoal.strategies.notes import Note, stopped
from shoal.strategies.schema import Array


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


def fit(run: Run, strategy: AllReduce, model: Any, arguments: FitArguments) -> Any:
    """Trains; returns the History, the same on every worker."""
    if not model.compiled:
        raise ValueError("You must call `compile()` before calling `fit()`.")
    group = run.group()
    pieces = strategy.pieces_for(run.pieces, group.size)
    seed = _agree_on_seed(run)
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
    source = feeds.open_source(request, group)
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
        training = Training(run, model, engine, shape, source, pieces, seed, arguments, validation)
        return training.run()
    finally:
        source.close()
        if training is not None:
            training.close()


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
    ) -> None:
        self._run = run
        self._group = run.group()
        self._engine = engine
        self._model = model
        self._seed = seed
        self._shape = shape
        self._source = source
        self._arguments = arguments
        self._validation = validation
        self._reduction = Reduction(self._group, shape.schema, pieces, "fit")
        self._step = 0  # of this fit, counted over its epochs
        self._callbacks = callback_list(
            self._model,
            arguments.callbacks,
            arguments.verbose,
            run.is_chief,
            history=True,
            epochs=arguments.epochs,
            steps=source.steps,
        )

    def run(self) -> Any:
        model, arguments = self._model, self._arguments
        model.stop_training = False
        self._callbacks.on_train_begin()
        initial_epoch = self._agree_on_start(model._initial_epoch or arguments.initial_epoch)
        logs: Logs = {}
        for epoch in range(initial_epoch, arguments.epochs):
            logs = self._epoch(epoch, initial_epoch)
            if model.stop_training:
                break
        if isinstance(model.optimizer, keras.optimizers.Optimizer) and arguments.epochs > 0:
            model.optimizer.finalize_variable_values(model.trainable_weights)
        self._callbacks.on_train_end(logs)
        return model.history

    def close(self) -> None:
        self._engine.release()
        self._reduction.close()
        if self._validation is not None:
            self._validation.close()

    def _epoch(self, epoch: int, initial_epoch: int) -> Logs:
        model = self._model
        model.reset_metrics()
        self._engine.reset_metrics()
        self._callbacks.on_epoch_begin(epoch)
        self._source.begin(epoch, initial_epoch)
        logs = self._steps(epoch)
        self._source.end()
        self._engine.put_seeds_back()
        if self._validation is not None and _is_due(epoch, self._arguments.validation_freq):
            found = self._validation.run(self._callbacks)
            logs = logs | {f"val_{name}": value for name, value in found.items()}
        self._callbacks.on_epoch_end(epoch, logs)
        model.stop_training = self._agree_on_stop(f"fit epoch {epoch}: stop?", bool(model.stop_training))
        return logs

    def _steps(self, epoch: int) -> Logs:
        """The steps of an epoch, `steps_per_execution` of them between two calls of the callbacks."""
        model, steps = self._model, self._source.steps
        logs: Logs = {}
        step = 0
        while steps is None or step < steps:
            first, last = step, step + model.steps_per_execution
            last = last if steps is None else min(last, steps)
            self._callbacks.on_train_batch_begin(first)
            while step < last and (done := self._train(epoch, step)) is not None:
                logs = done
                step += 1
            if step > first:
                self._callbacks.on_train_batch_end(step - 1, logs)
            if step < last:  # the data ran out, or another worker stopped
                self._warn_if_short(step, steps)
                break
            if model.stop_training and step != steps:
                self._tell_stop(epoch, step)
                break
        return logs

    def _take(self, step: int) -> Taken | None:
        self._run.say("waiting for data", self._step)
        return self._source.take(step, self._reduction.rows, self._group.rank)

    def _train(self, epoch: int, step: int) -> Logs | None:
        """One step; None when there is no data for it, or a worker stopped before it so that it does not count."""
        engine = self._engine
        taken = self._take(step)
        if taken is None:
            return None
        started = time.perf_counter()

        def compute(piece: int, low: int, high: int) -> Sequence[Array]:
            self._run.say(f"computing piece {piece}", self._step)
            rows = [row[low - taken.first : high - taken.first] for row in taken.rows]
            return engine.piece(feeds.as_batch(self._source.spec(), rows), piece, (high - low) / taken.size)

        def note() -> Note:
            engine.settle()  # a worker without a piece in this step has not waited for its last update yet
            self._run.say("exchanging gradients", self._step)
            return self._note(time.perf_counter() - started)

        exchanged = self._reduction.step(f"fit epoch {epoch} step {step}", taken.size, compute, note)
        if stopped(exchanged.notes):
            self._model.stop_training = True
            return None
        self._run.say("applying the update", self._step)
        gradients, states, metrics, extras = self._shape.split(exchanged.totals)
        logs = engine.add_metrics(metrics)
        logs |= extras
        logs = {name: to_float(logs[name]) for name in self._shape.logs}
        engine.apply(gradients, states)
        engine.seeds.advance()
        if engine.dirties_seeds:
            engine.put_seeds_back()
        self._step += 1
        self._run.say("running callbacks", self._step)
        self._run.count(taken.size)
        return logs

    def _note(self, seconds: float) -> Note:
        due = self._step % self._run.check_every == 0
        return Note(self._step, seconds=seconds, weights=fingerprint(self._engine) if due else None)

    def _tell_stop(self, epoch: int, step: int) -> None:
        """This worker stopped after the last step: the next one, which others may have begun, must not count."""
        taken = self._take(step)
        self._engine.settle()
        if taken is not None:
            self._reduction.abstain(f"fit epoch {epoch} step {step}", taken.size, Note(self._step, stop=True))

    def _warn_if_short(self, step: int, steps: int | None) -> None:
        if steps is not None and step < steps and not self._model.stop_training:
            warnings.warn(
                f"the data ran out after {step} of {steps} steps: this epoch ends early. Give data for "
                "`steps_per_epoch * epochs` batches, for example with `.repeat()`.",
                stacklevel=2,
            )

    def _agree_on_start(self, initial_epoch: int) -> int:
        """All start from the chief's state, which a callback (BackupAndRestore) may just have restored."""
        self._run.say("taking the chief's weights")
        share_chiefs_state(self._group, self._engine, "fit")
        self._engine.begin(self._seed)
        told = self._group.gather("fit: the first epoch", str(initial_epoch).encode())
        return int(told[0])

    def _agree_on_stop(self, what: str, stop: bool) -> bool:
        return any(told == b"\1" for told in self._group.gather(what, b"\1" if stop else b"\0"))


def _agree_on_seed(run: Run) -> int:
    """The order of samples comes from Python's random numbers, which `keras.utils.set_random_seed` seeds.

    Every worker draws one, so that their random numbers stay in step; the chief's counts.
    """
    drawn = random.getrandbits(63)
    return int(run.group().gather("fit: the seed", str(drawn).encode())[0])


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

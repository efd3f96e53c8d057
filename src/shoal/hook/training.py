"""What all ways to train share: Keras's loop over epochs, with the same callbacks in the same order.

Between two steps a training can tell a newcomer everything (`give`), and go to where another stands (`take`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import keras
import msgspec

from shoal.collectives.group import Result
from shoal.data.sources import AbstractSource
from shoal.errors import Diverged
from shoal.hook.callback_state import capture, restore
from shoal.hook.calls import encode_plain
from shoal.hook.chief import callback_list
from shoal.hook.engine import AbstractEngine, Logs, StepShape
from shoal.hook.evaluate import Evaluation
from shoal.hook.model_state import share_chiefs_state
from shoal.hook.position import Position
from shoal.hook.resuming import Expected, cannot_resume, resume
from shoal.hook.run import Run
from shoal.hook.shard_optimizer import remember_loss_scale
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


class Prepared(NamedTuple):
    """A model and its data, ready to be trained."""

    model: Any
    engine: AbstractEngine
    shape: StepShape
    source: AbstractSource
    seed: int
    batch: Any  # an example
    validation: Evaluation | None


class AbstractTraining(ABC):
    """One `fit`: its epochs."""

    def __init__(self, run: Run, prepared: Prepared, arguments: FitArguments, call: int) -> None:
        self._run = run
        self._model = prepared.model
        self._engine = prepared.engine
        self._shape = prepared.shape
        self._source = prepared.source
        self._example = prepared.batch
        self._validation = prepared.validation
        self._arguments = arguments
        self._call = call
        self._at = Position(seed=prepared.seed, trained=run.trained)
        self._resumed_at: int | None = None  # steps of the whole run at the checkpoint that it goes on from
        self._remembered: tuple[bytes, list[Array]] | None = None  # what another worker's callbacks remember
        self._callbacks = callback_list(
            self._model,
            arguments.callbacks,
            arguments.verbose,
            run,
            history=True,
            epochs=arguments.epochs,
            steps=self._source.steps,
        )

    def run(self) -> Any:
        model, arguments = self._model, self._arguments
        model.stop_training = False
        self._callbacks.on_train_begin()
        over = self._begin()
        if over is not None:  # the others finished this fit before this worker could be let in
            self._callbacks.on_train_end()
            return history_of(model, self._run.calls.unpack(over))
        while self._at.epoch < arguments.epochs and not self._was_stopped:
            self._epoch(self._at.epoch)
            if model.stop_training:
                break
        self._restore_callbacks()  # of a checkpoint after which there was no epoch left
        self._end()
        if self._engine.loss_scale is not None:
            remember_loss_scale(self._model.optimizer, self._engine.loss_scale)
        self._run.trained = self._at.trained
        self._callbacks.on_train_end(self._at.logs)
        return model.history

    @abstractmethod
    def _begin(self) -> bytes | None:
        """Go to where the first step begins. What the call returned, if it is over for the others already."""

    @abstractmethod
    def _steps(self, epoch: int) -> Logs:
        """The steps of an epoch; returns the epoch's logs."""

    @abstractmethod
    def _end(self) -> None:
        """The last epoch is over."""

    @abstractmethod
    def close(self) -> None: ...

    # What a newcomer is told ------------------------------------------------------------------------

    def give(self) -> Result:
        """Everything that a worker needs to go on from here, between two steps."""
        at = self._at
        at.stop = bool(self._model.stop_training)
        at.call, at.calls = self._call, self._run.calls.number
        at.stream = self._source.place_in_stream(at.step)
        at.held_out = self._validation.place if self._validation is not None else 0
        at.loss_scale = self._engine.loss_scale
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
        self._engine.loss_scale = at.loss_scale
        self._model.stop_training = at.stop
        self._run.calls.number = at.calls
        self._source.go_to(at.stream)
        if self._validation is not None:
            self._validation.place = at.held_out
        self._remembered = (given.values[1], given.arrays[count:])

    def _resume(self, expected: Expected) -> None:
        """Go to where a checkpoint was taken, if it was taken in this fit."""
        resumed = self._run.calls.resumes(self._call)
        if resumed is None:
            return
        self._run.say(f"resuming from {resumed}")
        try:
            self.take(resume(self._run.company, resumed, expected))
        except Diverged as error:
            raise cannot_resume(resumed, error) from error
        self._resumed_at = self._at.trained

    @property
    def _has_trained(self) -> bool:
        """Whether a step of this fit was done in this run."""
        return self._at.trained != (self._run.trained if self._resumed_at is None else self._resumed_at)

    @property
    def _was_stopped(self) -> bool:
        """Whether a callback had stopped the training before the checkpoint that this run goes on from."""
        return self._resumed_at == self._at.trained and self._at.stop and self._at.step == 0

    def _restore_callbacks(self) -> None:
        """To what another worker's remember, if this one was told."""
        if self._remembered is not None:
            restore(self._callbacks, *self._remembered)
            self._remembered = None

    # Epochs -----------------------------------------------------------------------------------------

    def _epoch(self, epoch: int) -> None:
        self._model.reset_metrics()
        if self._at.step == 0:
            self._engine.reset_metrics()
            self._at.logs = {}
        self._callbacks.on_epoch_begin(epoch)
        self._source.begin(epoch, self._at.initial, first=self._at.step)
        self._restore_callbacks()
        logs = self._steps(epoch)
        self._source.end()
        self._engine.put_seeds_back()
        if self._validation is not None and _is_due(epoch, self._arguments.validation_freq):
            found = self._validation.run(self._callbacks, epoch)
            logs = logs | {f"val_{name}": value for name, value in found.items()}
        self._callbacks.on_epoch_end(epoch, logs)
        self._model.stop_training = self._agree_on_stop(f"fit epoch {epoch}: stop?", bool(self._model.stop_training))
        at = self._at
        at.epoch, at.step, at.logs = epoch + 1, 0, logs

    def _agree_on_start(self, initial_epoch: int) -> None:
        """All start from the chief's state, which a callback (BackupAndRestore) may just have restored."""
        self._run.say("taking the chief's weights")
        company = self._run.company
        share_chiefs_state(company, self._engine, "fit")
        self._engine.begin(self._at.seed)
        mine = msgspec.msgpack.encode((int(initial_epoch), self._engine.loss_scale))
        chiefs = company.gather("fit: the first epoch, and the loss's scale", mine).chiefs
        first, self._engine.loss_scale = msgspec.msgpack.decode(chiefs, type=tuple[int, float | None])
        self._at.epoch = self._at.initial = first

    def _agree_on_stop(self, what: str, stop: bool) -> bool:
        return any(told == b"\1" for told in self._run.company.gather(what, b"\1" if stop else b"\0").values)


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


def _is_due(epoch: int, frequency: Any) -> bool:
    """Whether validation runs after this epoch: every n-th one, or the listed ones (counted from 1)."""
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return epoch + 1 in frequency

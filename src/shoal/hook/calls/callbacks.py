"""The callbacks of a fit, in Keras's own container, as training calls them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import keras

from shoal.hook import keras_private
from shoal.hook.calls.callback_state import capture, restore
from shoal.hook.calls.chief import callback_list
from shoal.hook.calls.timed_callbacks import TimedCallbacks
from shoal.hook.monitor import Monitor
from shoal.strategies.schema import Array
from shoal.training.callback_changes import OF_BATCHES
from shoal.training.logs import Logs
from shoal.training.prepared import FitArguments
from shoal.training.run import Run


class KerasCallbacks:
    """`Callbacks` of a model's fit."""

    def __init__(self, run: Run, model: Any, arguments: FitArguments, steps: int | None) -> None:
        self._model = model
        self._given = arguments.callbacks
        self.listed = callback_list(
            model, arguments.callbacks, arguments.verbose, run, history=True, epochs=arguments.epochs, steps=steps
        )
        self._show = run.show
        for each in given_callbacks(arguments.callbacks):
            if isinstance(each, Monitor):
                each.watch(run)
        if self.listed is not self._given:  # a container of the user's own stays as it is
            self.listed.callbacks = TimedCallbacks(
                self.listed.callbacks, run.counters.callbacks, lambda: bool(model.stop_training)
            )
        # Called for every batch: without a step in between.
        self.on_train_batch_begin = self.listed.on_train_batch_begin

    def on_train_begin(self) -> None:
        self.listed.on_train_begin()

    def on_train_end(self, logs: Logs | None = None) -> None:
        self.listed.on_train_end(logs)

    def on_epoch_begin(self, epoch: int) -> None:
        self.listed.on_epoch_begin(epoch)

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._show(logs)
        self.listed.on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._show(logs)
        self.listed.on_epoch_end(epoch, logs)

    @property
    def stopped_by(self) -> str:
        return getattr(self.listed.callbacks, "stopped_by", "")

    def first_epoch(self, given: int) -> int:
        is_restored = any(isinstance(each, keras.callbacks.BackupAndRestore) for each in given_callbacks(self._given))
        return keras_private.first_epoch(self._model, given, is_restored)

    def run_users_code(self, hooks: Collection[str]) -> bool:
        return any(_is_users(each, hook) for each in given_callbacks(self._given) for hook in hooks)

    def look_after_batches(self) -> bool:
        return any(looks_after_batches(each) for each in given_callbacks(self._given))

    def remember(self) -> tuple[bytes, list[Array]]:
        return capture(self.listed)

    def restore(self, remembered: bytes, arrays: Sequence[Array]) -> None:
        restore(self.listed, remembered, arrays)


def given_callbacks(callbacks: Any) -> list[Any]:
    """One by one, as they were given to fit."""
    return list(keras.tree.flatten(getattr(callbacks, "callbacks", callbacks)))  # of a CallbackList


def looks_after_batches(callback: Any) -> bool:
    """Keras's own do only where they save every so many batches."""
    saves = isinstance(callback, keras.callbacks.ModelCheckpoint | keras.callbacks.BackupAndRestore)
    if saves and callback.save_freq != "epoch":
        return True
    return any(_is_users(callback, hook) for hook in OF_BATCHES)


def _is_users(callback: Any, hook: str) -> bool:
    """Whether a hook runs code that is not Keras's."""
    method = getattr(callback, hook, None)
    return method is not None and not str(getattr(method, "__module__", "")).startswith("keras.")

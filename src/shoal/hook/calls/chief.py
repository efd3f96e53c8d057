"""What only the chief does: print progress and write files.

Other workers run the same callbacks on the same logs, so whatever a callback decides it decides everywhere. Those that
only write sleep there, and wake when their worker becomes the chief; what writes through the model (`save`,
`save_weights`, `export`) waits for the chief.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Protocol

import keras

from shoal.hook import keras_private
from shoal.hook.monitor import Monitor

_WRITERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.ProgbarLogger,
    Monitor,
)
# Packages whose callbacks report to somewhere: they are not imported to be known.
_REPORTERS = (
    "aim",
    "clearml",
    "comet_ml",
    "dvclive",
    "mlflow",
    "neptune",
    "neptune_tensorflow_keras",
    "tensorboard",
    "wandb",
)
_HOOKS = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]


_alone = ContextVar("alone", default=False)


def acts_alone() -> bool:
    """Whether this is the chief within a callback that runs nowhere else: nobody else comes to what it calls."""
    return _alone.get()


class Chiefdom(Protocol):
    """Who knows whether this worker is the chief at the moment."""

    @property
    def is_chief(self) -> bool: ...


class ChiefOnly(keras.callbacks.Callback):  # type: ignore[misc]
    """Passes everything on to a callback, as long as this worker is the chief."""

    def __init__(self, inner: Any, run: Chiefdom, training: bool) -> None:
        super().__init__()
        self.inner = inner
        self._run = run
        self._training = training
        self._awake = False
        self._epoch: int | None = None  # the last one that has begun, whoever was the chief then
        defaults = (getattr(inner, name) for name in _HOOKS if "batch_end" in name)
        # As the inner one would be judged by Keras, which may call callbacks in the background.
        self.async_safe = getattr(inner, "async_safe", False) or all(map(keras_private.is_default, defaults))

    def wake(self, hook: str) -> bool:
        """Whether to pass this call on. A callback that wakes in the middle is prepared first."""
        if not self._run.is_chief:
            return False
        if not self._awake:
            self._awake = True
            self.inner.set_params(self.params)
            self.inner.set_model(self.model)
            if self._training and hook != "on_train_begin":
                self._take_over()
        return True

    def _take_over(self) -> None:
        """Another chief began; this one goes on in the same files."""
        if isinstance(self.inner, keras.callbacks.BackupAndRestore):
            return  # it would restore the weights of the last epoch
        if isinstance(self.inner, keras.callbacks.CSVLogger):
            self.inner.append = True
        self.inner.on_train_begin()
        if isinstance(self.inner, keras.callbacks.ProgbarLogger):
            keras_private.begin_bar(self.inner)  # the epoch's title was printed by another
        elif self._epoch is not None:
            self.inner.on_epoch_begin(self._epoch)


def _passed_on(name: str) -> Any:
    def hook(self: ChiefOnly, *args: Any, **kwargs: Any) -> None:
        if self.wake(name):
            token = _alone.set(True)
            try:
                getattr(self.inner, name)(*args, **kwargs)
            finally:
                _alone.reset(token)
        if name == "on_epoch_begin":
            self._epoch = args[0]

    return hook


for _name in _HOOKS:
    setattr(ChiefOnly, _name, _passed_on(_name))


def _only_writes(callback: Any) -> bool:
    """Whether all that it does is to tell or keep what happens."""
    packages = {cls.__module__.partition(".")[0] for cls in type(callback).__mro__}
    return isinstance(callback, _WRITERS) or not packages.isdisjoint(_REPORTERS)


class _ChiefsCheckpointer:
    """Orbax's, of which the others make no use: they decide with the chief when to save, and it saves."""

    def __init__(self, inner: Any, run: Chiefdom) -> None:
        self._inner = inner
        self._run = run

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return found if self._run.is_chief or not name.startswith("save") else self._skip

    def _skip(self, *args: Any, **kwargs: Any) -> Future[bool]:
        future: Future[bool] = Future()
        future.set_result(True)
        return future


def _saving_on_chief(callback: Any, run: Chiefdom) -> Any:
    orbax = getattr(keras.callbacks, "OrbaxCheckpoint", None)  # there is none in Keras 3.12
    is_orbax = orbax is not None and isinstance(callback, orbax)
    if is_orbax and not isinstance(callback.checkpointer, _ChiefsCheckpointer):
        callback.checkpointer = _ChiefsCheckpointer(callback.checkpointer, run)
    return callback


def callback_list(model: Any, callbacks: Any, verbose: Any, run: Chiefdom, *, history: bool, **params: Any) -> Any:
    """The callbacks of this worker in Keras's own container."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    given = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
    shows = any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in given)
    listed = [ChiefOnly(one, run, history) if _only_writes(one) else _saving_on_chief(one, run) for one in given]
    # Made with the user's alone, by which Keras judges whether to call them in the background.
    container = keras.callbacks.CallbackList(listed, add_history=history)
    if verbose != 0 and not shows:
        container.callbacks.append(ChiefOnly(keras.callbacks.ProgbarLogger(), run, history))
    container.set_model(model)
    container.set_params({"verbose": verbose, **params})
    return container

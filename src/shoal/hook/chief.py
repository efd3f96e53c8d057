"""What only the chief does: print progress and write files.

Other workers run the same callbacks on the same logs, so whatever a callback decides it decides everywhere; those
that only write are left out, and what writes through the model (`save`, `save_weights`, `export`) waits for the chief.
"""

from __future__ import annotations

from typing import Any

import keras

_WRITERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
)


def callback_list(model: Any, callbacks: Any, verbose: Any, chief: bool, *, history: bool, **params: Any) -> Any:
    """The callbacks of this worker in Keras's own container."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    if not chief:
        given = callbacks if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
        callbacks = [callback for callback in given if not isinstance(callback, _WRITERS)]
        verbose = 0
    return keras.callbacks.CallbackList(
        callbacks, add_history=history, add_progbar=verbose != 0, model=model, verbose=verbose, **params
    )

"""The History of a fit, for workers that were not there."""

from __future__ import annotations

from typing import Any

import keras
import msgspec

from shoal.training.calls import encode_plain


def returned_by_fit(history: Any) -> bytes:
    """What is kept of a fit for workers that come when it is over."""
    return encode_plain({"history": history.history, "epoch": history.epoch})


def history_of(model: Any, returned: bytes) -> Any:
    """The History of a fit that others have finished, or that was over before the checkpoint which the run goes on
    from.
    """
    kept = msgspec.msgpack.decode(returned)
    history = keras.callbacks.History()
    history.set_model(model)
    history.history, history.epoch = kept["history"], kept["epoch"]
    model.history = history
    return history

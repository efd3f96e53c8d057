"""A file that the chief writes and the others wait for: they hear that it is there, or why it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from shoal.training.outcomes import RaisedError
from shoal.training.run import Run

Value = TypeVar("Value")


def save_for_all(run: Run, name: str, path: str, save: Callable[[], Value]) -> Value:
    """Who waits for the file hears of an error too: nobody goes on as if it were there."""
    failure = b""
    try:
        return run.unfollowed(save)
    except BaseException as error:  # an interruption, or a call that is over, has left no whole file either
        failure = msgspec.msgpack.encode(RaisedError.by(run.me, error))
        raise
    finally:
        run.announce(name, path, failure)

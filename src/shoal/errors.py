"""All errors of Shoal. Each message says what happened, what was expected and what to do.

ShoalError
├── UsageError (also a ValueError)   the caller's input is wrong; found before any training
│   └── CannotDistribute             the model or its data can't be cut into pieces
├── WireError                        something between two processes went wrong
│   ├── BadFrame                     the bytes are not ours, or too many
│   ├── Refused                      the other side said no, and why
│   ├── PeerClosed                   the connection closed
│   └── PeerTimeout                  a deadline passed; names who did not come
├── Diverged                         workers disagree: their weights, their scripts or their settings
├── BadCheckpoint                    a checkpoint is torn, damaged or none at all
└── NoSpace                          shared memory or disk is full
RunEnded (a BaseException)           the run is over; a script's `except Exception` must not swallow it
└── CutOff                           it goes on without this worker, which was not heard of for too long
ViewChanged (a BaseException)        the members have changed; what was going on among the old ones is begun anew
"""

from __future__ import annotations

from pathlib import Path


class ShoalError(Exception):
    """Base of every error that Shoal raises on purpose."""


class UsageError(ShoalError, ValueError):
    """The caller's input is wrong. Raised before any training."""


class CannotDistribute(UsageError):
    """The model or its data can't be cut into pieces. Raised before any training."""


class WireError(ShoalError):
    """Something between two processes went wrong."""


class BadFrame(WireError):
    """The bytes received are not a frame of ours, or exceed a limit."""


class Refused(WireError):
    """The other side refused, and said why."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{text} ({reason})")
        self.reason = reason
        self.text = text


class PeerClosed(WireError):
    """A connection closed while something was still expected on it."""

    def __init__(self, peer: str, text: str) -> None:
        super().__init__(text)
        self.peer = peer


class PeerTimeout(WireError):
    """A deadline passed. The message names who did not come, when, and what they last said."""

    def __init__(self, missing: tuple[str, ...], text: str) -> None:
        super().__init__(text)
        self.missing = missing


class Diverged(ShoalError):
    """Workers that must agree do not: on their weights, their scripts or their settings."""


class BadCheckpoint(ShoalError):
    """A checkpoint is torn, damaged or none at all. Nothing of it was used."""

    def __init__(self, why: str, path: Path | None = None) -> None:
        text = why if path is None else f"{path} is not a whole checkpoint: {why}"
        hint = "" if path is None else f". `shoal checkpoint list {path.parent}` shows those that are."
        super().__init__(text + hint)
        self.why = why
        self.path = path


class NoSpace(ShoalError):
    """Shared memory or disk is full."""


class RunEnded(BaseException):
    """The run is over: another member failed or left, or the launcher ended it.

    Not an `Exception`: a script's `except Exception` must not turn the end of a run into the
    next epoch of a worker that has nobody left to talk to.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CutOff(RunEnded):
    """The run went on without this worker. Another process may come in its place, as a newcomer."""


class ViewChanged(BaseException):
    """There is a newer view than the one in which something was waited for. Never leaves Shoal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"view {number} has come")
        self.number = number

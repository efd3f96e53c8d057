"""All errors of Shoal. Each message says what happened, what was expected and what to do.

ShoalError
├── UsageError (also a ValueError)   the caller's input is wrong; found before any training
│   └── CannotDistribute             the model or its data can't be cut into pieces
├── WireError                        something between two processes went wrong
│   ├── BadFrame                     the bytes are not ours, or too many
│   ├── Refused                      the other side said no, and why
│   ├── PeerClosed                   the connection closed
│   └── PeerTimeout                  a deadline passed; names who did not come
├── StageLost                        who alone held a part of the model is lost
├── MeshProcessLost                  a process of a worker's group has ended, and the worker with it
├── Diverged                         workers disagree: their weights, their scripts or their settings
├── RaisedElsewhere                  another worker has left this call with an error, and went on
├── BadCheckpoint                    a checkpoint is torn, damaged or none at all
├── RunFailed                        a run that was started from Python has failed
└── NoSpace                          shared memory or disk is full
RunEnded (a BaseException)           the run is over; a script's `except Exception` must not swallow it
└── CutOff                           it goes on without this worker, which was not heard of for too long
CannotServe (a BaseException)        a server's own failure, which is not the script's to catch
ViewChanged (a BaseException)        the members have changed; what was going on among the old ones is begun anew
CallOver (a BaseException)           the script's call that was going on is over: it raised on another worker
"""

from __future__ import annotations

from typing import Any, Protocol


class ShoalError(Exception):
    """Base of every error that Shoal raises on purpose."""

    ag_pass_through = True  # inside a tf.function TensorFlow would raise an error of its own kind instead


class UsageError(ShoalError, ValueError):
    """The caller's input is wrong. Raised before any training."""


class MeshProcessLost(ShoalError):
    """A process of a worker's group has ended, and the worker with it."""


class CannotDistribute(UsageError):
    """The model or its data can't be cut into pieces. Raised before any training."""


class StageLost(ShoalError):
    """Those who are left do not have the whole model any more."""

    def __init__(self, why: str, advice: str) -> None:
        super().__init__(f"{why}. {advice}")
        self.why = why


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


class RaisedElsewhere(ShoalError):
    """The same call raised on another worker, whose script has caught that and gone on. So it is over on all.

    As far as that is possible it is of the other error's class too: a script that catches that one catches this.
    """

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)  # not the other class's, which may want other arguments
        self.text = text

    def __str__(self) -> str:
        return self.text


class HasParent(Protocol):
    """A path, or an address in a store."""

    @property
    def parent(self) -> Any: ...


class BadCheckpoint(ShoalError):
    """A checkpoint is torn, damaged or none at all. Nothing of it was used."""

    def __init__(self, why: str, path: HasParent | None = None) -> None:
        text = why if path is None else f"{path} is not a whole checkpoint: {why}"
        hint = "" if path is None else f". `shoal checkpoint list {path.parent}` shows those that are."
        super().__init__(text + hint)
        self.why = why
        self.path = path


class RunFailed(ShoalError):
    """A run that `shoal.run` started has failed. Its text is the run's last words."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code  # what `shoal run` would have exited with


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


class CannotServe(BaseException):
    """A server can't hold its shards any more. Not an `Exception`: if the script on the server caught it and went on,
    the workers would wait for a server that is elsewhere.
    """


class ViewChanged(BaseException):
    """There is a newer view than the one in which something was waited for. Never leaves Shoal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"view {number} has come")
        self.number = number


class CallOver(BaseException):
    """The call that is going on is over for the others: one of them has left it with an error. Never leaves Shoal."""

"""What became of a call of the script: what it returned, or the error that it raised.

It is kept for those who were not there: workers that come late, servers, and workers that were still in the call when
another had left it. They get an error of the same class, if they know that class; nothing is unpickled.
"""

from __future__ import annotations

import sys

import msgspec

from shoal.cluster.messages import NOT_KEPT, RESULT_LIMIT
from shoal.errors import RaisedElsewhere, ShoalError, UsageError

_TEXT = 4096  # characters of an error that are kept


class RaisedError(msgspec.Struct, frozen=True, array_like=True):
    """An error, in words."""

    member: str  # on whom
    module: str
    kind: str  # the class, within its module
    text: str

    @classmethod
    def by(cls, member: str, error: BaseException) -> RaisedError:
        kind = type(error)
        return cls(member, kind.__module__, kind.__qualname__, str(error)[:_TEXT])


class CallOutcome(msgspec.Struct, frozen=True, array_like=True):
    """Of one call."""

    next: int  # the number of the call after it
    returned: bytes = NOT_KEPT
    raised: RaisedError | None = None

    def encoded(self) -> bytes:
        kept = msgspec.msgpack.encode(self)
        return kept if len(kept) <= RESULT_LIMIT else msgspec.msgpack.encode(CallOutcome(self.next))


def decode(kept: bytes) -> CallOutcome:
    return msgspec.msgpack.decode(kept, type=CallOutcome)


def error_of(raised: RaisedError) -> RaisedElsewhere:
    """The error for one who has not raised it."""
    said = raised.text and f": {raised.text}"
    return error_like(
        raised,
        f"{raised.member} has left this call with {raised.kind.rpartition('.')[2]}{said}; its script caught that and "
        "went on, which ends the call on all workers",
    )


def error_like(raised: RaisedError, text: str) -> RaisedElsewhere:
    """With a text of its own, but caught by whoever would catch what was raised."""
    known = _known(raised)
    if known is not None and (issubclass(known, UsageError) or not issubclass(known, ShoalError)):
        try:
            both: type[RaisedElsewhere] = type(
                known.__name__, (RaisedElsewhere, known), {"__module__": known.__module__}
            )
            return both(text)
        except Exception:
            pass
    return RaisedElsewhere(text)


def _known(raised: RaisedError) -> type[Exception] | None:
    """The error's class, if it is one that this process has loaded too."""
    found: object = sys.modules.get(raised.module)
    for name in raised.kind.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None

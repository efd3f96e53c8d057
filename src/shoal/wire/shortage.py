"""What the system refuses, such as one more file descriptor: it may pass, and is said once."""

from __future__ import annotations

import errno
import sys

_SCARCE = (errno.EMFILE, errno.ENFILE)


class Shortage:
    """What can't be done meanwhile, and whether that was said."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_told = False

    def tell(self, error: BaseException) -> None:
        """Says it the first time. Not of a peer that can't be reached, which is no news to who tries again."""
        refused = _refused(error)
        if refused is None or self._is_told:
            return
        self._is_told = True
        hint = " Raise the limit (`ulimit -n`), or look for what is never closed." if refused.errno in _SCARCE else ""
        print(f"shoal: {self._what}: {refused}. It is tried again.{hint}", file=sys.stderr, flush=True)


def _refused(error: BaseException) -> OSError | None:
    """The system's error, if it is one, or if a lack of descriptors has caused another."""
    if isinstance(error, OSError):
        return error
    cause = error.__cause__
    return cause if isinstance(cause, OSError) and cause.errno in _SCARCE else None

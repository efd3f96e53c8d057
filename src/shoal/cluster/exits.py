"""The exit codes of workers and servers, and what they mean."""

from __future__ import annotations

ORPHANED = 70  # it was ended because its run was over
ENDED = 75  # the run was over before its script was
OUTSIDE = 76  # the run went on without it; another may come in its place
INTERRUPTED = 130  # what shells return for a command that Ctrl-C ended


def exit_code(error: BaseException) -> int:
    """What Python would exit with."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def is_scripts(code: int) -> bool:
    """Whether the script has ended its process with this code; a negative one is a signal's number."""
    return code >= 0 and code not in (ORPHANED, ENDED, OUTSIDE)

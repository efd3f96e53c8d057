"""What is told of a script that ended with an error: what Python would print, or where it asked what Shoal refuses."""

from __future__ import annotations

import runpy
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from shoal.errors import RaisedElsewhere, ShoalError, WireError
from shoal.hook.patching.script_line import shown, users_line

# What calls the script. The script that `shoal.run` writes is called too, and calls in turn.
_LAUNCHERS = tuple(str(Path(__file__).with_name(name)) for name in ("worker.py", "prefork.py", "called.py"))


@dataclass(frozen=True, slots=True)
class LastWords:
    """Of one worker's script."""

    text: str  # what Python would print
    where: str = ""  # of a refusal: file and line of the script. Its traceback is for those who work on Shoal.

    @classmethod
    def of(cls, error: BaseException, script: Path) -> LastWords:
        if isinstance(error, SystemExit):
            return cls("" if isinstance(error.code, int) else f"{error.code}\n")
        own = _below_the_launcher(error.__traceback__)
        text = "".join(traceback.format_exception(type(error), error, own))
        if not isinstance(error, ShoalError) or isinstance(error, RaisedElsewhere | WireError):
            return cls(text)
        return cls(text, _place(own) or script.name)


def _below_the_launcher(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's own first frame on."""
    own = frames
    while frames is not None:
        below, frames = frames.tb_frame.f_code.co_filename in _LAUNCHERS, frames.tb_next
        own = frames if below else own
    while own is not None and own.tb_frame.f_globals is runpy.__dict__:
        own = own.tb_next
    return own


def _place(frames: TracebackType | None) -> str:
    """Where the script last was before it came to what is not its own: `train.py:12`."""
    stack = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(frames)]
    place = users_line(reversed(stack))
    return f"{shown(place[0])}:{place[1]}" if place else ""

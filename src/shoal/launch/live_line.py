"""One line that says how the run goes on: on the terminal's last row, or now and then where there is no terminal.

The script's own output goes straight to the terminal, progress bars and all. So the line lies outside of the region
that scrolls, and each draw is one write that puts the cursor back where the script left it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from shoal.cluster.asking import ask
from shoal.cluster.messages import StatusReply, StatusRequest
from shoal.errors import WireError
from shoal.launch.progress import progress

_DRAW_EVERY = 1.0  # seconds
_PRINT_EVERY = 10.0  # where there is no terminal
_FEWEST_ROWS = 5
_WHO = "shoal: "
_ERROR = 2  # standard error's descriptor


class LiveLine:
    """From its making to `close`. Nobody waits for it, and what goes wrong with it is passed over."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._row = LastRow() if _is_terminal(environ) else None
        self._shown = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="shoal-live-line", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(5.0)
        if self._row is not None:
            self._row.give_back()

    def _follow(self) -> None:
        while not self._over.wait(_DRAW_EVERY if self._row is not None else _PRINT_EVERY):
            with contextlib.suppress(WireError, OSError):
                reply = ask(self._folder, StatusRequest())
                room = self._row.columns - len(_WHO) if self._row is not None else None
                line = progress(reply, room) if isinstance(reply, StatusReply) else ""
                if line and not self._over.is_set():
                    self._show(f"{_WHO}{line}")

    def _show(self, line: str) -> None:
        if self._row is not None:
            self._row.draw(line)
        elif line != self._shown:
            self._shown = line
            os.write(_ERROR, f"{line}\n".encode())


class LastRow:
    """The terminal's last row, kept out of what scrolls. Taken with the first draw."""

    def __init__(self) -> None:
        self._rows = 0  # of the terminal, as it was when the row was taken

    @property
    def columns(self) -> int:
        """That a text may have. The last one stays free: some terminals go to the next row behind it."""
        return os.get_terminal_size(_ERROR).columns - 1

    def draw(self, text: str) -> None:
        columns, rows = os.get_terminal_size(_ERROR)
        if rows < _FEWEST_ROWS:
            return
        taking = take_row(rows) if rows != self._rows else ""
        self._rows = rows
        _write(taking + draw_row(rows, text[: columns - 1]))

    def give_back(self) -> None:
        if self._rows:
            with contextlib.suppress(OSError):
                _write(give_row_back(self._rows))
            self._rows = 0


def take_row(rows: int) -> str:
    """The cursor goes up by one, so that it is not on the row that is taken."""
    return f"\n\0337\033[1;{rows - 1}r\0338\033[1A"


def draw_row(rows: int, text: str) -> str:
    return f"\0337\033[{rows};1H\033[2K\033[2m{text}\033[0m\0338"


def give_row_back(rows: int) -> str:
    return f"\0337\033[1;{rows}r\033[{rows};1H\033[2K\0338"


def _is_terminal(environ: Mapping[str, str]) -> bool:
    return os.isatty(1) and os.isatty(_ERROR) and environ.get("TERM", "dumb") not in ("", "dumb")


def _write(text: str) -> None:
    os.write(_ERROR, text.encode())

"""Where the members of this host print: one at the terminal, as a plain script would, the others to their logs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from shoal.launch import logs


def say(text: str) -> None:
    """To the user."""
    print(f"shoal: {text}", file=sys.stderr, flush=True)


class Outputs:
    """`is_shown`: whether a member of this id is at the terminal. `follows`: the logs of the others are shown, too."""

    def __init__(self, kept: logs.Logs, is_shown: Callable[[str], bool], follows: bool = False) -> None:
        self.is_shown = is_shown
        self._logs = kept
        self._follower = logs.Follower() if follows else None
        self.terminal = tuple(os.dup(stream) for stream in (1, 2))  # for a worker that becomes the chief

    def log(self, id: str) -> BinaryIO:
        """A log to write to, empty."""
        return self._logs.open(id)

    @contextlib.contextmanager
    def standard_of(self, id: str) -> Iterator[tuple[int, int, int]]:
        """Its standard input, output and error, to be handed on within this."""
        if self.is_shown(id):
            yield 0, 1, 2
            return
        with self.log(id) as log, open(os.devnull, "rb") as nothing:
            if self._follower is not None:
                self._follower.follow(id, self._logs.path_of(id))
            yield nothing.fileno(), log.fileno(), log.fileno()

    def follow(self, final: bool = False) -> None:
        """Show what is new in the logs. Final: also lines that are not whole."""
        for line in self._follower.new_lines(final) if self._follower is not None else ():
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
        for fd in self.terminal:
            os.close(fd)

"""What has happened in a run, and why: one line an event, kept with its logs, to be read when all else is gone.

Everybody on the launcher's host may write: a line is appended with one system call, so that lines of several processes
never mix. It is bounded: when the file is full it becomes the old one, and the one before that is deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

STORY, OLDER = "story.jsonl", "story.older.jsonl"
LIMIT = 2 << 20  # bytes of each of the two
_LONGEST = 2000  # characters of a text


class StoryKind(StrEnum):
    """What kind of thing happened."""

    PROCESS = "process"  # one was started, or has ended
    VIEW = "view"  # who takes part from now on
    STACK = "stack"  # of one that others waited for
    TROUBLE = "trouble"  # what the user was told: losses, waits, refusals
    CALL = "call"  # a fit began or ended
    REDONE = "redone"  # a step was computed anew
    BALANCE = "balance"  # pieces became more or fewer, or many of them have moved to others
    DATA = "data"  # a worker waits for its data
    CODEC = "codec"  # residuals were lost, or gradients travel in another form from now on
    LINK = "link"  # what all workers have sent in the whole run, what was spared, and how long they waited for it
    CHECKPOINT = "checkpoint"
    REFUSED = "refused"  # somebody was not let in
    MESH = "mesh"  # how a model was laid out on a worker's devices
    PLAN = "plan"  # what was chosen and why, and whether steps take what was expected
    END = "end"


class StoryEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

    at: float  # seconds since the epoch
    kind: StoryKind
    text: str
    member: str = ""  # whom it is about
    step: int | None = None


class Story:
    """A run's story, from whoever writes it. What can't be written is lost: nobody waits for it, and nothing fails."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self._path = folder / STORY
        self._older = folder / OLDER
        self._limit = limit

    def write(self, kind: StoryKind, text: str, member: str = "", step: int | None = None) -> None:
        event = StoryEvent(time.time(), kind, text[:_LONGEST], member, step)
        line = msgspec.json.encode(event) + b"\n"
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(fd).st_size > self._limit:
                    with contextlib.suppress(OSError):
                        self._make_older(fd)  # this line is the last of it
                os.write(fd, line)
            finally:
                os.close(fd)

    def _make_older(self, fd: int) -> None:
        """The open file, unless another writer does or did so: it must not move a new file over the older one."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:
            pass  # there are no locks on this file system: a bound is worth more than a line
        if os.path.samestat(os.fstat(fd), self._path.stat()):
            self._path.replace(self._older)


def read(folder: Path) -> Iterator[StoryEvent]:
    """From its beginning. Lines that were cut off, or that nobody of ours wrote, are passed over."""
    decoder = msgspec.json.Decoder(StoryEvent)
    for name in (OLDER, STORY):
        try:
            lines = (folder / name).read_bytes().splitlines()
        except OSError:
            continue
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):
                yield decoder.decode(line)

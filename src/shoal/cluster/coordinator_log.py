"""The coordinator's log: what must not be forgotten, in a file of the run's folder, one entry per change.

The file begins with everything as it was at one moment, and what changed since follows. When the changes outgrow that,
the file is written anew, with everything as it is then. So a change costs as much at the end of a run as at its
beginning. docs/decisions/coordinator-log.md has the figures.

What can't be written, because the disk is full, is made up for: the next that can be is everything. Until then what the
log has is older than what members were told, and nobody may go on from it: it is called by another name, which takes no
room, and a coordinator that takes over finds that the state is lost.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from shoal.cluster.log_entries import entries, frame, is_too_long
from shoal.cluster.membership_record import LogBase, LogChange, Recalled, recall

NAME = "record"
STALE = "record.stale"  # what is left of a log that does not go up to what members were told
LIMIT = 1 << 28  # bytes that are read of a log
AGAIN = 1.0  # seconds from a write that failed to the next


class Remembering(Protocol):
    """Something with a past: the membership and its service."""

    def whole(self) -> LogBase | None:
        """Everything; None as long as there is nothing."""

    def changes(self) -> LogChange | None:
        """What has changed since this was last asked; None if nothing has."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write this: at the end of the log, or in the place of all that it had."""

    content: bytes
    anew: bool


def everything(it: Remembering) -> Write | None:
    """As it is now; None as long as there is nothing."""
    whole = it.whole()
    return Write(frame(msgspec.msgpack.encode(whole)), anew=True) if whole is not None else None


class LogPlan:
    """What to write when. Pure: it is told how each write went."""

    def __init__(self) -> None:
        self._base = self._changes = 0  # bytes
        self._anew = True  # what is in the file, if there is one, does not go up to now
        self._not_before = 0.0

    def next(self, it: Remembering, now: float) -> Write | None:
        """What is to be written now. Say `wrote` or `failed` afterwards."""
        change = it.changes()
        if self._anew or change is None:
            return everything(it) if self._anew and now >= self._not_before else None
        entry = frame(msgspec.msgpack.encode(change))
        if is_too_long(self._base, self._changes + len(entry)):
            return everything(it)
        return Write(entry, anew=False)

    def wrote(self, write: Write) -> None:
        """It is in the file."""
        if write.anew:
            self._base, self._changes, self._anew = len(write.content), 0, False
        else:
            self._changes += len(write.content)

    def failed(self, now: float) -> None:
        """It is not: everything is due, a little later."""
        self._anew, self._not_before = True, now + AGAIN

    def begin_anew(self) -> None:
        """The file is gone: everything is due at once."""
        self._anew, self._not_before = True, 0.0


class CoordinatorLog:
    """The file. An OSError while it is written never gets out of here."""

    def __init__(self, folder: Path) -> None:
        self._path, self._stale = folder / NAME, folder / STALE
        self._plan = LogPlan()
        self._file: int | None = None
        self._end = 0
        self.trouble: OSError | None = None  # of the last write, if it failed for another reason than a missing folder

    @property
    def is_stale(self) -> bool:
        """The coordinator before this one has told members what it could not write down: nobody knows what."""
        return self._stale.exists() and not self._path.exists()

    def recall(self) -> Recalled | None:
        """What the coordinator before this one has written, if there was one."""
        try:
            with self._path.open("rb") as file:
                return recall(list(entries(file.read(LIMIT))))
        except FileNotFoundError:
            return None

    def keep(self, it: Remembering, now: float) -> Write | None:
        """Write down what is new. Returns it, whether or not there was room: others may have copies."""
        write = self._plan.next(it, now)
        if write is None:
            return None
        try:
            self._replace(write.content) if write.anew else self._append(write.content)
        except (FileNotFoundError, NotADirectoryError):
            self._plan.failed(now)  # the folder was deleted; once there is one again, everything is written
        except OSError as error:
            self.trouble = error
            self.disown(now)
        else:
            self.trouble = None
            self._plan.wrote(write)
        return write

    def begin_anew(self) -> None:
        """Somebody has deleted the folder, and there is one again."""
        self._plan.begin_anew()

    def close(self) -> None:
        """Nothing more is written."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def disown(self, now: float) -> None:
        """Members are about to be told more than could be written: nobody may go on from what is in the file."""
        self._plan.failed(now)
        with contextlib.suppress(OSError):
            if self._path.exists():
                os.replace(self._path, self._stale)
            elif not self._stale.exists():
                os.close(os.open(self._stale, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))

    def _append(self, content: bytes) -> None:
        assert self._file is not None
        write_at(self._file, content, self._end)
        self._end += len(content)

    def _replace(self, content: bytes) -> None:
        draft = self._path.with_name(f".{NAME}")
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write_at(file, content, 0)
            os.replace(draft, self._path)
        except OSError:
            os.close(file)
            with contextlib.suppress(OSError):
                draft.unlink()  # it takes up room
            raise
        self.close()
        self._file, self._end = file, len(content)
        with contextlib.suppress(OSError):
            self._stale.unlink()


def has_record(folder: Path) -> bool:
    """Whether a coordinator has written something down here, or told what it had no room to write down."""
    return (folder / NAME).exists() or (folder / STALE).exists()


def stale_state(folder: Path) -> str:
    """Why a run is over whose coordinator was lost with what it could not write down."""
    return (
        f"the coordinator was lost while there was no room to write the run's state to {folder}, so nobody knows where "
        "the run stands. Make room there and start the run again; if it wrote checkpoints, with --resume."
    )


def write_at(file: int, content: bytes, start: int) -> None:
    """All of it, or an OSError; then what is there counts for nothing, and is written over later."""
    view = memoryview(content)
    while view:
        written = os.pwrite(file, view, start)
        view, start = view[written:], start + written

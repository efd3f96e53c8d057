"""What a worker has done with files and how far its script is, for the others on its host to read.

    FOLDER/worker-0/at   how many calls of fit and its kin the script has come to, and what it does now
    FOLDER/worker-0/3    what it did with files after it had come to the third: one record for each operation

Each worker writes one, since each may become the chief. A record is complete or absent: it is written at once, to the
end of the file. Of two phases of the script there are all records: nobody is further behind than that, except those who
come late, and what they missed is over. For them it is kept which folders with numbers in their names, such as the time
of day, the chief has made: theirs would have others.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import threading
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from shoal.files import system

LIMIT = 16 << 20  # bytes of records in one phase; who needs more waits until the next call
_BLOCK = 1 << 14  # bytes that are read at once
_AT = struct.Struct("<qB")


class Doing(IntEnum):
    RUNNING = 0
    MEETING = 1  # it waits for all others
    OVER = 2  # the script is


class JournalPlace(NamedTuple):
    """How far a script is."""

    calls: int = 0
    doing: Doing = Doing.RUNNING


class JournalRecord(NamedTuple):
    """One operation on a file."""

    operation: str
    path: str
    error: int = 0  # its errno; 0 if it succeeded, -1 if it failed in another way
    held: int = -1  # the descriptor under which its process holds what was removed
    is_new: bool = False  # nothing lay there before


class Journal:
    """This worker's own. Threads may share it."""

    def __init__(self, folder: Path, member: str) -> None:
        self._folder = folder / member
        self._folder.mkdir(parents=True, exist_ok=True)
        self._at = system.os_open(str(self._folder / "at"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._place = JournalPlace()
        self._records: int | None = None  # the descriptor of this phase's
        self._written = 0
        self._lasting: list[bytes] = []  # those that are kept for who comes late
        self._old: tuple[int, list[bytes]] | None = None  # the phase before, if it has records, and such
        self._lock = threading.Lock()
        self._write_place()

    def come(self, calls: int) -> None:
        """The script has come to another call: it has done what lies before that."""
        with self._lock:
            before, self._place = self._place.calls, JournalPlace(calls)
            self._write_place()
            if self._old is not None:
                self._forget(*self._old)
            self._old = None if self._records is None else (before, self._lasting)
            self._close_records()

    def do(self, doing: Doing) -> None:
        with self._lock:
            if self._place.doing is not doing:
                self._place = JournalPlace(self._place.calls, doing)
                self._write_place()

    def note(self, record: JournalRecord) -> None:
        fields = (record.error, record.held, int(record.is_new), record.operation, record.path)
        line = (" ".join(map(str, fields)) + "\0").encode(errors="surrogateescape")
        with self._lock:
            self._written += len(line)
            if self._written > LIMIT:
                return
            with contextlib.suppress(OSError):  # the run's folder is gone: then nobody follows
                if self._records is None:
                    path = str(self._folder / str(self._place.calls))
                    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                    self._records = system.os_open(path, flags, 0o600)
                os.write(self._records, line)
            if record.operation == "mkdir" and not record.error and re.search(r"\d", record.path):
                self._lasting.append(line)

    def close(self) -> None:
        """Writes nothing more. Calling it again does nothing."""
        with self._lock:
            self._close_records()
            self._written = LIMIT
            if self._at >= 0:
                os.close(self._at)
                self._at = -1

    def _close_records(self) -> None:
        if self._records is not None:
            os.close(self._records)
        self._records, self._written, self._lasting = None, 0, []

    def _write_place(self) -> None:
        if self._at >= 0:
            os.pwrite(self._at, _AT.pack(*self._place), 0)

    def _forget(self, phase: int, lasting: list[bytes]) -> None:
        path = str(self._folder / str(phase))
        with contextlib.suppress(OSError):
            system.unlink(path)
            if lasting:
                with system.open(path, "wb") as file:
                    file.write(b"".join(lasting))


class JournalReader:
    """Another worker's, as far as it concerns one phase of the script. Reads on from where it was."""

    def __init__(self, folder: Path, member: str, phase: int) -> None:
        self._at = _File(str(folder / member / "at"))
        self._records = _File(str(folder / member / str(phase)))
        self._position = 0
        self._rest = b""

    def place(self) -> JournalPlace:
        """How far its script is. Of one whose journal is not there it is as if it were over: it can't be waited for."""
        raw = self._at.read(_AT.size, 0)
        if len(raw) < _AT.size:
            return JournalPlace(0, Doing.OVER)
        calls, doing = _AT.unpack(raw)
        return JournalPlace(calls, Doing(doing))

    def news(self) -> Iterator[JournalRecord]:
        """What it has done since it was last asked for."""
        while raw := self._records.read(_BLOCK, self._position):
            self._position += len(raw)
            *lines, self._rest = (self._rest + raw).split(b"\0")
            for line in lines:
                error, held, is_new, operation, path = line.decode(errors="surrogateescape").split(" ", 4)
                yield JournalRecord(operation, path, int(error), int(held), is_new == "1")

    def close(self) -> None:
        self._at.close()
        self._records.close()


class _File:
    """One that is opened once it is there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def read(self, count: int, position: int) -> bytes:
        """Nothing, if it is not there."""
        if self._descriptor < 0:
            try:
                self._descriptor = system.os_open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return b""
        return os.pread(self._descriptor, count, position)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def members(folder: Path) -> list[str]:
    """Who keeps a journal there."""
    try:
        return system.listdir(str(folder))
    except OSError:
        return []

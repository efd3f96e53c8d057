"""What the script's calls have returned, for workers that come late: each written once, read when it is needed.

It lies in a file of the run's folder and not in memory, since there is no end to the calls of a script. What can't be
written stays in memory until it can.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from shoal.cluster.coordinator_log import write_at
from shoal.cluster.log_entries import HEAD, content_length, content_of, frame
from shoal.cluster.messages import NOT_KEPT, RESULT_LIMIT

NAME = "results"
_ENTRY = RESULT_LIMIT + 64  # bytes of an entry's content, at most
_CHUNK = 1 << 20

_DECODER = msgspec.msgpack.Decoder(tuple[int, bytes])


class CallResults:
    """The file. It is kept open: should somebody delete the folder, what is in it can still be read."""

    def __init__(self, folder: Path) -> None:
        """Goes on with what the coordinator before this one has kept, up to the first entry that is not whole."""
        self._folder = folder
        self._file: int | None = None
        self._end = 0
        self._places: dict[int, tuple[int, int]] = {}  # call -> where its entry begins, and how long it is
        self._unwritten: dict[int, bytes] = {}
        self.trouble: OSError | None = None  # why some are in memory only
        with contextlib.suppress(OSError):  # the first result says so
            self._file = self._opened()
        while (entry := self._entry_at(self._end)) is not None:
            self._places.setdefault(entry[0], (self._end, entry[2]))
            self._end += entry[2]

    def calls(self) -> tuple[int, ...]:
        """Those whose results are kept."""
        return (*self._places, *self._unwritten)

    def keep(self, call: int, result: bytes) -> None:
        """Write it down; the first result of a call counts."""
        if call not in self._places:
            self._unwritten.setdefault(call, result)
            self.catch_up()

    def catch_up(self) -> None:
        """Write what could not be written before, in order."""
        if not self._unwritten:
            return
        try:
            for call, result in tuple(self._unwritten.items()):
                self._append(call, result)
                del self._unwritten[call]
        except OSError as error:
            self.trouble = error
        else:
            self.trouble = None

    def read(self, call: int) -> bytes:
        """What it returned; NOT_KEPT if that can't be read."""
        if call in self._unwritten:
            return self._unwritten[call]
        entry = self._entry_at(self._places[call][0]) if call in self._places else None
        return entry[1] if entry is not None and entry[0] == call else NOT_KEPT

    def begin_anew(self) -> None:
        """Somebody has deleted the folder, and there is one again: put there what was in the one before."""
        before = self._file
        try:
            file = self._opened()
        except OSError as error:
            self.trouble = error
            return
        try:
            for start in range(0, self._end if before is not None else 0, _CHUNK):
                write_at(file, os.pread(before or 0, min(_CHUNK, self._end - start), start), start)
        except OSError as error:
            self.trouble = error
            os.close(file)
            return
        self.close()
        self._file = file
        self.catch_up()

    def close(self) -> None:
        """Nothing more is kept."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _opened(self) -> int:
        return os.open(self._folder / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def _append(self, call: int, result: bytes) -> None:
        if self._file is None:
            self._file = self._opened()
        entry = frame(msgspec.msgpack.encode((call, result)))
        write_at(self._file, entry, self._end)
        self._places[call] = (self._end, len(entry))
        self._end += len(entry)

    def _entry_at(self, start: int) -> tuple[int, bytes, int] | None:
        """The call, its result, and how long the entry is; None if there is no whole one."""
        if self._file is None:
            return None
        try:
            head = os.pread(self._file, HEAD, start)
            length = content_length(head, _ENTRY)
            content = content_of(head + os.pread(self._file, length, start + HEAD)) if length is not None else None
            call, result = _DECODER.decode(content or b"")
        except (OSError, msgspec.MsgspecError):
            return None
        return call, result, HEAD + (length or 0)

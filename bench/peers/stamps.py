"""When each step of a job was done, as its own processes saw it. Standard library only, as gate.py.

Every process appends to a file of its own, named after its process id: one record per finished step. The file is
written without a buffer, so a process that is killed has stamped all that it finished. The bench reads while the
job trains.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

_RECORD = struct.Struct("<qd")


class Stamp(NamedTuple):
    """A finished step: its number over all epochs, and the machine's monotonic clock."""

    step: int
    at: float


class Stamps:
    """A process's own stamps. `folder` is the bench's; None: nobody reads them."""

    def __init__(self, folder: str | None) -> None:
        self._file = (Path(folder) / str(os.getpid())).open("ab", buffering=0) if folder else None

    def step(self, number: int) -> None:
        """This step is done."""
        if self._file is not None:
            self._file.write(_RECORD.pack(number, time.monotonic()))


def read(folder: Path) -> dict[int, list[Stamp]]:
    """All stamps so far, by process, in order."""
    return {int(path.name): _records(path.read_bytes()) for path in folder.iterdir() if path.name.isdecimal()}


def _records(raw: bytes) -> list[Stamp]:
    whole = len(raw) - len(raw) % _RECORD.size
    return [Stamp(*fields) for fields in _RECORD.iter_unpack(raw[:whole])]

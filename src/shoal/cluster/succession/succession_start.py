"""What a coordinator's process finds in the run's folder if the run has several hosts: what it was elected to."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from shoal.cluster.succession.electorate import Electorate
from shoal.cluster.succession.succession_messages import HostSeat

_FILE = "succession"


class SuccessionStart(msgspec.Struct, frozen=True):
    """Written before it is started."""

    epoch: int
    electorate: Electorate
    host: str  # the voter that has elected itself, with the others
    is_launchers: bool  # on the host of whoever has started the run: when that is gone, all of it is to end
    address: str | None = None  # where to listen; None: as the run's settings have it
    logs: str = ""  # a folder; empty: as the run's settings have it
    fenced: tuple[str, ...] = ()  # voters that somebody has seen to be dead
    seats: dict[str, HostSeat] = {}  # of all voters, those of dead hosts too
    last_heard: float | None = None  # when the coordinator before said something last, in seconds since the epoch

    def save(self, folder: Path) -> None:
        draft = folder / f".{_FILE}"
        draft.write_bytes(msgspec.json.encode(self))
        os.replace(draft, folder / _FILE)

    @classmethod
    def load(cls, folder: Path) -> SuccessionStart | None:
        try:
            return msgspec.json.decode((folder / _FILE).read_bytes(), type=cls)
        except FileNotFoundError:
            return None

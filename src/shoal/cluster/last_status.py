"""How a run stood when it ended, kept with its logs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from shoal.cluster.messages import StatusReply

_LAST = "last_status.json"


def write_last(folder: Path, reply: StatusReply) -> None:
    """What can't be written is lost."""
    with contextlib.suppress(OSError):
        (folder / _LAST).write_bytes(msgspec.json.encode(reply))


def read_last(folder: Path) -> StatusReply | None:
    try:
        return msgspec.json.decode((folder / _LAST).read_bytes(), type=StatusReply)
    except (OSError, msgspec.DecodeError):
        return None

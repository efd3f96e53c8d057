"""One question to the coordinator of a run on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shoal.clock import Deadline
from shoal.cluster import folders, meeting
from shoal.cluster.messages import FROM_COORDINATOR
from shoal.errors import UsageError
from shoal.wire.connection import connect
from shoal.wire.keys import RunKey
from shoal.wire.messages import Message

_ANSWER_WITHIN = 2.0  # seconds


def ask(folder: Path, question: Message) -> Message:
    """What the run's coordinator answers; WireError or OSError if it does not."""
    deadline = Deadline.after(_ANSWER_WITHIN)
    address = meeting.find(folder, deadline)
    connection = connect(address, RunKey.load(folder / "key"), FROM_COORDINATOR, deadline)
    try:
        connection.send(question, deadline=deadline)
        return connection.receive(deadline)
    finally:
        connection.close()


def living(environ: Mapping[str, str]) -> list[Path]:
    """The folders of all runs that are alive, oldest first."""
    return [folder for folder in folders.runs(folders.home(environ)) if folders.is_alive(folder)]


def the_run(environ: Mapping[str, str], run: str | None) -> Path:
    """The folder of the run that is meant; UsageError if that is not clear."""
    there = {folder.name: folder for folder in living(environ)}
    if run is not None and run in there:
        return there[run]
    if not there:
        raise UsageError("no run is going on on this machine. `shoal run` starts one.")
    names = ", ".join(there)
    if run is not None:
        raise UsageError(f"there is no run {run} on this machine; there is {names}.")
    if len(there) != 1:
        raise UsageError(f"which run? Say it with --run ID; on this machine there is {names}.")
    return next(iter(there.values()))

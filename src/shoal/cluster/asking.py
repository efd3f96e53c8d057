"""One question to the coordinator of a run on this machine."""

from __future__ import annotations

from pathlib import Path

from shoal.clock import Deadline
from shoal.cluster import coordinator_address
from shoal.cluster.messages import FROM_COORDINATOR
from shoal.wire.connection import connect
from shoal.wire.keys import RunKey
from shoal.wire.messages import Message

_ANSWER_WITHIN = 2.0  # seconds


def ask(folder: Path, question: Message) -> Message:
    """What the run's coordinator answers; WireError or OSError if it does not."""
    deadline = Deadline.after(_ANSWER_WITHIN)
    address = coordinator_address.find(folder, deadline)
    connection = connect(address, RunKey.load(folder / "key"), FROM_COORDINATOR, deadline)
    try:
        connection.send(question, deadline=deadline)
        return connection.receive(deadline)
    finally:
        connection.close()

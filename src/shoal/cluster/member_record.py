"""Where the record of a member is kept: in a file among the run's logs. From another host it goes through the
coordinator, which writes it down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal.cluster.clock_offset import ClockOffset
from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.config import RunConfig
from shoal.observe.record_files import LIMIT, TRACE_LIMIT, RecordFile, to_frame
from shoal.observe.record_keeper import RecordKeeper
from shoal.observe.spans import SpanBlock


def record_keeper(
    config: RunConfig, coordinator_link: CoordinatorLink, clock_offset: ClockOffset | None
) -> RecordKeeper | None:
    """Of what the link's recorder hears; None where nobody wants a record. `clock_offset`: on another host."""
    if not config.record:
        return None

    def ahead() -> float | None:
        offset = clock_offset.ahead(time.monotonic()) if clock_offset is not None else 0.0
        return config.epoch + offset if offset is not None else None

    kept: RecordFile | SentRecord = SentRecord(coordinator_link.record)
    if config.logs:
        kept = RecordFile(Path(config.logs), coordinator_link.member.id, TRACE_LIMIT if config.trace else LIMIT)
    return RecordKeeper(coordinator_link.recorder, kept.write, ahead)


class SentRecord:
    """In the place of a file. On a link that is too slow for it, spans are dropped and counted."""

    def __init__(self, send: Callable[[bytes], bool]) -> None:
        """`send` tells whether it has taken the frame."""
        self._send = send
        self._lost = 0  # since the last frame that was sent

    def write(self, block: SpanBlock) -> None:
        lost = self._lost + block.lost
        if self._send(to_frame(msgspec.structs.replace(block, lost=lost))):
            self._lost = 0
        else:
            self._lost = lost + len(block.spans)

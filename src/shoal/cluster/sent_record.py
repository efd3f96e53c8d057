"""The record of a member that is on another host than the run's logs: the coordinator writes it down."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.observe.record_files import to_frame
from shoal.observe.spans import SpanBlock


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

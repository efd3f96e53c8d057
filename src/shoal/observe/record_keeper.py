"""Takes what a process has recorded to where it is kept, twice a second, in a thread of its own.

Training never waits for it. When the file system is slow, or gone, spans are dropped and counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from shoal.observe.recorder import Recorder
from shoal.observe.spans import MOST_SPANS, SpanBlock

EVERY = 0.5  # seconds
_LAST_WORDS = 2.0  # seconds that the end of a process may be held up


class RecordKeeper:
    """From `start` to `close`."""

    def __init__(
        self,
        recorder: Recorder,
        keep: Callable[[SpanBlock], None],
        ahead: Callable[[], float | None],
        every: float = EVERY,
    ) -> None:
        """`keep` may wait. `ahead`: how far the shared clock is ahead of this process's own, as is known now.

        As long as it is not known, what was recorded waits.
        """
        self._recorder = recorder
        self._keep = keep
        self._ahead = ahead
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="shoal-record", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What was recorded until now is kept, unless that takes too long."""
        self._over.set()
        self._thread.join(_LAST_WORDS)

    def drain(self) -> None:
        """All that there is now."""
        ahead = self._ahead()
        while ahead is not None:
            spans, dropped = self._recorder.take()
            is_all = len(spans) < MOST_SPANS
            self._keep(SpanBlock(ahead, dropped, spans, self._recorder.going_on() if is_all else None))
            if is_all:
                return

    def _attend(self) -> None:
        while not self._over.wait(self._every):
            self.drain()
        self.drain()

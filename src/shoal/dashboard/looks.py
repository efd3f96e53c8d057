"""Looks at runs for all who watch: once, however many they are, and not at all if nobody does.

A glance asks the coordinator, and is cheap. Only what is shown is made of all that a run leaves in its logs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from shoal.dashboard.facts import PageFacts, page_facts
from shoal.dashboard.logs_reader import LogsReader
from shoal.dashboard.sources import Glance, WatchedRun, gather, glance

FRESH = 0.2  # seconds for which a look counts
_FRESH_WHEN_OVER = 5.0


class KnownRun(msgspec.Struct, frozen=True):
    """One of the runs that the page can show."""

    run: str
    is_alive: bool


class _RunLooks:
    """At one run. One look at a time."""

    def __init__(self, run: WatchedRun) -> None:
        self.lock = asyncio.Lock()
        self._reader = LogsReader(run.logs)
        self._seen: tuple[float, Glance] | None = None
        self._made: tuple[Glance, PageFacts] | None = None  # of this glance

    async def glance(self, run: WatchedRun) -> Glance:
        if self._seen is not None:
            at, seen = self._seen
            if time.monotonic() - at < (FRESH if seen.is_alive else _FRESH_WHEN_OVER):
                return seen
        seen = await asyncio.to_thread(glance, run)
        self._seen = (time.monotonic(), seen)
        return seen

    async def facts(self, run: WatchedRun) -> PageFacts:
        seen = await self.glance(run)
        if self._made is None or self._made[0] is not seen:
            facts = await asyncio.to_thread(lambda: page_facts(gather(run, seen, self._reader)))
            self._made = (seen, facts)
        return self._made[1]


class Looks:
    """For one event loop."""

    def __init__(self, find: Callable[[], Sequence[WatchedRun]]) -> None:
        """`find`: the runs that may be looked at, the oldest first. It may change what it says."""
        self._find = find
        self._lock = asyncio.Lock()
        self._found: tuple[float, Sequence[WatchedRun]] = (-FRESH, ())
        self._looks: dict[str, _RunLooks] = {}

    async def runs(self) -> Sequence[WatchedRun]:
        async with self._lock:
            if time.monotonic() - self._found[0] >= FRESH:
                self._found = (time.monotonic(), await asyncio.to_thread(self._find))
                for name in self._looks.keys() - {run.name for run in self._found[1]}:
                    del self._looks[name]
            return self._found[1]

    async def known(self) -> list[KnownRun]:
        return [KnownRun(run.name, run.is_alive) for run in await self.runs()]

    async def run(self, name: str | None) -> WatchedRun | None:
        """The one of this name; without a name, the newest that lives, or else the newest."""
        runs = await self.runs()
        if name is not None:
            return next((run for run in runs if run.name == name), None)
        return next((run for run in reversed(runs) if run.is_alive), runs[-1] if runs else None)

    async def glance(self, run: WatchedRun) -> Glance:
        looks = self._of(run)
        async with looks.lock:
            return await looks.glance(run)

    async def facts(self, run: WatchedRun) -> PageFacts:
        looks = self._of(run)
        async with looks.lock:
            return await looks.facts(run)

    def _of(self, run: WatchedRun) -> _RunLooks:
        if run.name not in self._looks:
            self._looks[run.name] = _RunLooks(run)
        return self._looks[run.name]

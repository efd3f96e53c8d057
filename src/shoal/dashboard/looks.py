"""Looks at runs for all who watch: once, however many they are, and not at all if nobody does."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from shoal.dashboard.facts import PageFacts, page_facts
from shoal.dashboard.logs_reader import LogsReader
from shoal.dashboard.sources import WatchedRun, gather

FRESH = 0.2  # seconds for which a look counts
_FRESH_WHEN_OVER = 5.0


class KnownRun(msgspec.Struct, frozen=True):
    """One of the runs that the page can show."""

    run: str
    is_alive: bool


class Looks:
    """For one event loop."""

    def __init__(self, find: Callable[[], Sequence[WatchedRun]]) -> None:
        """`find`: the runs that may be looked at, the oldest first. It may change what it says."""
        self._find = find
        self._found: tuple[float, Sequence[WatchedRun]] = (-FRESH, ())
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._last: dict[str, tuple[float, PageFacts]] = {}
        self._readers: dict[str, LogsReader] = {}

    async def runs(self) -> Sequence[WatchedRun]:
        async with self._locks[""]:
            if time.monotonic() - self._found[0] >= FRESH:
                self._found = (time.monotonic(), await asyncio.to_thread(self._find))
                known = {run.name for run in self._found[1]}
                for kept in (self._last, self._readers):
                    for name in kept.keys() - known:
                        del kept[name]
            return self._found[1]

    async def known(self) -> list[KnownRun]:
        return [KnownRun(run.name, run.is_alive) for run in await self.runs()]

    async def run(self, name: str | None) -> WatchedRun | None:
        """The one of this name; without a name, the newest that lives, or else the newest."""
        runs = await self.runs()
        if name is not None:
            return next((run for run in runs if run.name == name), None)
        return next((run for run in reversed(runs) if run.is_alive), runs[-1] if runs else None)

    async def facts(self, run: WatchedRun) -> PageFacts:
        async with self._locks[run.name]:
            if run.name in self._last:
                at, facts = self._last[run.name]
                if time.monotonic() - at < (_FRESH_WHEN_OVER if facts.is_over else FRESH):
                    return facts
            reader = self._readers.setdefault(run.name, LogsReader(run.logs))
            facts = await asyncio.to_thread(lambda: page_facts(gather(run, reader)))
            self._last[run.name] = (time.monotonic(), facts)
            return facts

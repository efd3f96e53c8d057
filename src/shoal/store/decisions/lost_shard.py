"""A shard that no server has: which worker's weights it goes on from, and what waits for that. Pure.

    lost     VersionAsked to every worker ··all have answered, or a second··▶ Lacking to the one with the newest
    new      ··somebody waits for the shard··▶ Lacking to it: all have what the model begins with

Whoever is asked and does not supply within a second is followed by the next. Versions are small and come at once;
weights may be large, so they are asked of one worker at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from shoal.store.values.messages import Lacking, Pull, Push, ShardMessage, VersionAsked, VersionSeen

ANSWERS_WITHIN = 1.0  # seconds


class ToWorker(NamedTuple):
    """Say this to a worker."""

    worker: str
    message: ShardMessage


class LostShard:
    """The search for one shard's weights, in one view."""

    def __init__(self, shard: int, view: int, workers: Collection[str], now: float) -> None:
        """`workers`: those that may have seen versions of it; none, if there were none to see."""
        self.shard = shard
        self.view = view
        self.waiting: list[tuple[str, ShardMessage, Sequence[Any]]] = []  # what was said to the shard meanwhile
        self._unheard = dict.fromkeys(workers, False)  # -> whether it was asked for its version
        self._versions: dict[str, int] = {}
        self._until = now + ANSWERS_WITHIN
        self._asked = 0  # for weights: workers, one after the other
        self._supplier: str | None = None  # the last of them
        self._ask_again = 0.0

    @property
    def is_comparing(self) -> bool:
        """Whether versions are still to come, as far as is known."""
        return bool(self._unheard)

    def next(self, is_linked: Callable[[str], bool], now: float) -> list[ToWorker]:
        """Whom to ask now, and for what."""
        if self._unheard and now < self._until:
            found = [id for id, asked in self._unheard.items() if not asked and is_linked(id)]
            self._unheard |= dict.fromkeys(found, True)
            return [ToWorker(id, VersionAsked(self.shard, self.view)) for id in found]
        self._unheard.clear()
        able = self._able()
        if not able or now < self._ask_again:
            return []
        self._ask_again = now + ANSWERS_WITHIN
        self._supplier = able[self._asked % len(able)]
        self._asked += 1
        return [ToWorker(self._supplier, Lacking(self.shard, self.view))]

    def hear(self, worker: str, seen: VersionSeen) -> None:
        """The version that this one has, or that it has none."""
        self._unheard.pop(worker, None)
        if seen.version is not None:
            self._versions[worker] = seen.version

    def reconnected(self, worker: str) -> None:
        """What it was asked may be lost: it is asked again, and nobody with older weights instead."""
        if worker in self._unheard:
            self._unheard[worker] = False
        if worker == self._supplier:
            self._asked, self._ask_again, self._supplier = self._asked - 1, 0.0, None

    def _able(self) -> list[str]:
        """Who may have weights of it: the newest first, then those who wait for it and have not said."""
        newest_first = sorted(self._versions, key=lambda id: -self._versions[id])
        waiting = (peer for peer, said, _ in self.waiting if isinstance(said, Pull | Push))
        return list(dict.fromkeys((*newest_first, *waiting)))

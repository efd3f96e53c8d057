"""One update that all workers have agreed on, from its sum to the last acknowledgement. Pure.

    sum ──▶ Push to some shards ··all pushed··▶ delivered

For synchronous training. Each worker delivers to its own part of the shards; who takes over the part of a lost one may
push what was pushed before, which the shards notice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shoal.store.batches import Batch
from shoal.store.ledger import Provenance
from shoal.store.messages import Push, Pushed
from shoal.store.placement import ShardView
from shoal.store.update import Ask


class Delivery:
    """What one worker pushes of one update."""

    def __init__(self, batch: Batch, worker: str, shards: Collection[int], rate: float | None) -> None:
        self.batch = batch
        self._update = Provenance(batch, worker, {}, rate)
        self._missing = set(shards)
        self._pushed: dict[int, int] = {}  # shard -> the view in which it was acknowledged
        self._views: Sequence[ShardView] = ()

    @property
    def is_over(self) -> bool:
        return not self._missing

    def take_views(self, views: Sequence[ShardView]) -> list[Ask]:
        """Every shard's place in a new view. What a shard had acknowledged before it was lost is worth nothing."""
        if self._views and views[0].number <= self._views[0].number:
            return []
        self._views = views
        self._missing |= {shard for shard, view in self._pushed.items() if view < views[shard].origin}
        return self._ask()

    def reconnected(self, server: str) -> list[Ask]:
        """The connection to this server was made anew: whatever was on its way may be lost."""
        return [ask for ask in self._ask() if ask.server == server]

    def handle(self, pushed: Pushed) -> None:
        if pushed.shard in self._missing and pushed.view >= self._views[pushed.shard].origin:
            self._missing.remove(pushed.shard)
            self._pushed[pushed.shard] = pushed.view

    def _ask(self) -> list[Ask]:
        return [
            Ask(view.primary, Push(view.shard, view.number, self._update))
            for view in self._views
            if view.shard in self._missing and view.primary is not None
        ]

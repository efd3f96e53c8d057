"""One update, or weights that replace others, on its way to shards, until the last has acknowledged it. Pure.

    gradients ──▶ Push to some shards ··all pushed··▶ delivered

In asynchronous training a worker delivers what it has computed to all shards. In synchronous training each worker
delivers its own part of what all have agreed on; who takes over the part of a lost one may push what was pushed before,
which the shards notice.

An acknowledgement stays true in every later view, unless the shard goes back to a checkpoint: then it is worth nothing,
whether it came before or comes after, and the update is pushed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.store.decisions.placement import Placement, ShardView
from shoal.store.decisions.requests import AbstractRequest, Ask
from shoal.store.values.ledger import Provenance
from shoal.store.values.messages import Push, Pushed
from shoal.store.values.operations import Operation
from shoal.wire.messages import Message


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is pushed to one shard."""

    update: Provenance
    beside: Sequence[Any]
    rows: int = 0  # of a table: how many have a gradient


class Delivery(AbstractRequest):
    """What one worker pushes of one operation, by shard."""

    def __init__(self, operation: Operation, parcels: Mapping[int, Parcel], ends_with_loss: bool = False) -> None:
        """`ends_with_loss`: nobody wants it any more when this worker is taken for lost: another computes it."""
        self._operation = operation
        self._parcels = parcels
        self._ends_with_loss = ends_with_loss
        self._pushed: dict[int, Pushed] = {}  # by shard
        self._views: Sequence[ShardView] = ()

    @property
    def is_over(self) -> bool:
        return len(self._pushed) == len(self._parcels)

    @property
    def view(self) -> int:
        """The newest that it has heard of. If a shard goes back to a checkpoint in a later one, it counts no more."""
        return self._views[0].number if self._views else 0

    @property
    def staleness(self) -> int | None:
        """The largest that any shard has seen; None: none remembers."""
        known = [pushed.staleness for pushed in self._pushed.values() if pushed.staleness is not None]
        return max(known, default=None)

    def take_view(self, placement: Placement) -> list[Ask]:
        if placement.number <= self.view:
            return []
        self._views = views = placement.views
        self._pushed = {shard: pushed for shard, pushed in self._pushed.items() if pushed.view >= views[shard].origin}
        return self._ask()

    def reconnected(self, server: str) -> list[Ask]:
        return [ask for ask in self._ask() if ask.server == server]

    def hear(self, answer: Message, beside: Sequence[Any] = ()) -> list[Ask]:
        match answer:
            case Pushed(shard, view, operation) if operation == self._operation and shard in self._parcels:
                if shard not in self._pushed and self._views and view >= self._views[shard].origin:
                    self._pushed[shard] = answer
        return []

    def outlasts_loss(self) -> bool:
        return not self._ends_with_loss

    def _ask(self) -> list[Ask]:
        return [
            Ask(view.primary, Push(view.shard, view.number, parcel.update, parcel.rows), parcel.beside)
            for view in self._views
            if view.primary is not None and view.shard not in self._pushed
            for parcel in (self._parcels.get(view.shard),)
            if parcel is not None
        ]

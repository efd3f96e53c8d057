"""The weights of all shards, for one purpose of one worker. Pure.

    Pull from every shard ··all pulled··▶ over

- Nothing is asked in an older view than the one that the read was allowed in. What was finished before that is then in
  the weights, whatever an old primary may still believe: the staleness clock counts on it.
- Weights count only if they were pulled in the view the worker is in. So versions never go back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.store.decisions.placement import Placement, ShardView
from shoal.store.decisions.requests import AbstractRequest, Ask, KeepNewest, RequestDecision
from shoal.store.values.messages import Pull, Pulled, PullKind
from shoal.wire.messages import Message


@dataclass(frozen=True, slots=True)
class ReadPurpose:
    """What is read, and for what."""

    least: int  # the first view that counts
    what: PullKind = PullKind.WEIGHTS
    # Of every shard that is part of a table: the ids that are wanted.
    rows: Mapping[int, Any] = field(default_factory=dict)
    ends_with_loss: bool = False  # nobody wants it any more when this worker is taken for lost


class WeightsRead(AbstractRequest):
    """All weights, each shard's once."""

    def __init__(self, number: int, shards: int, purpose: ReadPurpose) -> None:
        """`number`: by which its answers are known, among all that this worker asks."""
        self._number = number
        self._shards = shards
        self._purpose = purpose
        self._views: Sequence[ShardView] = ()
        self._weights: dict[int, Sequence[Any]] = {}
        self.seen: dict[int, dict[str, int]] = {}  # by shard: how many updates of each worker are in the weights

    @property
    def is_over(self) -> bool:
        return len(self._weights) == self._shards

    @property
    def weights(self) -> list[Sequence[Any]]:
        """Of every shard, when it is over."""
        return [self._weights[shard] for shard in range(self._shards)]

    def take_view(self, placement: Placement) -> list[Ask]:
        if placement.number < self._purpose.least or placement.number <= self._view:
            return []
        self._views = placement.views
        return self._ask()

    def reconnected(self, server: str) -> list[Ask]:
        return [ask for ask in self._ask() if ask.server == server]

    def hear(self, answer: Message, beside: Sequence[Any]) -> list[RequestDecision]:
        match answer:
            case Pulled(shard, view, number) if number == self._number and view == self._view:
                if shard in self._weights:
                    return []
                self._weights[shard], self.seen[shard] = beside, answer.made
                is_newest = self._purpose.what is PullKind.WEIGHTS and shard not in self._purpose.rows
                return [KeepNewest(shard, answer.version, beside)] if is_newest else []
        return []

    def outlasts_loss(self) -> bool:
        return not self._purpose.ends_with_loss

    @property
    def _view(self) -> int:
        return self._views[0].number if self._views else 0

    def _ask(self) -> list[Ask]:
        """All that is not answered yet."""
        return [
            self._question(view.shard, view.primary)
            for view in self._views
            if view.shard not in self._weights and view.primary is not None
        ]

    def _question(self, shard: int, primary: str) -> Ask:
        ids = self._purpose.rows.get(shard)
        if ids is None:
            return Ask(primary, Pull(shard, self._view, self._number, self._purpose.what))
        return Ask(primary, Pull(shard, self._view, self._number, self._purpose.what, ids.size), [ids])

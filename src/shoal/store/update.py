"""One update of one worker, from its lease to the last acknowledgement. Pure.

    lease ──▶ Pull from every shard ··all pulled··▶ Compute ──computed()──▶ Push to every shard ··all pushed··▶ Over

Whatever is unanswered when the view or a connection is new is asked again, of the shard's primary of that view. A
worker that works ahead has several of these at a time; they know nothing of each other.

- Nothing is asked in an older view than the one the lease was given in. What was finished before the lease was given is
  then in the weights, whatever an old primary may still believe: the staleness clock counts on it.
- Weights count only if they were pulled in the view the worker is in. So versions never go back.
- An acknowledgement stays true in every later view, unless the shard goes back to a checkpoint: then it is worth
  nothing, whether it came before or comes after, and the update is pushed again.
- A worker that is not in a view does not speak in it: it gives up its updates and comes back as a newcomer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.store.batches import Batch
from shoal.store.ledger import Provenance
from shoal.store.messages import Pull, Pulled, Push, Pushed, Refused
from shoal.store.placement import ShardView


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this to a server; beside a Push, the shard's gradients."""

    server: str
    message: Pull | Push


@dataclass(frozen=True, slots=True)
class Keep:
    """The weights that came beside this answer are those of the shard."""

    shard: int


@dataclass(frozen=True, slots=True)
class Compute:
    """The weights of all shards are there: compute the gradients, then call `computed`."""


@dataclass(frozen=True, slots=True)
class Over:
    """Every shard has applied it. The batch is to be acknowledged; the gradients are not needed any more.

    Unless a shard has gone back to a checkpoint in a later view than this one: then the batch does not count.
    """

    view: int
    versions: tuple[int, ...]  # of every shard, with this update in it
    staleness: int | None  # the largest that any shard has seen; None: none remembers


Decision = Ask | Keep | Compute | Over


class Update:
    """What one worker makes of one batch. `view`: the one in which the lease was given."""

    def __init__(self, batch: Batch, worker: str, view: int, shards: int) -> None:
        self.batch = batch
        self._worker = worker
        self._least = view
        self._shards = shards
        self._views: Sequence[ShardView] = ()
        self._seen: dict[int, dict[str, int]] = {}  # by shard: what was in the weights
        self._pushed: dict[int, Pushed] = {}  # by shard
        self._computed = False
        self._rate: float | None = None

    def take_views(self, views: Sequence[ShardView]) -> list[Decision]:
        """Every shard's place in a new view, in the order of shards."""
        if views[0].number < self._least or (self._views and views[0].number <= self._views[0].number):
            return []
        self._views = views
        self._pushed = {shard: pushed for shard, pushed in self._pushed.items() if pushed.view >= views[shard].origin}
        return self._ask()

    def reconnected(self, server: str) -> list[Decision]:
        """The connection to this server was made anew: whatever was on its way may be lost."""
        return [ask for ask in self._ask() if isinstance(ask, Ask) and ask.server == server]

    def handle(self, message: Pulled | Pushed | Refused) -> list[Decision]:
        """Take an answer about this batch. A refusal needs none: the view that it speaks of is on its way."""
        match message:
            case Pulled(shard, view) if view == self._number and shard not in self._seen:
                self._seen[shard] = message.made
                return [Keep(shard), Compute()] if len(self._seen) == self._shards else [Keep(shard)]
            case Pushed(shard, view) if view >= self._views[shard].origin and shard not in self._pushed:
                self._pushed[shard] = message
                return [self._over()] if len(self._pushed) == self._shards else []
            case _:
                return []

    def computed(self, rate: float | None = None) -> list[Decision]:
        """The gradients are there; they are to be applied at this learning rate."""
        self._computed, self._rate = True, rate
        return self._ask()

    @property
    def _number(self) -> int:
        return self._views[0].number if self._views else 0

    def _ask(self) -> list[Decision]:
        """All that is not answered yet."""
        answered = self._pushed if self._computed else self._seen
        return [
            Ask(view.primary, self._question(view.shard))
            for view in self._views
            if view.shard not in answered and view.primary is not None
        ]

    def _question(self, shard: int) -> Pull | Push:
        if not self._computed:
            return Pull(shard, self._number, self.batch)
        return Push(shard, self._number, Provenance(self.batch, self._worker, self._seen[shard], self._rate))

    def _over(self) -> Over:
        versions = tuple(self._pushed[shard].version for shard in range(self._shards))
        known = [pushed.staleness for pushed in self._pushed.values() if pushed.staleness is not None]
        return Over(self._number, versions, max(known, default=None))

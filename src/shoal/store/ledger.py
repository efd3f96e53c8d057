"""What a shard remembers besides its tensors. It is a part of the shard's state, equal on all replicas."""

from __future__ import annotations

import msgspec

from shoal.store.batches import Batch, Tally


class Provenance(msgspec.Struct, frozen=True):
    """Where an update comes from: its batch, who computed it, and from which weights."""

    batch: Batch
    worker: str
    seen: dict[str, int]  # the shard's `made` when the weights were pulled
    rate: float | None = None  # the learning rate that its callbacks have set; None: the optimizer's own


class Ledger(msgspec.Struct, frozen=True):
    """Which batches were applied, and how many updates of each worker.

    Only the last epoch's batches are remembered one by one. No batch of an epoch is leased before all of the one before
    are acknowledged by every shard, so the first that comes of an epoch says that the ones before are complete.
    """

    epoch: int = 0
    batches: Tally = Tally()
    made: dict[str, int] = {}

    def has(self, batch: Batch) -> bool:
        return batch.epoch < self.epoch or (batch.epoch == self.epoch and batch.place in self.batches)

    def after(self, update: Provenance) -> Ledger:
        """The ledger when this update has been applied too."""
        batch = update.batch
        batches = self.batches if batch.epoch == self.epoch else Tally()
        made = {**self.made, update.worker: self.made.get(update.worker, 0) + 1}
        return Ledger(batch.epoch, batches.plus(batch.place), made)

    def staleness(self, update: Provenance) -> int:
        """How stale the update is if it is applied now: the most updates of any one other worker that it lacks."""
        others = (worker for worker in self.made if worker != update.worker)
        return max([0, *(self.made[other] - update.seen.get(other, 0) for other in others)])

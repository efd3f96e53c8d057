"""What a shard remembers besides its tensors. It is a part of the shard's state, equal on all replicas."""

from __future__ import annotations

import msgspec

from shoal.store.values.operations import Assignment, Batch, Operation, Tally


class Provenance(msgspec.Struct, frozen=True):
    """Where an update comes from: what it is, who computed it, and from which weights."""

    operation: Operation
    worker: str
    seen: dict[str, int]  # the shard's `made` when the weights were pulled
    rate: float | None = None  # the learning rate that its callbacks have set; None: the optimizer's own


class Ledger(msgspec.Struct, frozen=True):
    """Which batches were applied, how many updates of each worker, and which weights were assigned.

    Only the last epoch's batches are remembered one by one. No batch of an epoch is leased before all of the one before
    are acknowledged by every shard, so the first that comes of an epoch says that the ones before are complete.
    """

    epoch: int = 0
    batches: Tally = Tally()
    made: dict[str, int] = {}
    assigned: Assignment | None = None  # the last

    def has(self, operation: Operation) -> bool:
        match operation:
            case Assignment():
                return self.assigned is not None and operation <= self.assigned
            case Batch(epoch, place):
                return epoch < self.epoch or (epoch == self.epoch and place in self.batches)

    def after(self, update: Provenance) -> Ledger:
        """The ledger when this update has been applied too."""
        match update.operation:
            case Assignment():
                return msgspec.structs.replace(self, assigned=update.operation)
            case Batch(epoch, place):
                batches = self.batches if epoch == self.epoch else Tally()
                made = {**self.made, update.worker: self.made.get(update.worker, 0) + 1}
                return Ledger(epoch, batches.plus(place), made, self.assigned)

    def staleness(self, update: Provenance) -> int:
        """How stale the update is if it is applied now: the most updates of any one other worker that it lacks."""
        others = (worker for worker in self.made if worker != update.worker)
        return max([0, *(self.made[other] - update.seen.get(other, 0) for other in others)])

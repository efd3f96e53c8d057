"""Who computes which batch of the epoch: the book of leases. Pure: it is told what happens, and when a lease ends.

    not dealt yet ──lease──▶ leased ──acknowledge──▶ counted
                              ▲ │
                       lease  │ │  the worker is lost, or its lease ends
                              │ ▼
                             free

- A batch is counted once, when the first acknowledgement for it comes, whoever it was leased to by then.
- Places are dealt in order, those that became free first. Whoever asks gets the next, so fast workers take more.
- The end of an epoch is a barrier: nothing of the next is dealt before every batch is counted.
- An epoch that is halted ends with what is leased by then. What comes back of that is left out.
- While the book is paused nothing is dealt for the first time; what became free still is. So it comes to rest with
  exactly the first so many places counted.

The book is a Struct: encode it to write it down, decode it to go on from there.
"""

from __future__ import annotations

from bisect import insort

import msgspec

from shoal.errors import UsageError
from shoal.store.values.operations import Batch, Tally


class Lease(msgspec.Struct, frozen=True):
    """A batch given to one worker for a time."""

    batch: Batch
    worker: str
    until: float


class LeaseBook(msgspec.Struct):
    """The leases of one epoch after another. A worker holds at most `ahead` of them at a time."""

    batches: int  # in this epoch
    epoch: int = 0
    ahead: int = 1
    dealt: int = 0  # the places below were leased at least once
    counted: Tally = Tally()
    leases: dict[int, Lease] = {}  # by place
    free: list[int] = []  # leased once, given back, not counted; in order
    halted: bool = False  # nothing more of this epoch is dealt
    paused: bool = False  # nothing more is dealt for the time being

    def __post_init__(self) -> None:
        _check(self.batches, self.ahead)

    @property
    def is_over(self) -> bool:
        """Every batch of this epoch is counted."""
        return len(self.counted) == self.batches

    @property
    def rests(self) -> bool:
        """It is paused, and every batch that was ever dealt is counted; not at the end of an epoch."""
        return self.paused and not self.leases and not self.free and not self.is_over

    @classmethod
    def begun(cls, batches: int, epoch: int, ahead: int, done: int) -> LeaseBook:
        """In the middle of an epoch: so many of its batches are counted already."""
        return cls(batches, epoch, ahead, done, Tally(done))

    def lease_next(self, worker: str, until: float) -> Lease | None:
        """The next batch for this worker; None if it holds enough, or all are dealt that may be."""
        if sum(lease.worker == worker for lease in self.leases.values()) >= self.ahead:
            return None
        if self.free:
            place = self.free.pop(0)
        elif self.dealt < self.batches and not self.paused:
            place = self.dealt
            self.dealt += 1
        else:
            return None
        self.leases[place] = Lease(Batch(self.epoch, place), worker, until)
        return self.leases[place]

    def acknowledge(self, batch: Batch) -> bool:
        """All shards have applied it. True if it counts now, False if it was counted before."""
        if batch.epoch != self.epoch or batch.place >= self.dealt or batch.place in self.counted:
            return False
        self.counted = self.counted.plus(batch.place)
        if self.leases.pop(batch.place, None) is None:
            self.free.remove(batch.place)
        return True

    def give_back(self, worker: str, batch: Batch) -> None:
        """This worker does not compute it, or did so in vain: it is free again."""
        lease = self.leases.get(batch.place)
        if lease is not None and lease.batch == batch and lease.worker == worker:
            self._give_back([batch.place])

    def lost(self, worker: str) -> tuple[Batch, ...]:
        """Nothing more is expected of this worker: its batches are free again."""
        return self._give_back([place for place, lease in self.leases.items() if lease.worker == worker])

    def expire(self, now: float) -> tuple[Batch, ...]:
        """The batches whose leases have ended; they are free again.

        None in an epoch that ends early, where nobody else would get them: who is at one may still push it, and others
        must not take the weights of the epoch's end before that.
        """
        if self.halted:
            return ()
        return self._give_back([place for place, lease in self.leases.items() if lease.until <= now])

    def halt(self) -> None:
        """End the epoch early: only what is leased now is still waited for."""
        self.halted = True
        self.batches = self.dealt
        self._leave_out()

    def next_epoch(self, batches: int) -> None:
        """Go on to the next epoch. Only when this one is over."""
        if not self.is_over:
            raise RuntimeError(f"epoch {self.epoch} is not over: {len(self.counted)} of {self.batches} batches counted")
        _check(batches, self.ahead)
        self.epoch += 1
        self.batches, self.dealt, self.counted, self.halted = batches, 0, Tally(), False

    def _give_back(self, places: list[int]) -> tuple[Batch, ...]:
        for place in places:
            del self.leases[place]
            insort(self.free, place)
        if self.halted:
            self._leave_out()
        return tuple(Batch(self.epoch, place) for place in places)

    def _leave_out(self) -> None:
        while self.free:
            self.counted = self.counted.plus(self.free.pop())


def _check(batches: int, ahead: int) -> None:
    if batches < 1 or ahead < 1:
        raise UsageError(
            f"an epoch of {batches} batches, of which a worker may hold {ahead}, can't be leased: "
            "expected at least one of each"
        )

"""What changes a shard, by name: the update from a batch, or weights that are assigned; and sets of batches. Values.

Whoever sends an operation, and however often: a shard knows it by its name, and applies it once.
"""

from __future__ import annotations

import msgspec


class Batch(msgspec.Struct, frozen=True, array_like=True, order=True, tag="batch"):
    """A batch of an epoch: the name of the update that is made from it, whoever computes it."""

    epoch: int
    place: int  # in the epoch's order

    @property
    def title(self) -> str:
        """For people, the same wherever it is pushed and applied."""
        return f"batch {self.place} of epoch {self.epoch}"


class Assignment(msgspec.Struct, frozen=True, array_like=True, order=True, tag="assignment"):
    """Weights that replace those that a shard has, before the update from this batch. Later ones are larger."""

    epoch: int
    place: int  # of the batch, in the epoch's order


Operation = Batch | Assignment


class Tally(msgspec.Struct, frozen=True):
    """A set of places that fills up from 0: everything below a mark, and a few beyond it.

    Batches are dealt in order, so what lies beyond the mark is no more than what is being computed: a tally of a
    million batches is as small as one of ten.
    """

    below: int = 0
    beyond: frozenset[int] = frozenset()

    def __contains__(self, place: int) -> bool:
        return place < self.below or place in self.beyond

    def __len__(self) -> int:
        return self.below + len(self.beyond)

    def plus(self, place: int) -> Tally:
        if place in self:
            return self
        beyond = self.beyond | {place}
        below = self.below
        while below in beyond:
            below += 1
        return Tally(below, frozenset(place for place in beyond if place >= below))

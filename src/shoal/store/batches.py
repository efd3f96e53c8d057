"""Batches by name, and sets of them. Values only."""

from __future__ import annotations

import msgspec

# Places of what is no batch. Weights are pulled under such a name, and nothing is pushed.
END = -1  # of an epoch: the weights with all of its updates
AVERAGES = -2  # what the optimizer makes of the weights after the last update
REST = -3  # the weights in a pause
# Places below these stand for looks at rows of tables, beside training.


class Batch(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A batch of an epoch: the name of the update that is made from it, whoever computes it."""

    epoch: int
    place: int  # in the epoch's order


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

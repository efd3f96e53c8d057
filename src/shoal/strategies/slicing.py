"""How an update is cut into units, who updates which, and where their state lies in shared memory. Pure.

A unit is a run of numbers that an optimizer treats alike and one by one, whichever tensors they belong to: it lies in
one run of the exchange's vector, so its gradient, its weights and what the optimizer keeps for it are one run each.
Who updates a unit does not change a bit of it. So units go to whoever is there, as many as it is fast, and another
may do what a lost one has not done.

What the optimizer keeps lies in places, one for each unit and one to spare for each worker. An update reads a unit's
place and writes to the spare one; then the unit's entry in a table says where it lies and which update it has, in one
word, and the place that it left is the next to spare. Whoever is killed leaves each unit before its update or after
it. So there is never a second copy of everything.

    | table | weights | weights | places ... | spare ones |     weights take turns: nobody writes to those in use

"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import fsum
from typing import NamedTuple

from shoal.collectives.layout import LINE, PAGE, round_up

UNIT = 1 << 18  # elements. Measured: smaller ones cost calls, larger ones leave the cache
SIZES = (UNIT >> 6, UNIT >> 3, UNIT)  # for which there are programs: a smaller unit is filled up with zeros
_ITEM = 4  # bytes of a number: all are float32

_PLACE_BITS = 40
_UPDATES = 1 << 23  # by how many an entry tells updates apart


class VariableSpan(NamedTuple):
    """A variable's elements in the exchange's vector, and which of the optimizer's ways to treat it is used."""

    start: int
    stop: int
    kind: int = 0


class Unit(NamedTuple):
    """Elements of the exchange's vector that are updated together."""

    start: int
    stop: int
    kind: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def room(self) -> int:
        """The elements of the program that updates it."""
        return next(size for size in SIZES if size >= self.size)


def cut_into_units(spans: Sequence[VariableSpan]) -> tuple[Unit, ...]:
    """The units of variables that lie one behind the other. They depend on nothing else: not on who is there."""
    runs: list[VariableSpan] = []
    for span in spans:
        if runs and runs[-1].kind == span.kind:
            runs[-1] = runs[-1]._replace(stop=span.stop)
        else:
            runs.append(span)
    return tuple(
        Unit(start, min(start + UNIT, run.stop), run.kind) for run in runs for start in range(run.start, run.stop, UNIT)
    )


def shares_of_units(units: Sequence[Unit], speeds: Sequence[float]) -> tuple[range, ...]:
    """The run of units that each worker updates, by its speed."""
    done = list(accumulate((unit.room for unit in units), initial=0))
    whole = fsum(speeds)
    reached = accumulate((speed / whole * done[-1] for speed in speeds), initial=0.0)
    # Half of a unit belongs to where most of it lies.
    middles = [(low + high) / 2 for low, high in pairwise(done)]
    bounds = [bisect_left(middles, point) for point in reached]
    bounds[-1] = len(units)
    return tuple(range(low, high) for low, high in pairwise(bounds))


class StateLayout:
    """Where everything lies in the block of memory that the workers of a host share."""

    def __init__(self, units: Sequence[Unit], kept: int, workers: int) -> None:
        """`kept`: how many numbers the optimizer keeps for each weight. `workers`: as many have a spare place."""
        self.units = tuple(units)
        self.kept = kept
        self.workers = workers
        self.length = units[-1].stop if units else 0  # of the weights, in elements
        self.weights = [round_up(8 * len(units), PAGE)]  # offsets, in bytes
        self.weights.append(self.weights[0] + round_up(self.length * _ITEM, PAGE))
        at = self.weights[1] + round_up(self.length * _ITEM, PAGE)
        self.homes: list[int] = []  # the first place of each unit
        for unit in units:
            self.homes.append(at)
            at += self._place_bytes(unit.room)
        self._spare: dict[int, list[int]] = {}
        for room in sorted({unit.room for unit in units}):
            self._spare[room] = [at + n * self._place_bytes(room) for n in range(workers)]
            at += workers * self._place_bytes(room)
        self.nbytes = max(at, PAGE)
        self.state_bytes = at - self.homes[0] if units else 0  # what the optimizer keeps, spare places included

    def spare_places(self, entries: Sequence[int]) -> list[dict[int, int]]:
        """For each worker, the places that it may write to first, by their room: such that no unit lies there."""
        used = {place_of(entry) for entry in entries}
        free: dict[int, list[int]] = {}
        for room, spare in self._spare.items():
            own = [home for unit, home in zip(self.units, self.homes, strict=True) if unit.room == room]
            free[room] = [place for place in (*own, *spare) if place not in used]
        return [{room: places[number] for room, places in free.items()} for number in range(self.workers)]

    def first_entries(self, update: int) -> list[int]:
        """The table of a block in which every unit lies in its first place."""
        return [entry_of(update, home) for home in self.homes]

    def _place_bytes(self, room: int) -> int:
        return max(LINE, round_up(self.kept * room * _ITEM, LINE))  # each its own, also where nothing is kept


def entry_of(update: int, place: int) -> int:
    """That a unit has had so many updates and lies there."""
    return (update % _UPDATES) << _PLACE_BITS | place // LINE


def place_of(entry: int) -> int:
    return (entry & ((1 << _PLACE_BITS) - 1)) * LINE


def has_had(entry: int, update: int) -> bool:
    """Whether a unit has had the update of this number."""
    return entry >> _PLACE_BITS == update % _UPDATES


class BlockStanding(NamedTuple):
    """What a worker knows of the memory that it shares with its neighbours."""

    opened: int  # which of the blocks that there have been; -1: none
    updates: int  # that it has seen committed
    writers: tuple[str, ...] = ()  # who can write to it
    workers: int = 0  # for how many it has spare places


class BlockOrders(NamedTuple):
    """What the workers of a host do before their first update together."""

    giver: int  # the rank that hands its block, or a new one, to the others
    holders: tuple[int, ...]  # have what is valid; the others know nothing
    is_new: bool  # a new block: the holders move everything there
    workers: int  # for how many it has spare places


def block_orders(members: Sequence[str], neighbours: Sequence[int], told: Sequence[BlockStanding]) -> BlockOrders:
    """A block stays while nobody else can write to it: who was lost may only be stopped, and wake up later.

    Of two blocks the later is valid: it was complete before anybody went on with it.
    """
    newest = max(told[rank].opened for rank in neighbours)
    holders = tuple(rank for rank in neighbours if told[rank].opened == newest >= 0)
    if not holders:
        return BlockOrders(neighbours[0], (), True, len(neighbours))
    here = {members[rank] for rank in neighbours}
    first = told[holders[0]]
    if here.issuperset(first.writers) and len(here) <= first.workers:
        return BlockOrders(holders[0], holders, False, first.workers)
    return BlockOrders(holders[0], holders, True, len(neighbours))

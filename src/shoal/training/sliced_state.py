"""Weights, and what the optimizer keeps for them, in memory that all workers of a host share: units come and go.

It outlives each of the workers. What is said in `strategies/slicing.py` about units, places and the table is done here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from shoal.collectives.group import AbstractGroup
from shoal.strategies.schema import Array
from shoal.strategies.slicing import (
    BlockOrders,
    BlockStanding,
    StateLayout,
    Unit,
    block_orders,
    entry_of,
    has_had,
    place_of,
)
from shoal.wire.memory import SharedBlock


class SlicedState:
    """One worker's view of it, from view to view. Belongs to one thread."""

    def __init__(self, units: Sequence[Unit], kept: int) -> None:
        """`kept`: how many numbers the optimizer keeps for each weight."""
        self._units = tuple(units)
        self._kept = kept
        self._standing = BlockStanding(-1, 0)
        self._block: SharedBlock | None = None
        self._layout = StateLayout(units, kept, 1)
        self._table = np.zeros(0, np.int64)
        self._spare: dict[int, int] = {}  # by room: the place to which this worker writes next
        self._group: AbstractGroup | None = None

    @property
    def updates(self) -> int:
        """That have committed."""
        return self._standing.updates

    @property
    def is_open(self) -> bool:
        return self._block is not None

    @property
    def nbytes(self) -> int:
        """Of what the optimizer keeps, of all workers of this host together."""
        return self._layout.state_bytes

    # From view to view ------------------------------------------------------------------------------

    def open(self, group: AbstractGroup) -> bool:
        """Within an act: has the memory that all neighbours of this view share, with the last state in it. Collective.

        Whether it is other memory than before.
        """
        if group is self._group:
            return False
        what = "the optimizer's state"
        told = [
            msgspec.msgpack.decode(value, type=BlockStanding)
            for value in group.gather(f"{what}: who has it", msgspec.msgpack.encode(self._standing))
        ]
        orders = block_orders(group.members, group.neighbours, told)
        layout = StateLayout(self._units, self._kept, orders.workers)
        updates = max(standing.updates for standing in told)
        if orders.is_new:
            block = self._new_block(group, orders, layout, updates)
            entries = layout.first_entries(updates)
        else:
            block = self._same_block(group, orders, layout)
            entries = _table(layout, block).tolist()
        spare = layout.spare_places(entries)[group.neighbours.index(group.rank)]
        # Only now, with everybody's part of it in place, may anybody write to it.
        group.gather(f"{what}: it is in place", b"")
        before, self._block = self._block, block
        if before is not None and before is not block:
            before.close()
        self._group, self._layout, self._table, self._spare = group, layout, _table(layout, block), spare
        writers = tuple(group.members[rank] for rank in group.neighbours)
        opened = max(standing.opened for standing in told) + 1
        self._standing = BlockStanding(opened, updates, writers, layout.workers)
        return before is not block

    def _new_block(self, group: AbstractGroup, orders: BlockOrders, layout: StateLayout, updates: int) -> SharedBlock:
        made = None
        if group.rank == orders.giver:
            made = SharedBlock.create("the optimizer's state", layout.nbytes, peers_write=True)
            if not orders.holders:  # nobody has anything: whoever updates a unit brings what it has
                _table(layout, made)[:] = layout.first_entries(updates)
        block = group.hand_block("the optimizer's state", orders.giver, made, layout.nbytes)
        if group.rank in orders.holders:
            self._move(layout, block, orders.holders.index(group.rank), len(orders.holders))
        return block

    def _same_block(self, group: AbstractGroup, orders: BlockOrders, layout: StateLayout) -> SharedBlock:
        mine = self._block if group.rank in orders.holders else None
        if len(orders.holders) == len(group.neighbours):
            assert mine is not None
            return mine
        given = mine if group.rank == orders.giver else None
        handed = group.hand_block("the optimizer's state", orders.giver, given, layout.nbytes)
        if mine is None or handed is mine:
            return handed
        handed.close()
        return mine

    def close(self) -> None:
        if self._block is not None:
            self._table = np.zeros(0, np.int64)
            self._block.close()
            self._block = None
            self._standing = BlockStanding(-1, self.updates)
            self._group = None

    def _move(self, layout: StateLayout, block: SharedBlock, part: int, parts: int) -> None:
        """This holder's part of all units, to a new block. Somebody who was lost may wake up and write on: what it has
        changed meanwhile is moved again.
        """
        old, table, new = self._layout, self._table, _table(layout, block)
        assert self._block is not None
        before, after = self._weights(old, self._block), self._weights(layout, block)
        for number in range(part, len(self._units), parts):
            unit, home = self._units[number], layout.homes[number]
            entry = None
            while entry != (entry := int(table[number])):
                for source, target in zip(before, after, strict=True):
                    target[unit.start : unit.stop] = source[unit.start : unit.stop]
                there = _kept(self._block, place_of(entry), unit, old.kept)
                for source, target in zip(there, _kept(block, home, unit, old.kept), strict=True):
                    target[:] = source
                done = self.updates + has_had(entry, self.updates + 1)
                new[number] = entry_of(done, home)

    # Units ------------------------------------------------------------------------------------------

    def has_had_update(self, number: int) -> bool:
        """Whether this unit has had the update that is going on, from whoever began it."""
        return has_had(int(self._table[number]), self.updates + 1)

    def weights(self) -> Array:
        """All that have committed, in place."""
        assert self._block is not None
        return self._weights(self._layout, self._block)[self.updates % 2]

    def new_weights(self) -> Array:
        """Where the update that is going on puts them."""
        assert self._block is not None
        return self._weights(self._layout, self._block)[(self.updates + 1) % 2]

    def kept(self, number: int) -> list[Array]:
        """What the optimizer keeps for a unit, in place, with the zeros that fill it up."""
        assert self._block is not None
        return _kept(self._block, place_of(int(self._table[number])), self._units[number], self._kept)

    def next_kept(self, number: int) -> list[Array]:
        """Where the update that is going on is to put it; then call `updated`."""
        assert self._block is not None
        unit = self._units[number]
        return _kept(self._block, self._spare[unit.room], unit, self._kept)

    def updated(self, number: int) -> None:
        """The unit's new weights and what is kept for it are written: from now on they count."""
        room, left = self._units[number].room, place_of(int(self._table[number]))
        self._table[number] = entry_of(self.updates + 1, self._spare[room])
        self._spare[room] = left

    def commit(self) -> None:
        """All units have had the update that was going on."""
        self._standing = self._standing._replace(updates=self.updates + 1)

    @staticmethod
    def _weights(layout: StateLayout, block: SharedBlock) -> list[Array]:
        return [block.array(np.float32, offset, layout.length) for offset in layout.weights]


def _table(layout: StateLayout, block: SharedBlock) -> Array:
    return block.array(np.int64, 0, len(layout.units))


def _kept(block: SharedBlock, place: int, unit: Unit, kept: int) -> list[Array]:
    return [block.array(np.float32, place + number * unit.room * 4, unit.room) for number in range(kept)]

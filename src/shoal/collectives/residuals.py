"""The shell around residual_plan.py: the memory in which residuals lie, handed on as members and shares change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from shoal.collectives import arrays as packed
from shoal.collectives.layout import LINE, PAGE, Array, round_up
from shoal.collectives.messenger import Messenger
from shoal.collectives.residual_plan import (
    NEVER,
    ResidualNote,
    ResidualPlan,
    generation,
    keepers_of,
    plan_residuals,
    writers_of,
)
from shoal.errors import BadFrame
from shoal.wire.memory import SharedBlock, close_all

_DECODER = msgspec.msgpack.Decoder(ResidualNote)


class Residuals:
    """What slots of `sizes` numbers have left out. One per kind of exchange; outlives views.

    `on_lost` is told which slots' residuals are zero because their host was lost. `what` lies there, if it is something
    else that belongs to a slot and must outlive who computes it.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        on_lost: Callable[[Sequence[int]], None] = lambda slots: None,
        what: str = "what a codec left out",
        copies: bool = False,
    ) -> None:
        """`copies`: of what a worker has that is alone on its host, there is one on another."""
        self._what = what
        self._copies = copies
        self.copied = 0  # bytes that this worker has sent so
        self.are_copied = False  # whether somebody's are
        self._starts = np.cumsum([0, *(round_up(size, LINE // 4) for size in sizes)]).tolist()
        self._sizes = tuple(sizes)
        self._stride = round_up(self._starts[-1] * 4, PAGE) or PAGE
        self._blocks: dict[int, SharedBlock] = {}  # by slot
        self._last: dict[int, int] = {}
        self._settled: object = None
        self._on_lost = on_lost

    def begin(self, slot: int) -> tuple[list[Array] | None, list[Array]]:
        """What was left out of a slot before this step, and where to write what is left out in it."""
        stamps = self._stamps(slot)
        read, write = generation(stamps.tolist(), self._last.get(slot))
        stamps[write] = NEVER  # until it is written to its end
        return (None if read is None else self._arrays(slot, read)), self._arrays(slot, write)

    def end(self, slot: int) -> None:
        """It is written."""
        stamps = self._stamps(slot)
        _, write = generation(stamps.tolist(), self._last.get(slot))
        stamps[write] = self._next

    def kept(self, slot: int) -> list[Array] | None:
        """What counts of a slot now, where it lies; None if nothing does. Not for writing."""
        if slot not in self._last or slot not in self._blocks:
            return None
        read, _ = generation(self._stamps(slot).tolist(), self._last[slot])
        return None if read is None else self._arrays(slot, read)

    @property
    def is_empty(self) -> bool:
        """Whether nothing counts of any slot: nobody has written any, or all who had are lost. The same for all."""
        return not self._last

    def missing(self, slots: int) -> list[int]:
        """Of so many slots, after `settle`: those of which nothing is left, though others have something."""
        return [slot for slot in range(slots) if slot not in self._last] if self._last else []

    def stand_in(self, slot: int, arrays: Sequence[Array] | None) -> None:
        """These count as what was lost of a slot; None: on another worker, which computes it. Everyone says so."""
        number = max(self._last.values(), default=0)
        if arrays is not None:
            self._stamps(slot)[:] = NEVER
            for place, array in zip(self._arrays(slot, 0), arrays, strict=True):
                np.copyto(place, array)
            self._stamps(slot)[0] = number
        self._last[slot] = number

    def commit(self, slots: int) -> None:
        """The step counts, in which so many slots were sent. Everyone says so once, also who has missed its end."""
        self.count(range(slots))

    def count(self, slots: Iterable[int]) -> None:
        """What was written of these slots counts. The same."""
        self._last |= dict.fromkeys(slots, self._next)

    def note(self) -> bytes:
        """What this worker has, for `written` and whoever plans."""
        stamps = {slot: tuple(self._stamps(slot).tolist()) for slot in self._blocks}
        return msgspec.msgpack.encode(ResidualNote(self._last, stamps))

    def written(self, notes: Sequence[bytes], rank: int) -> dict[int, list[Array]]:
        """What counts of the slots that this rank writes to a checkpoint, where it lies; from everyone's notes."""
        writers = writers_of([_DECODER.decode(note) for note in notes])
        kept = {slot: self.kept(slot) for slot, writer in writers.items() if writer == rank}
        return {slot: arrays for slot, arrays in kept.items() if arrays is not None}

    def write(self, slot: int, arrays: Sequence[Array]) -> None:
        """After `settle`: what is left out of a slot, from a checkpoint. It counts when `count` has said so."""
        _, places = self.begin(slot)
        for place, array in zip(places, arrays, strict=True):
            np.copyto(place, array)
        self.end(slot)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of a slot's arrays."""
        return self._sizes

    @property
    def _next(self) -> int:
        """The number of the step that goes on, the same for all: they know of the same steps that counted."""
        return 1 + max(self._last.values(), default=0)

    def settle(
        self, meeting: Messenger | None, hosts: Sequence[Sequence[int]], shares: tuple[range, ...], mark: object
    ) -> None:
        """Before a step among these members with these shares: everyone who needs a residual has it. Collective.

        `mark` tells apart groups of members; nothing is said while it and the shares stay what they are.
        """
        if self._settled == (mark, shares):
            return
        said = [self.note()]
        if meeting is not None:
            said = meeting.hold(f"{self._what}: who has it", self.note())
        notes = [_DECODER.decode(note) for note in said]
        plan = plan_residuals(notes, hosts, shares, keepers_of(hosts, shares) if self._copies else None)
        me = meeting.rank if meeting is not None else 0
        for slot in plan.made.get(me, ()):
            self._blocks[slot] = self._make()
        if meeting is not None:
            neighbours = next(ranks for ranks in hosts if me in ranks)
            self._hand(meeting, neighbours, plan)
            self._move(meeting, plan)
        self._last = plan.last
        self._settled = (mark, shares)
        if plan.lost:
            self._on_lost(plan.lost)

    def copy(self, meeting: Messenger | None, hosts: Sequence[Sequence[int]], shares: tuple[range, ...]) -> None:
        """After `end`, in a step that all have come to: what was written goes to those who have copies. Collective."""
        if meeting is None or not self._copies:
            return
        holders = {slot: rank for rank, share in enumerate(shares) for slot in share}
        sends: dict[int, list[memoryview]] = {}
        receives: dict[int, list[memoryview]] = {}
        mine: list[int] = []
        keepers = keepers_of(hosts, shares)
        self.are_copied = bool(keepers)
        for slot, keeper in sorted(keepers.items()):
            if meeting.rank == holders[slot]:
                _, write = generation(self._stamps(slot).tolist(), self._last.get(slot))
                sends.setdefault(keeper, []).extend(map(packed.view, self._arrays(slot, write)))
                self.copied += sum(self._sizes) * 4
            elif meeting.rank == keeper:
                mine.append(slot)
                receives.setdefault(holders[slot], []).extend(map(packed.view, self.begin(slot)[1]))
        if sends or receives:
            meeting.ship(f"{self._what}: copies", sends, receives)
        for slot in mine:
            self.end(slot)

    def close(self) -> None:
        for block in self._blocks.values():
            block.close()
        self._blocks.clear()

    # Memory -----------------------------------------------------------------------------------------

    def _make(self) -> SharedBlock:
        block = SharedBlock.create(self._what, PAGE + 2 * self._stride, peers_write=True)
        block.array(np.int64, 0, 2)[:] = NEVER
        return block

    def _stamps(self, slot: int) -> Array:
        return self._blocks[slot].array(np.int64, 0, 2)

    def _arrays(self, slot: int, number: int) -> list[Array]:
        offset = PAGE + number * self._stride
        return [
            self._blocks[slot].array(np.float32, offset + start * 4, size)
            for start, size in zip(self._starts, self._sizes, strict=False)
        ]

    def _hand(self, meeting: Messenger, neighbours: Sequence[int], plan: ResidualPlan) -> None:
        if not any(plan.given.get(rank) for rank in neighbours):
            return
        fds = [self._blocks[slot].fd for slot in plan.given.get(meeting.rank, ())]
        expected = {rank: len(plan.given.get(rank, ())) for rank in neighbours if rank != meeting.rank}
        handed = meeting.hand(f"{self._what}: handing it on", fds, expected)
        try:
            for rank, theirs in handed.items():
                for slot in plan.given.get(rank, ()):
                    fd = theirs.pop(0)
                    if slot in self._blocks:
                        close_all([fd])
                    else:
                        self._blocks[slot] = SharedBlock.open(fd, PAGE + 2 * self._stride, writable=True)
        finally:
            for fds in handed.values():
                close_all(fds)

    def _move(self, meeting: Messenger, plan: ResidualPlan) -> None:
        """Residuals whose slots are computed on another host from now on."""
        me = meeting.rank
        sends: dict[int, list[memoryview]] = {}
        receives: dict[int, list[memoryview]] = {}
        for slot, source, holder in plan.moves:
            if source == me:
                read, _ = generation(self._stamps(slot).tolist(), plan.last[slot])
                if read is None or self._stamps(slot)[read] != plan.last[slot]:
                    raise BadFrame(f"{self._what} of slot {slot} is not where {meeting.members[me]} said it was")
                sends.setdefault(holder, []).extend(map(packed.view, self._arrays(slot, read)))
            if holder == me:
                self._stamps(slot)[:] = NEVER
                receives.setdefault(source, []).extend(map(packed.view, self._arrays(slot, 0)))
        if sends or receives:
            meeting.ship(f"{self._what}: moving it", sends, receives)
        for slot, _, holder in plan.moves:
            if holder == me:
                self._stamps(slot)[0] = plan.last[slot]

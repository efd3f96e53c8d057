"""Checkpoints of what servers hold: a worker has every primary write its shards, and collects what became of it.

worker ──Save──▶ primary ──Copied──▶ worker      updates may change the shards again
                 primary ──Saved───▶ worker      what it wrote is on disk
                 primary ──NotSaved▶ worker      it is not, and why

Whoever asks sees to it that nothing is pushed before all have copied: in a pause of the director's, or between two
steps of synchronous training. What is written, and where, is nobody's business here: `what` goes from hook to hook.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.store.decisions.placement import Placement, ShardView
from shoal.store.decisions.replica import Replica
from shoal.store.decisions.requests import AbstractRequest, Ask
from shoal.store.values.tensors import Tensors
from shoal.wire.messages import Message


class Save(Message, frozen=True):
    """Worker -> primary: write these shards as they are now. Sent again, it is answered again and done once."""

    number: int  # of the question, among all that this worker asks
    view: int  # in which the primary leads these shards
    shards: tuple[int, ...]
    place: int  # of this part, among all that belong together
    what: bytes


class Copied(Message, frozen=True):
    """Primary -> worker: the shards may change again."""

    number: int


class ShardSaved(Message, frozen=True):
    """Primary -> worker: it is on disk, and this is what there is to tell of it."""

    number: int
    told: bytes


class NotSaved(Message, frozen=True):
    """Primary -> worker: it was not written. In a later view another may do it, or this one, if it was `stale`."""

    number: int
    why: str
    stale: bool = False


Answer = Copied | ShardSaved | NotSaved


# The worker's side --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Asked:
    server: str
    save: Save
    is_copied: bool = False
    told: bytes | None = None


class Gathering(AbstractRequest):
    """What all primaries write of one checkpoint. Pure.

    It fails when a shard was lost since it began, or a server that has copied is lost before it has written. A shard
    that is not copied yet is asked for again, of its primary in the next view.
    """

    def __init__(self, what: bytes, first: int, numbers: Iterator[int]) -> None:
        """`first`: the place of the first part."""
        self._what = what
        self._places = itertools.count(first)
        self._numbers = numbers
        self._asked: dict[int, _Asked] = {}
        self._views: Sequence[ShardView] = ()
        self._origin = 0  # the view in which it began
        self.why = ""  # it has failed

    @property
    def is_copied(self) -> bool:
        """Whether every shard may change again."""
        return bool(self._views) and not self._uncopied()

    @property
    def told(self) -> list[bytes] | None:
        """What the servers have told, when all have; then it is done."""
        told = [asked.told for asked in self._asked.values() if asked.told is not None]
        return told if self.is_copied and len(told) == len(self._asked) else None

    @property
    def is_over(self) -> bool:
        return bool(self.why) or self.told is not None

    def take_view(self, placement: Placement) -> list[Ask]:
        views, servers = placement.views, placement.servers
        if self.is_over or (self._views and placement.number <= self._views[0].number):
            return []
        self._views, self._origin = views, self._origin or views[0].number
        for view in views:
            if view.origin > self._origin:
                self.fail(f"shard {view.shard} was lost")
        for asked in self._asked.values():
            if asked.is_copied and asked.told is None and asked.server not in servers:
                self.fail(f"{asked.server} was lost while it wrote")
        self._asked = {number: asked for number, asked in self._asked.items() if asked.is_copied}
        return [] if self.why else self._ask()

    def reconnected(self, server: str) -> list[Ask]:
        if self.is_over:
            return []
        open = (asked for asked in self._asked.values() if asked.told is None and asked.server == server)
        return [Ask(server, asked.save) for asked in open]

    def hear(self, answer: Message, beside: Sequence[Any] = ()) -> list[Ask]:
        asked = self._asked.get(answer.number) if isinstance(answer, Answer) else None
        if asked is not None:
            match answer:
                case Copied():
                    asked.is_copied = True
                case ShardSaved(told=told):
                    asked.is_copied, asked.told = True, told
                case NotSaved(why=why, stale=stale) if not stale or asked.is_copied:
                    self.fail(f"{asked.server}: {why}")
        return []

    def outlasts_loss(self) -> bool:
        """It has failed then, and whoever began it is to hear it."""
        self.fail("this worker was taken for lost")
        return True

    def fail(self, why: str) -> None:
        if not self.is_over:
            self.why = why

    def _uncopied(self) -> set[int]:
        copied = (shard for asked in self._asked.values() if asked.is_copied for shard in asked.save.shards)
        return {view.shard for view in self._views} - set(copied)

    def _ask(self) -> list[Ask]:
        by_primary: dict[str, list[int]] = {}
        for shard in sorted(self._uncopied()):
            if (primary := self._views[shard].primary) is not None:
                by_primary.setdefault(primary, []).append(shard)
        view = self._views[0].number
        asks = []
        for primary, shards in by_primary.items():
            save = Save(next(self._numbers), view, tuple(shards), next(self._places), self._what)
            self._asked[save.number] = _Asked(primary, save)
            asks.append(Ask(primary, save))
        return asks


# The server's side --------------------------------------------------------------------------------------


class ShardWriter(Protocol):
    """Writes shards to disk. Its methods are for one thread, and do not wait for the disk."""

    def copy(self, shards: Mapping[int, Tensors], place: int, what: bytes) -> str:
        """Copies what is to be written, and begins to write it. What is wrong, if it can't."""

    def poll(self) -> bytes | str | None:
        """What there is to tell of what was written, or what went wrong (a str); None as long as that is open."""


def is_early(save: Save, replicas: Sequence[Replica]) -> bool:
    """Whether it speaks of a view that this server has not heard of yet."""
    return any(replicas[shard].view < save.view for shard in save.shards)


def refusal(save: Save, replicas: Sequence[Replica], lacking: Collection[int]) -> NotSaved | None:
    """Why these shards can't be written as they are; None: they can."""
    for shard in save.shards:
        replica = replicas[shard]
        if replica.view > save.view or not replica.is_primary:
            return NotSaved(save.number, f"shard {shard} is in view {replica.view}, not {save.view}", stale=True)
        if shard in lacking:
            return NotSaved(save.number, f"shard {shard} was lost")
    return None


class SaveQueue:
    """What a server was asked to write."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        of: Callable[[int], Tensors],
        shard_writer: ShardWriter | None,
        post: Callable[[str, Message], None],
    ) -> None:
        self._replicas = replicas
        self._of = of
        self._shard_writer = shard_writer
        self._post = post
        self._waiting: list[tuple[str, Save]] = []
        self._writing: tuple[str, int] | None = None  # who has asked, and its question's number
        self._last: tuple[str, Answer] | None = None

    @property
    def is_writing(self) -> bool:
        """Whether somebody waits to hear what becomes of what was copied."""
        return self._writing is not None

    def hear(self, peer: str, save: Save) -> None:
        if self._writing == (peer, save.number):
            self._post(peer, Copied(save.number))
        elif self._last is not None and (self._last[0], self._last[1].number) == (peer, save.number):
            self._post(*self._last)
        elif (peer, save) not in self._waiting:
            self._waiting.append((peer, save))

    def look(self, lacking: Collection[int]) -> None:
        """Does what can be done by now. `lacking`: shards that this server leads and does not have."""
        for peer, save in list(self._waiting):
            if not is_early(save, self._replicas):
                self._waiting.remove((peer, save))
                self._post(peer, refusal(save, self._replicas, lacking) or self._begin(peer, save))
        if self._writing is None or self._shard_writer is None or (told := self._shard_writer.poll()) is None:
            return
        peer, number = self._writing
        self._writing = None
        self._last = (peer, ShardSaved(number, told) if isinstance(told, bytes) else NotSaved(number, told))
        self._post(*self._last)

    def _begin(self, peer: str, save: Save) -> Answer:
        if self._shard_writer is None or self._writing is not None:
            return NotSaved(save.number, "it still writes what it was asked for before")
        why = self._shard_writer.copy({shard: self._of(shard) for shard in save.shards}, save.place, save.what)
        if why:
            return NotSaved(save.number, why)
        self._writing = (peer, save.number)
        return Copied(save.number)

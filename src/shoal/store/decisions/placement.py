"""Which server holds which shard, and in which role, view after view. Pure.

    primary     orders the shard's updates, answers workers
    backup      has everything that was ever acknowledged; may be promoted
    newcomer    is being brought up by the primary, while training goes on; a backup once it has caught up

Only a backup is promoted, never a stranger: that keeps every acknowledged update. If primary and backups of a shard are
lost together, its state is read from the last checkpoint, in a view that is called the shard's origin from then on.
The first view is an origin too: there the state is the model's own, and every other replica a newcomer.

Replicas move only when it pays: to make up for a lost one, or when a server with much could give to one with little so
that the largest load falls by a tenth of the average. A move is a newcomer too many; once it has caught up, the replica
on the fullest of the servers is dropped.

A host may be lost with all of its servers. So the copies of a shard are on as many hosts as there can be: whoever gets
a copy is on a host without one, if there is such a host, no move brings two copies together, and when a host comes a
copy moves there from a host that has two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from shoal.errors import UsageError

Load = Callable[[str], int]  # of a server, in bytes

PAYS = 0.1  # a move must lower the largest load by so much of the average


class ShardView(msgspec.Struct, frozen=True):
    """Who holds a shard in a view, and as what."""

    number: int  # the view's
    shard: int
    primary: str | None  # None: there is no server at all
    backups: tuple[str, ...]
    newcomers: tuple[str, ...]
    origin: int  # the view in which the shard's state was last read from a checkpoint, or from the model

    @property
    def holders(self) -> tuple[str, ...]:
        """Everyone who has the shard, or is getting it. The primary is the first."""
        return (*(() if self.primary is None else (self.primary,)), *self.backups, *self.newcomers)


class Setback(msgspec.Struct, frozen=True):
    """All up-to-date replicas of a shard were lost: it goes back to its last checkpoint."""

    shard: int
    lost: tuple[str, ...]


class Placement(msgspec.Struct, frozen=True):
    """The shards' replicas in one view. A value: the next view's is made from it."""

    number: int
    servers: tuple[str, ...]
    replicas: int
    sizes: tuple[int, ...]  # of the shards, in bytes
    views: tuple[ShardView, ...]
    began: int = 0  # the training's first view: what has a later origin was lost since then
    hosts: dict[str, str] = {}  # of the servers; one that is not named is on a host of its own

    @classmethod
    def first(
        cls,
        number: int,
        servers: Sequence[str],
        replicas: int,
        sizes: Sequence[int],
        left: Iterable[ShardView] = (),
        hosts: Mapping[str, str] = MappingProxyType({}),
    ) -> Placement:
        """Spread shards of these sizes over the servers, balanced by bytes. `left`: those that have a place already."""
        if not servers:
            raise UsageError(
                "parameter servers are needed, and this run has none. Start some with `shoal run --servers 1 ...`, "
                "or use AllReduce, which needs none."
            )
        if not 1 <= replicas <= len(servers):
            raise UsageError(
                f"{replicas} replicas of every shard can't be kept on {_servers(len(servers))}: each needs a server of "
                f"its own. Use --replicas {len(servers)} or fewer, but at least 1, or start more servers."
            )
        if not sizes:
            raise UsageError("there are no shards to place")
        views = {shard: ShardView(number, shard, None, (), (), number) for shard in range(len(sizes))}
        views |= {view.shard: view for view in left}
        drawn = cls(number, tuple(servers), replicas, tuple(sizes), tuple(views.values()), began=number)
        return drawn.next(number, servers, hosts)

    def next(self, number: int, servers: Sequence[str], hosts: Mapping[str, str] | None = None) -> Placement:
        """The placement in the view of this number, with these servers. Servers that are gone lose their replicas.

        `hosts`: of the servers; None: as they were.
        """
        given = self.hosts if hosts is None else {id: hosts[id] for id in servers if id in hosts}
        draft = _Draft(self, number, servers, given)
        draft.promote()
        draft.drop_surplus()
        draft.go_back()
        draft.fill()
        if servers and not draft.is_bringing():
            draft.spread()
        if servers and not draft.is_bringing():
            draft.hand_over()
            draft.move()
        views = tuple(draft.views)
        return msgspec.structs.replace(self, number=number, servers=tuple(servers), views=views, hosts=dict(given))

    def renewed(self, shards: Collection[int]) -> Placement:
        """These shards stay where they are, but from this view on their state is another: the primary is told it."""
        views = [
            msgspec.structs.replace(view, origin=self.number, backups=(), newcomers=(*view.backups, *view.newcomers))
            if view.shard in shards
            else view
            for view in self.views
        ]
        return msgspec.structs.replace(self, views=tuple(views))

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to improve with these servers. If something is, another view is due.

        As long as there are newcomers it can wait: a new view would make them begin anew.
        """
        return any(view.newcomers for view in self.views) or self.next(self.number, self.servers).views == self.views

    def keeps(self, view: int) -> bool:
        """Whether no shard has gone back to a checkpoint since this view."""
        return all(shard.origin <= view for shard in self.views)

    def together(self, hosts: int) -> list[int]:
        """The shards whose up-to-date copies are on fewer hosts than this, although they have as many copies."""
        found = []
        for view in self.views:
            copies = view.holders[: 1 + len(view.backups)] if view.primary is not None else ()
            if len({self.hosts.get(id, id) for id in copies}) < min(len(copies), hosts):
                found.append(view.shard)
        return found

    def caught_up(self, number: int, shard: int, server: str) -> Placement:
        """A newcomer has everything, and nothing is acknowledged without it any more: it may be promoted."""
        view = self.views[shard]
        if number != self.number or server not in view.newcomers:
            return self
        newcomers = tuple(other for other in view.newcomers if other != server)
        changed = msgspec.structs.replace(view, backups=(*view.backups, server), newcomers=newcomers)
        return msgspec.structs.replace(self, views=(*self.views[:shard], changed, *self.views[shard + 1 :]))


def setbacks(before: Iterable[ShardView], after: Placement) -> tuple[Setback, ...]:
    """The shards of these that go back to a checkpoint in the view that follows."""
    return tuple(
        Setback(old.shard, tuple(id for id in (old.primary, *old.backups) if id is not None))
        for old in before
        if after.views[old.shard].origin != old.origin
    )


class _Draft:
    """The next view while it is being made."""

    def __init__(self, before: Placement, number: int, servers: Sequence[str], hosts: Mapping[str, str]) -> None:
        self._number = number
        self._host = {id: hosts.get(id, id) for id in servers}
        self._servers = servers
        self._replicas = min(before.replicas, len(servers))
        self._sizes = before.sizes
        here = set(servers)
        self.views = [
            msgspec.structs.replace(
                view,
                number=number,
                primary=view.primary if view.primary in here else None,
                backups=tuple(id for id in view.backups if id in here),
                newcomers=tuple(id for id in view.newcomers if id in here),
            )
            for view in before.views
        ]
        # The largest first, so that the small ones even out what is left.
        self._largest_first = sorted(range(len(self._sizes)), key=lambda shard: -self._sizes[shard])

    def is_bringing(self) -> bool:
        return any(view.newcomers for view in self.views)

    def promote(self) -> None:
        for shard in self._largest_first:
            view = self.views[shard]
            if view.primary is None and view.backups:
                self._lead(shard, self._emptiest(view.backups, self._leads))

    def drop_surplus(self) -> None:
        """Ends the moves whose newcomer has caught up."""
        for shard in self._largest_first:
            view = self.views[shard]
            if 1 + len(view.backups) > self._replicas and view.primary is not None:
                # One without which the others are on as many hosts; the primary only if it must be.
                fullest = max(
                    (*view.backups, view.primary), key=lambda id: (self._hosts_without(view, id), self._holds(id))
                )
                if fullest == view.primary:
                    self._lead(shard, self._emptiest(view.backups, self._leads))
                self._change(shard, backups=tuple(id for id in self.views[shard].backups if id != fullest))

    def go_back(self) -> None:
        for shard in self._largest_first:
            if self.views[shard].primary is None and self._servers:
                # A newcomer may have more than nothing: what a training before has left.
                able = self.views[shard].newcomers or self._servers
                self._change(shard, origin=self._number, newcomers=())
                self._change(shard, primary=self._emptiest(able, self._leads))

    def fill(self) -> None:
        for shard in self._largest_first:
            while 0 < len(self.views[shard].holders) < self._replicas:
                others = [id for id in self._servers if id not in self.views[shard].holders]
                self._bring(shard, self._emptiest(self._apart(shard) or others, self._holds))

    def spread(self) -> None:
        """Brings newcomers to other hosts, where copies are together. A later view drops one of those."""
        for shard in self._largest_first:
            view = self.views[shard]
            if len({self._host[id] for id in view.holders}) < len(view.holders) and (free := self._apart(shard)):
                self._bring(shard, self._emptiest(free, self._holds))

    def hand_over(self) -> None:
        """Lets backups lead where that evens out the work of the primaries.

        The primary before may be a few updates behind by then, and get the whole state: so not without need.
        """

        def able(giver: str, taker: str) -> list[int]:
            return [
                view.shard
                for view in self.views
                if view.primary == giver and taker in view.backups and self._pays(view.shard, giver, taker, self._leads)
            ]

        while (found := self._first_pair(self._leads, able)) is not None:
            shard, _, taker = found
            self._lead(shard, taker)

    def move(self) -> None:
        """Brings newcomers to servers that hold too little. A later view drops the shard where there is most."""
        given = dict.fromkeys(self._servers, 0)

        def load(id: str) -> int:
            return self._holds(id) - given[id]

        def able(giver: str, taker: str) -> list[int]:
            return [
                view.shard
                for view in self.views
                if giver in view.holders
                and taker not in view.holders
                and not view.newcomers
                and self._stays_apart(view, giver, taker)
                and self._pays(view.shard, giver, taker, load)
            ]

        while (found := self._first_pair(load, able)) is not None:
            shard, giver, taker = found
            self._bring(shard, taker)
            given[giver] += self._sizes[shard]

    # What the steps are made of ---------------------------------------------------------------------

    def _holds(self, id: str) -> int:
        """Bytes of all shards on this server."""
        return sum(self._sizes[view.shard] for view in self.views if id in view.holders)

    def _leads(self, id: str) -> int:
        """Bytes of the shards whose primary it is."""
        return sum(self._sizes[view.shard] for view in self.views if id == view.primary)

    def _emptiest(self, ids: Sequence[str], load: Load) -> str:
        return min(ids, key=lambda id: (load(id), self._holds(id), self._servers.index(id)))

    def _apart(self, shard: int) -> list[str]:
        """The servers on hosts without a copy of this shard."""
        taken = {self._host[id] for id in self.views[shard].holders}
        return [id for id in self._servers if self._host[id] not in taken]

    def _hosts_without(self, view: ShardView, id: str) -> int:
        """How many hosts have an up-to-date copy, if this one has none."""
        return len({self._host[other] for other in view.holders if other != id and other not in view.newcomers})

    def _stays_apart(self, view: ShardView, giver: str, taker: str) -> bool:
        """Whether the copies are on as many hosts when this one has given its own to that one."""
        after = {self._host[id] for id in (*view.holders, taker) if id != giver}
        return len(after) >= len({self._host[id] for id in view.holders})

    def _first_pair(self, load: Load, able: Callable[[str, str], list[int]]) -> tuple[int, str, str] | None:
        """The largest shard that the server with most can give to the one with least; else to the next, and so on.

        Where hosts differ, the one with most may have nothing that the one with least may have.
        """
        for giver, taker in self._pairs(load):
            if shards := able(giver, taker):
                return max(shards, key=self._sizes.__getitem__), giver, taker
        return None

    def _pairs(self, load: Load) -> Iterator[tuple[str, str]]:
        givers = sorted(self._servers, key=load, reverse=True)  # of equals, the first comes first
        for giver in givers:
            yield from ((giver, taker) for taker in sorted(self._servers, key=load) if load(taker) < load(giver))

    def _pays(self, shard: int, giver: str, taker: str, load: Load) -> bool:
        size = self._sizes[shard]
        fall = load(giver) - max(load(giver) - size, load(taker) + size)
        return fall > PAYS * sum(map(load, self._servers)) / len(self._servers)

    def _lead(self, shard: int, id: str) -> None:
        """Make a backup the primary. The primary before, if it is there, becomes a backup."""
        view = self.views[shard]
        before = () if view.primary is None else (view.primary,)
        self._change(shard, primary=id, backups=(*before, *(other for other in view.backups if other != id)))

    def _bring(self, shard: int, id: str) -> None:
        self._change(shard, newcomers=(*self.views[shard].newcomers, id))

    def _change(self, shard: int, **fields: object) -> None:
        self.views[shard] = msgspec.structs.replace(self.views[shard], **fields)


def _servers(count: int) -> str:
    return f"{count} server{'' if count == 1 else 's'}"

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
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

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

    @classmethod
    def first(
        cls,
        number: int,
        servers: Sequence[str],
        replicas: int,
        sizes: Sequence[int],
        left: Iterable[ShardView] = (),
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
        return drawn.next(number, servers)

    def next(self, number: int, servers: Sequence[str]) -> Placement:
        """The placement in the view of this number, with these servers. Servers that are gone lose their replicas."""
        draft = _Draft(self, number, servers)
        draft.promote()
        draft.drop_surplus()
        draft.go_back()
        draft.fill()
        if servers and not draft.is_bringing():
            draft.hand_over()
            draft.move()
        return msgspec.structs.replace(self, number=number, servers=tuple(servers), views=tuple(draft.views))

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

    def __init__(self, before: Placement, number: int, servers: Sequence[str]) -> None:
        self._number = number
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
                fullest = max((*view.backups, view.primary), key=self._holds)  # the primary only if it must be
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
                self._bring(shard, self._emptiest(others, self._holds))

    def hand_over(self) -> None:
        """Lets backups lead where that evens out the work of the primaries.

        The primary before may be a few updates behind by then, and get the whole state: so not without need.
        """
        while True:
            giver, taker = self._extremes(self._leads)
            able = [
                view.shard
                for view in self.views
                if view.primary == giver and taker in view.backups and self._pays(view.shard, giver, taker, self._leads)
            ]
            if not able:
                return
            self._lead(max(able, key=self._sizes.__getitem__), taker)

    def move(self) -> None:
        """Brings newcomers to servers that hold too little. A later view drops the shard where there is most."""
        given = dict.fromkeys(self._servers, 0)

        def load(id: str) -> int:
            return self._holds(id) - given[id]

        while True:
            giver, taker = self._extremes(load)
            able = [
                view.shard
                for view in self.views
                if giver in view.holders
                and taker not in view.holders
                and not view.newcomers
                and self._pays(view.shard, giver, taker, load)
            ]
            if not able:
                return
            shard = max(able, key=self._sizes.__getitem__)
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

    def _extremes(self, load: Load) -> tuple[str, str]:
        """The servers with most and with least."""
        return max(self._servers, key=load), min(self._servers, key=load)

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

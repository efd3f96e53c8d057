"""Who was expected, who is there, and over which link each is heard. No decisions, only questions."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.membership.member_state import MemberState
from shoal.cluster.membership_record import MembershipRecord
from shoal.cluster.view import Member, View, role_of
from shoal.config import RunConfig


class Roster:
    """The members of a run. Who was once expected stays in it, lost or not."""

    def __init__(self, members: dict[str, MemberState]) -> None:
        self.members = members
        self._ids: dict[int, str] = {}  # link -> member
        self._servers = [id for id in members if role_of(id) == "server"]

    @classmethod
    def expected(cls, config: RunConfig, now: float) -> Roster:
        """Of a run that begins."""
        servers = config.servers.count if config.servers is not None else 0
        ids = (*(f"worker-{n}" for n in range(config.workers)), *(f"server-{n}" for n in range(servers)))
        return cls({id: MemberState(heard=now) for id in ids})

    @classmethod
    def recorded(cls, record: MembershipRecord, now: float) -> Roster:
        """Of a run whose coordinator has died: all have yet to join again."""
        roster = cls({id: MemberState(heard=now, left=id in record.lost) for id in record.members})
        for member in (*record.view.workers, *record.servers):
            state = roster.members[member.id]
            state.member, state.worked = member, now
        return roster

    def __len__(self) -> int:
        return len(self.members)

    def expect(self, id: str, now: float) -> None:
        """This one was started: it will join."""
        if id not in self.members:
            self.members[id] = MemberState(heard=now)
            self._servers += [id] if role_of(id) == "server" else []

    def seat(self, link: int, member: Member, now: float) -> MemberState:
        """It has joined, over this link."""
        self._ids[link] = member.id
        state = self.members[member.id]
        state.member, state.link, state.heard, state.worked = member, link, now, now
        return state

    def hang_up(self, link: int) -> str | None:
        """The link has closed. Whose it was."""
        id = self._ids.pop(link, None)
        if id is not None:
            self.members[id].link = None
        return id

    # Links --------------------------------------------------------------------------------------------

    def id_at(self, link: int) -> str | None:
        """Who has joined over it."""
        return self._ids.get(link)

    def link_of(self, id: str) -> int | None:
        """Over which a member is heard, if it is."""
        state = self.members.get(id)
        return state.link if state is not None else None

    def links(self) -> tuple[int, ...]:
        """Of everyone who can be told something."""
        return tuple(state.link for state in self.members.values() if state.link is not None)

    def links_of(self, ids: Sequence[str]) -> tuple[int, ...]:
        """Of these, as far as they can be told something."""
        return tuple(link for id in ids if (link := self.link_of(id)) is not None)

    def links_outside(self, view: View | None) -> tuple[int, ...]:
        """Of those who came late and are not in the view yet."""
        return self.links_of([id for id in self.members if view is None or not view.has(id)])

    # Who is what --------------------------------------------------------------------------------------

    def workers(self) -> list[str]:
        return [id for id in self.members if role_of(id) == "worker"]

    def servers(self) -> dict[str, Member]:
        """Those who are there."""
        held = ((id, self.members[id]) for id in self._servers)
        return {id: state.member for id, state in held if state.member is not None and state.counts}

    def expected_servers(self) -> int:
        """How many are there, or may be soon."""
        return sum(self.members[id].counts for id in self._servers)

    def takes_part(self, id: str, view: View | None) -> bool:
        """Whether somebody may wait for this one: it is in the view, or serves those who are."""
        return view is not None and (view.has(id) or id in self.servers())

    def needed(self, most: int) -> list[tuple[str, MemberState]]:
        """Those without whom the first view can't be: servers, and workers other than standbys."""
        coming = [(id, state) for id, state in self.members.items() if state.counts]
        workers = [(id, state) for id, state in coming if role_of(id) == "worker"]
        return [*workers[:most], *((id, state) for id, state in coming if role_of(id) == "server")]

    def of_view(self, view: View) -> dict[str, MemberState]:
        """The view's workers of whom something may still be expected."""
        states = {member.id: self.members[member.id] for member in view.workers}
        return {id: state for id, state in states.items() if state.counts}

    def silent_for(self, seconds: float, now: float) -> tuple[Member, ...]:
        """Those who are there and have said nothing for longer than that."""
        return tuple(
            state.member
            for state in self.members.values()
            if state.member and state.counts and now - state.heard > seconds
        )

    def done(self) -> tuple[str, ...]:
        """Whose script has finished."""
        return tuple(id for id, state in self.members.items() if state.done)

    def unfinished(self) -> tuple[str, ...]:
        """Whose end does not matter any more: they were lost, left, or came too late to take part."""
        return tuple(id for id, state in self.members.items() if not (state.done and state.counts))

    def uncounted(self) -> tuple[str, ...]:
        """Who was lost, or has left."""
        return tuple(id for id, state in self.members.items() if not state.counts)

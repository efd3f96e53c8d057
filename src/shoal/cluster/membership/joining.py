"""Who may join a run, and who of those that wait could be let in. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.cluster.membership.member_state import MemberState
from shoal.cluster.membership.requests import GUESTS
from shoal.cluster.messages import Candidate, Candidates, Join, RefusalReason, Refuse
from shoal.cluster.trouble import Absent
from shoal.cluster.view import View, number_of


def objection(
    join: Join, members: Mapping[str, MemberState], reference: Join | None
) -> tuple[Refuse | None, Join | None]:
    """Why this one may not join, if there is a reason; and whom all must be like: the first that came."""
    id = join.member.id
    state = members.get(id)
    if state is None:
        return Refuse(RefusalReason.UNKNOWN_MEMBER, f"{id} is not one of {', '.join(members)}"), reference
    known = state.member in (None, join.member)
    if known and not state.counts and not isinstance(state.trouble, Absent):
        text = state.trouble.sentence(id) if state.trouble else f"{id} had left, or was lost"
        return Refuse(RefusalReason.OUTSIDE, text), reference
    if state.member == join.member and state.link is None:
        return None, reference  # it knew the coordinator that died
    if state.member is not None:
        return Refuse(RefusalReason.TAKEN, f"{id} has already joined, with pid {state.member.pid}"), reference
    reference = reference or join
    differences = join.identity.differences(id, reference.identity, reference.member.id)
    return Refuse(RefusalReason.UNLIKE, "; ".join(differences)) if differences else None, reference


def candidates(members: Mapping[str, MemberState], view: View, most: int) -> tuple[Candidate, ...]:
    """Whom the members of this view could let in, of a run that wants so many workers."""
    ready = tuple(
        Candidate(id, state.ready) for id, state in members.items() if state.ready is not None and state.counts
    )
    if not ready:
        return ()
    # Guests come on top of the workers that were asked for.
    guests = sum(number_of(id) >= GUESTS and state.counts for id, state in members.items() if state.member)
    free = max(0, most + guests - len(view.workers))
    return ready[:free]


class Offers:
    """Whom the members could let in, as they were last told."""

    def __init__(self) -> None:
        self.made: tuple[Candidate, ...] = ()

    def renew(self, members: Mapping[str, MemberState], view: View, most: int) -> Candidates | None:
        """What to tell them, if that has changed."""
        before, self.made = self.made, candidates(members, view, most)
        return Candidates(self.made) if self.made != before else None

"""Where the members of a new view stand, and what each needs before they go on together. Pure.

What the members do together they do in one order, the same for all: each such act is counted when it has committed. No
act commits anywhere before every member has come to it, so members that were torn out of one are at most one apart:
some have its result, the others have not.

    acts    2 2 2     all are at the same point: go on
    acts    3 2 3     the first with 3 gives the result of the third act to the second member
    acts    3 3 –     the last came late: who stands between two steps gives it everything
    acts    2 2 –     nobody stands between two steps: the newcomer has to wait for another view
    acts    – –       all who knew are lost: they go on from what those have left, if they have left something

Nothing is rolled back: whatever has committed anywhere stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.errors import Diverged


class WorkerStanding(msgspec.Struct, frozen=True, array_like=True):
    """What a member says first in a new view."""

    acts: int | None = None  # that have committed; None: it has just come and knows nothing
    between_steps: bool = False  # it can tell a newcomer everything
    has_found: bool = False  # what others have left for this moment, at which all who come late arrive


class Orders(msgspec.Struct, frozen=True):
    """What follows from everyone's standing, by rank; the same for all who read them."""

    giver: int
    behind: frozenset[int] = frozenset()  # get the result of the giver's last act
    newcomers: frozenset[int] = frozenset()  # get the giver's whole state
    declined: frozenset[int] = frozenset()  # came at a moment when nobody can tell them anything
    anew: bool = False  # all go on from what they have found


def resync(members: Sequence[str], standings: Sequence[WorkerStanding]) -> Orders:
    """Who gives what to whom. Diverged if members are further apart than a loss can tear them."""
    known = {rank: standing.acts for rank, standing in enumerate(standings) if standing.acts is not None}
    new = frozenset(range(len(standings))) - known.keys()
    if not known and all(standing.has_found for standing in standings):
        return Orders(0, anew=True)
    if not known:
        raise Diverged(f"{', '.join(members)}: all of these have just come, and nobody knows where the run stands")
    most = max(known.values())
    if min(known.values()) < most - 1:
        told = ", ".join(f"{members[rank]} at {acts}" for rank, acts in known.items())
        raise Diverged(f"workers are more than one exchange apart: {told}. Every worker must make the same calls.")
    ahead = [rank for rank, acts in known.items() if acts == most]
    behind = frozenset(known.keys() - set(ahead))
    if not new:
        return Orders(ahead[0], behind)
    able = [rank for rank in ahead if standings[rank].between_steps]
    if not able:
        return Orders(ahead[0], behind, declined=new)
    return Orders(able[0], behind, newcomers=new)

"""How many steps each replica of a round takes where `uneven=True`, and on which parts of its batches. Pure.

A round has `steps` batches, each cut into as many pieces as there are replicas: so there are replicas x steps pieces,
and a replica takes a step on each of its own. Every piece is one replica's, so every sample is used once. Equal counts
deal them as without `uneven`: piece r of every batch to replica r.

Only integers, divisions and comparisons: every member comes to the same counts from the same balance.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

from shoal.strategies.balance import Balance


def counts_for(balance: Balance, members: tuple[str, ...], replicas: int, steps: int) -> tuple[int, ...]:
    """The steps of each replica in a round: `replicas * steps` in all, at least one each.

    The slowest worker is done as early as can be; the replicas of one worker differ by a step at most.
    """
    shares = balance.shares(replicas, members)
    paces = [1.0 / speed for speed in balance.speeds(members)]
    hosts = [(len(share), pace) for share, pace in zip(shares, paces, strict=True) if share]
    given = _dealt(replicas * steps, [least for least, _ in hosts], [pace for _, pace in hosts])
    counts: list[int] = []
    for (hosted, _), total in zip(hosts, given, strict=True):
        small, larger = divmod(total, hosted)
        counts += [small + (place < larger) for place in range(hosted)]
    return tuple(counts)


def counts_of(counts: Sequence[int], replicas: int, steps: int) -> tuple[int, ...]:
    """The same proportions in a round of `steps` steps, as at the end of an epoch. Without counts all are equal."""
    if len(counts) != replicas:
        return (steps,) * replicas
    if sum(counts) == replicas * steps:
        return tuple(counts)
    return tuple(_dealt(replicas * steps, [1] * replicas, [1.0 / count for count in counts]))


def dealt_pieces(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """For each batch of the round where the run of pieces of each replica begins, and, last, where the batch ends.

    A replica's steps are spread evenly over the round.
    """
    replicas = len(counts)
    order = sorted(
        ((2 * number + 1) / (2 * count), replica) for replica, count in enumerate(counts) for number in range(count)
    )
    batches = []
    for first in range(0, len(order), replicas):
        taken = [replica for _, replica in order[first : first + replicas]]
        bounds = [0]
        for replica in range(replicas):
            bounds.append(bounds[-1] + taken.count(replica))
        batches.append(tuple(bounds))
    return batches


def _dealt(total: int, least: Sequence[int], paces: Sequence[float]) -> list[int]:
    """Each further step goes to whoever would be done with it first."""
    given = list(least)
    queue = [((count + 1) * pace, place) for place, (count, pace) in enumerate(zip(given, paces, strict=True))]
    heapify(queue)
    for _ in range(total - sum(given)):
        _, place = queue[0]
        given[place] += 1
        heapreplace(queue, ((given[place] + 1) * paces[place], place))
    return given

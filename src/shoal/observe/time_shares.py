"""Where the time of a member, or of several, has gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from shoal.observe.phases import TimeUse

UNEVEN = 0.15  # of the time: a smaller difference between members is nothing unusual


class TimeShares(msgspec.Struct, frozen=True):
    """Seconds, by what they were used for."""

    seconds: dict[TimeUse, float] = {}

    def since(self, earlier: TimeShares) -> TimeShares:
        """What has come after an earlier look at the same member."""
        return TimeShares({use: self.seconds[use] - earlier.seconds.get(use, 0.0) for use in self.seconds})

    def share(self, use: TimeUse) -> float:
        """Of all time but the script's own; 0 before there is any."""
        of_training = sum(self._spent(one) for one in TimeUse if one is not TimeUse.OTHER)
        return self._spent(use) / of_training if of_training else 0.0

    def _spent(self, use: TimeUse) -> float:
        # A wait is booked as soon as it is over, and the phase that it was a part of only when that is.
        return max(0.0, self.seconds.get(use, 0.0))

    def __str__(self) -> str:
        shares = {use: round(100 * self.share(use)) for use in TimeUse if use is not TimeUse.OTHER}
        return " · ".join(f"{share} % {use}" for use, share in shares.items() if share)


def slowest(spent: Mapping[str, TimeShares]) -> str | None:
    """The member that the others wait for: it waits clearly less than each of them. None if there is none."""
    waits = {id: shares.share(TimeUse.WAITING) for id, shares in spent.items()}
    first, *others = sorted(waits, key=lambda id: waits[id]) or [""]
    return first if others and waits[others[0]] - waits[first] > UNEVEN else None


def together(shares: Iterable[TimeShares]) -> TimeShares:
    """Of several members."""
    total: dict[TimeUse, float] = {}
    for one in shares:
        for use, seconds in one.seconds.items():
            total[use] = total.get(use, 0.0) + seconds
    return TimeShares(total)

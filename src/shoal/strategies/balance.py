"""Who computes how many pieces: a slower worker gets fewer. Pure: the steps' notes in, shares out.

Every member computes the same shares from the same notes, bit for bit: only additions, multiplications, divisions
and `fsum`, in the order of ranks. (`sum` adds floats differently before Python 3.12, `log` differs by library.)

A member's pace is the time that it needs for a sample, relative to the others'. Whatever slows all alike (a longer
sequence, a smaller last batch, the first step's compilation) is taken out of every step before it is looked at.

    pace    what is believed. A change is believed when most of a member's last 11 steps are off by a quarter on the
            same side, so one slow step, or a few, mean nothing; smaller differences are averaged over many steps.
    used    the paces that the shares in force were made with. They are replaced by what is believed when a step is
            predicted to take 5 % longer than it need: noise moves no piece.
    noise   how far a step usually is from what was expected. Where that is much, it takes more than a quarter.

    fixed   what a step takes a member whatever it computes: its update of the weights. Who is slow in that, too, gets
            fewer pieces still, so that nobody waits for its update. It is the middle of the last steps.

Everybody holds at least one piece when there are enough, since who holds none is not measured. When there are fewer
pieces than members, the paces of those without fade into the mean, so that they are tried again when it may pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from math import fsum

import msgspec

from shoal.collectives.tree import aligned
from shoal.data.order import piece_bounds
from shoal.errors import UsageError

WINDOW = 11  # steps; a change is seen when more than half of them agree
ENOUGH = 7  # steps of a member's own before anything is concluded from them
CHANGE = 0.25  # a member that is slower or faster than believed by this part, or by
CHANGE_NOISE = 3.0  # so many times its noise, has changed
ALONG = 0.6  # when somebody changed, those who are off by this part of that are corrected with them
MEMORY = 100  # steps over which small differences, and the noise, are averaged
LOUDEST = 0.5  # the noise that one step can show: a slow step is not to look like much of it

SECONDS = (1e-9, 1e9)  # what a step may take; anything else is a clock's mistake
FURTHEST = 1e6  # from the average: no pace is told apart beyond

MARGIN = 1.05  # shares change when a step takes this many times the shortest; above SLACK, so that it pays
SLACK = 1.02  # a step may be longer by this factor if that saves partial sums

_ROUNDING = 1e-9  # so much below a whole number still is one

GOOD = 0.92  # efficiency with which `suggest_pieces` is content
AIM = 0.95  # efficiency that it looks for when it is not


class WorkerPace(msgspec.Struct, frozen=True):
    """What is known of one member. Only the ratios of members' paces have a meaning."""

    pace: float = 1.0  # time per sample, as believed now
    used: float = 1.0  # the same, in the shares in force
    recent: tuple[float, ...] = ()  # of the last steps: time taken over time expected
    steps: int = MEMORY  # how many steps `pace` stands for
    noise: float = 0.1  # how far a step is from what was expected, on average
    updates: tuple[float, ...] = ()  # of the last steps: time of the update, in samples of pace 1
    used_fixed: float = 0.0  # the middle of them, in the shares in force

    @property
    def fixed(self) -> float:
        """Time of a step whatever its samples, as believed now."""
        return median(self.updates) if len(self.updates) >= ENOUGH else 0.0


class Balance(msgspec.Struct, frozen=True):
    """The members' paces: a value that all members hold alike. A newcomer gets it from any of them."""

    paces: dict[str, WorkerPace] = {}

    @classmethod
    def start(cls) -> Balance:
        """Nothing is known: all are taken as equal."""
        return cls()

    def shares(self, pieces: int, members: tuple[str, ...], size: int = 0) -> tuple[range, ...]:
        """The run of pieces that each rank computes. Members that are not known yet count as average.

        `size`: the batch's samples, where everybody updates the weights after it.
        """
        known = [self._known(members)[member] for member in members]
        fixed = tuple(_in_pieces(pace.used_fixed, pieces, size) for pace in known)
        return _shares(pieces, tuple(pace.used for pace in known), fixed)

    def speeds(self, members: tuple[str, ...]) -> list[float]:
        """How fast each rank is, as the shares in force have it. Only their ratios have a meaning."""
        known = self._known(members)
        return [1.0 / known[member].used for member in members]

    def observe(
        self,
        members: tuple[str, ...],
        held: tuple[range, ...],
        seconds: tuple[float, ...],
        size: int,
        updates: tuple[float, ...] = (),
    ) -> Balance:
        """What is known after a committed step: rank r computed the pieces `held[r]` of `size` samples in `seconds[r]`.

        A rank without pieces, or without a believable time, says nothing. Who is not among the members is
        forgotten. `updates`: the seconds that each rank took for its last update.
        """
        known = self._known(members)
        pieces = sum(len(run) for run in held)
        bounds = piece_bounds(size, pieces)
        off = {  # time taken over time expected
            member: took / ((bounds[run.stop] - bounds[run.start]) * known[member].pace)
            for member, run, took in zip(members, held, seconds, strict=True)
            if run and SECONDS[0] < took < SECONDS[1]
        }
        # When two differ, either may have changed, and it does not matter which. It does to those who were not
        # measured: then the faster of the two is taken to be as before.
        common = median(off.values(), low=not all(held)) if off else 1.0
        seen = {member: _seen(known[member], ratio / common) for member, ratio in off.items()}
        known |= _concluded(seen)
        if off:
            for member, took in zip(members, updates, strict=False):
                known[member] = _updated(known[member], took / common)
        average = _average([pace.pace for pace in known.values()])
        for member, run in zip(members, held, strict=True):
            if not run:
                known[member] = _moved(known[member], (average / known[member].pace - 1.0) / MEMORY)
        # Nothing depends on the scale; without this it would wander off in a very long run.
        known = {member: _scaled(pace, average) for member, pace in known.items()}
        return Balance(_adopted(pieces, known, size))

    def efficiency(self, pieces: int, members: tuple[str, ...], size: int = 0) -> float:
        """The part of the members' summed speed that a step of this many pieces can use, 0 to 1. `size`: its samples,
        if there is an update after them.
        """
        known = [self._known(members)[member] for member in members]
        paces = [pace.pace for pace in known]
        fixed = [_in_pieces(pace.fixed, pieces, size) for pace in known]
        return _ideal(pieces, paces, fixed) / _shortest(pieces, paces, fixed)[1]

    def _known(self, members: tuple[str, ...]) -> dict[str, WorkerPace]:
        """The members' paces in the order of ranks. A newcomer has the mean speed of those who are known."""
        here = [self.paces[member] for member in members if member in self.paces]
        newcomer = WorkerPace()
        if here:
            fixed = fsum(p.used_fixed for p in here) / len(here)
            newcomer = WorkerPace(_average([p.pace for p in here]), _average([p.used for p in here]), used_fixed=fixed)
        return {member: self.paces.get(member, newcomer) for member in members}


def suggest_pieces(balance: Balance, pieces: int, members: tuple[str, ...], size: int, limit: int = 64) -> int:
    """The number of pieces that uses the members' speeds well in batches of `size` samples.

    It is `pieces` times a power of two, up to `limit`: the present number if that is good enough; else the smallest
    with which the efficiency reaches the aim, or, if none does, the best. Never fewer than now.
    """

    def efficiency(count: int) -> float:
        largest = -(-size // count)  # samples: pieces that do not divide the batch are not quite equal
        return balance.efficiency(count, members, size) * size / (count * largest)

    best, reached = pieces, efficiency(pieces)
    if reached >= GOOD:
        return pieces
    more = pieces * 2
    while more <= min(limit, size) and reached < AIM:
        if efficiency(more) > reached:
            best, reached = more, efficiency(more)
        more *= 2
    return best


def median(values: Iterable[float], low: bool = False) -> float:
    """The middle value; of two, their mean or the lower one."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return ordered[half - 1] if low else (ordered[half - 1] + ordered[half]) / 2


def _seen(pace: WorkerPace, off: float) -> WorkerPace:
    noise = pace.noise + (min(abs(off - 1.0), LOUDEST) - pace.noise) / MEMORY
    return msgspec.structs.replace(pace, recent=(*pace.recent, off)[-WINDOW:], noise=noise)


def _concluded(seen: dict[str, WorkerPace]) -> dict[str, WorkerPace]:
    """Takes the last steps into the paces: at once where somebody changed, else a little."""
    off = {member: median(pace.recent) if len(pace.recent) >= ENOUGH else 1.0 for member, pace in seen.items()}
    part = ALONG if any(_is_off(off[member], _no_noise(pace)) for member, pace in seen.items()) else 1.0
    return {
        member: _changed(pace, off[member], part * _no_noise(pace))
        if _is_off(off[member], part * _no_noise(pace))
        else _moved(pace, (off[member] - 1.0) / pace.steps, steps=min(pace.steps + 1, MEMORY))
        for member, pace in seen.items()
    }


def _no_noise(pace: WorkerPace) -> float:
    """By which part the middle of the last steps must be off to mean a change."""
    return max(CHANGE, CHANGE_NOISE * pace.noise)


def _changed(pace: WorkerPace, middle: float, part: float) -> WorkerPace:
    """The pace of a member that has become slower or faster: only the steps that say so count from now on."""
    since = [off for off in pace.recent if _is_off(off, part) and (off > 1.0) == (middle > 1.0)]
    middle = median(since)
    recent = tuple(off / middle for off in since)
    return msgspec.structs.replace(pace, pace=pace.pace * middle, recent=recent, steps=len(recent))


def _moved(pace: WorkerPace, by: float, steps: int = MEMORY) -> WorkerPace:
    return msgspec.structs.replace(pace, pace=pace.pace * (1.0 + by), steps=steps)


def _scaled(pace: WorkerPace, average: float) -> WorkerPace:
    updates = tuple(update / average for update in pace.updates)
    paced = min(max(pace.pace / average, 1 / FURTHEST), FURTHEST)
    return msgspec.structs.replace(pace, pace=paced, updates=updates, used_fixed=pace.used_fixed / average)


def _updated(pace: WorkerPace, took: float) -> WorkerPace:
    if not 0.0 <= took < SECONDS[1]:
        return pace
    return msgspec.structs.replace(pace, updates=(*pace.updates, took)[-WINDOW:])


def _in_pieces(fixed: float, pieces: int, size: int) -> float:
    """A time that is told in samples, in pieces of a batch of this size."""
    return fixed * pieces / size if size else 0.0


def _adopted(pieces: int, known: dict[str, WorkerPace], size: int) -> dict[str, WorkerPace]:
    """Makes the shares follow what is believed, if a step of this many pieces takes too long by the margin."""
    paces = tuple(pace.pace for pace in known.values())
    fixed = tuple(_in_pieces(pace.fixed, pieces, size) for pace in known.values())
    used = tuple(_in_pieces(pace.used_fixed, pieces, size) for pace in known.values())
    now = _slowest(_shares(pieces, tuple(pace.used for pace in known.values()), used), paces, fixed)
    if now <= MARGIN * _ideal(pieces, paces, fixed):  # cheap, and mostly so
        return known
    if now <= MARGIN * _shortest(pieces, paces, fixed)[1]:
        return known
    return {
        member: msgspec.structs.replace(pace, used=pace.pace, used_fixed=pace.fixed) for member, pace in known.items()
    }


@lru_cache(maxsize=256)
def _shares(pieces: int, paces: tuple[float, ...], fixed: tuple[float, ...]) -> tuple[range, ...]:
    """Runs of pieces with which the slowest rank is done first; within the slack, those with fewest partial sums."""
    if pieces < 1 or not paces:
        raise UsageError(f"cannot share {pieces} pieces among {len(paces)} members: expected at least one of each")
    given, slowest = _shortest(pieces, paces, fixed)
    ideal = _ideal(pieces, paces, fixed)
    # Not far below its proportion either: a rank is not to idle because another one is slow anyway.
    ranks = list(zip(given, paces, fixed, strict=True))
    least = [min(count, max(1, int((ideal - update) / pace + _ROUNDING))) for count, pace, update in ranks]
    most = [max(count, int((slowest * SLACK - update) / pace)) for count, pace, update in ranks]
    return aligned(pieces, least, most)


def _shortest(pieces: int, paces: Sequence[float], fixed: Sequence[float]) -> tuple[list[int], float]:
    """How many pieces each rank gets so that the slowest is done as early as can be, and when that is.

    Exact: each further piece goes to the rank that would be done with it first.
    """
    given = [1 if pieces >= len(paces) else 0] * len(paces)
    ranks = enumerate(zip(given, paces, fixed, strict=True))
    queue = [((count + 1) * pace + update, rank) for rank, (count, pace, update) in ranks]
    heapify(queue)
    for _ in range(pieces - sum(given)):
        _, rank = queue[0]
        given[rank] += 1
        heapreplace(queue, ((given[rank] + 1) * paces[rank] + fixed[rank], rank))
    return given, max(count * pace + update for count, pace, update in zip(given, paces, fixed, strict=True))


def _slowest(shares: tuple[range, ...], paces: Sequence[float], fixed: Sequence[float]) -> float:
    return max(len(share) * pace + update for share, pace, update in zip(shares, paces, fixed, strict=True))


def _ideal(pieces: int, paces: Sequence[float], fixed: Sequence[float]) -> float:
    """The time of a step if pieces could be cut at will."""
    updates = fsum(update / pace for update, pace in zip(fixed, paces, strict=True))
    return max((pieces + updates) / fsum(1.0 / pace for pace in paces), *fixed, 0.0)


def _average(paces: Sequence[float]) -> float:
    """The pace whose speed is the mean speed."""
    return len(paces) / fsum(1.0 / pace for pace in paces)


def _is_off(middle: float, part: float) -> bool:
    return middle > 1.0 + part or middle * (1.0 + part) < 1.0

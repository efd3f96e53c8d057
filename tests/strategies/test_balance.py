"""A slow worker gets fewer pieces, noise moves none, and all members agree about it.

The simulated clusters are seeded. `Cluster.train` plays steps in which every worker's time carries log-normal noise
(sigma 0.1) and one step in 200 takes five times as long, unless a scene says otherwise.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.collectives.tree import aligned, cover
from shoal.data.order import piece_bounds
from shoal.errors import UsageError
from shoal.strategies import balance
from shoal.strategies.balance import FURTHEST, SLACK, Balance, WorkerPace, suggest_pieces

Work = Callable[[Sequence[float]], list[float]]  # samples that each rank computes -> seconds without noise


def names(count: int) -> tuple[str, ...]:
    return tuple(f"worker-{i}" for i in range(count))


def own_machines(*speeds: float, overhead: float = 0.0) -> Work:
    """Workers that do not disturb each other. `overhead` is what a step costs whatever its samples, in seconds."""
    return lambda samples: [overhead + n / speed for n, speed in zip(samples, speeds, strict=True)]


def shared_core(*others: float) -> Work:
    """Workers 0 and 1 on one core: half its speed each, all of it for the one that is left. The others are alone."""

    def times(samples: Sequence[float]) -> list[float]:
        first, second = samples[:2]
        both = 2 * min(first, second)
        alone = first + second
        shared = [both if first <= second else alone, both if second < first else alone]
        return shared + [n / speed for n, speed in zip(samples[2:], others, strict=True)]

    return times


class Cluster:
    """Workers whose steps are played. Nothing here waits."""

    def __init__(
        self, pieces: int, size: int = 256, seed: int = 0, sigma: float = 0.1, outliers: float = 0.005
    ) -> None:
        self.pieces, self.size = pieces, size
        self.random = random.Random(seed)
        self.sigma, self.outliers = sigma, outliers
        self.balance = Balance.start()
        self.shares: list[tuple[range, ...]] = []  # of every step so far
        self.took: list[float] = []  # of every step so far, noise aside

    def train(self, work: Work, workers: int | Sequence[str], steps: int, batches: Sequence[int] = ()) -> Cluster:
        members = names(workers) if isinstance(workers, int) else tuple(workers)
        for step in range(steps):
            size = batches[step % len(batches)] if batches else self.size
            pieces = min(self.pieces, size)
            held = self.balance.shares(pieces, members)
            bounds = piece_bounds(size, pieces)
            times = work([bounds[run.stop] - bounds[run.start] for run in held])
            self.shares.append(held)
            self.took.append(max(times))
            seconds = tuple(self._noisy(time) for time in times)
            self.balance = self.balance.observe(members, held, seconds, size)
        return self

    def reshuffles(self, since: int = 0) -> int:
        return sum(a != b for a, b in itertools.pairwise(self.shares[since:]))

    def efficiency(self, speed: float, since: int) -> float:
        """The part of the summed speed that the steps since then used, their noise aside."""
        return self.size / speed / statistics.mean(self.took[since:])

    def counts(self) -> list[int]:
        return [len(run) for run in self.shares[-1]]

    def _noisy(self, time: float) -> float:
        slow = 5.0 if self.random.random() < self.outliers else 1.0
        return time * slow * self.random.lognormvariate(0.0, self.sigma)


# What is shared out.

few = settings(max_examples=50)
paces = st.floats(1 / 64, 64, allow_nan=False)


def known(*used: float) -> Balance:
    return Balance({m: WorkerPace(pace, pace) for m, pace in zip(names(len(used)), used, strict=True)})


@few
@given(st.integers(1, 70), st.lists(paces, min_size=1, max_size=6))
def test_shares_are_runs_that_cover_all_pieces_in_the_order_of_ranks(pieces: int, used: list[float]) -> None:
    shares = known(*used).shares(pieces, names(len(used)))
    assert [piece for run in shares for piece in run] == list(range(pieces))
    assert len(shares) == len(used)
    if pieces >= len(used):
        assert all(shares), "everybody holds a piece, so that everybody is measured"


def splits(pieces: int, ranks: int, least: int) -> list[tuple[int, ...]]:
    """All ways to give `pieces` pieces to `ranks` ranks."""
    if ranks == 1:
        return [(pieces,)] if pieces >= least else []
    return [(first, *rest) for first in range(least, pieces + 1) for rest in splits(pieces - first, ranks - 1, least)]


@few
@given(st.integers(1, 10), st.lists(paces, min_size=1, max_size=4))
def test_no_other_shares_are_done_earlier(pieces: int, used: list[float]) -> None:
    def time(counts: Sequence[int]) -> float:
        return max(count * pace for count, pace in zip(counts, used, strict=True))

    least = 1 if pieces >= len(used) else 0
    best = min(time(counts) for counts in splits(pieces, len(used), least))
    found = [len(run) for run in known(*used).shares(pieces, names(len(used)))]
    assert best <= time(found) <= best * SLACK
    speed = sum(1 / pace for pace in used)
    assert known(*used).efficiency(pieces, names(len(used))) == pytest.approx(pieces / speed / best)


def test_equal_workers_hold_equal_runs() -> None:
    assert Balance.start().shares(8, names(4)) == (range(2), range(2, 4), range(4, 6), range(6, 8))
    assert Balance.start().shares(4, names(3)) == (range(2), range(2, 3), range(3, 4))


def test_a_little_time_is_given_for_fewer_partial_sums() -> None:
    """Done first are 47 + 17 pieces, in 5 + 2 partial sums. 48 + 16 take 1 % longer and need 2 + 1."""
    shares = known(1.0, 2.8).shares(64, names(2))
    assert [len(run) for run in shares] == [48, 16]
    assert [len(cover(64, run)) for run in shares] == [2, 1]


@few
@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_runs_keep_their_bounds_or_are_refused(pieces: int, bounds: list[tuple[int, int]]) -> None:
    least, most = [low for low, _ in bounds], [low + more for low, more in bounds]
    if not sum(least) <= pieces <= sum(most):
        with pytest.raises(UsageError, match=f"cannot cut {pieces} pieces"):
            aligned(pieces, least, most)
        return
    runs = aligned(pieces, least, most)
    assert [piece for run in runs for piece in run] == list(range(pieces))
    assert all(low <= len(run) <= high for low, run, high in zip(least, runs, most, strict=True))


def test_nobody_and_nothing_cannot_be_shared() -> None:
    with pytest.raises(UsageError, match="0 pieces among 2 members"):
        Balance.start().shares(0, names(2))
    with pytest.raises(UsageError, match="3 pieces among 0 members"):
        Balance.start().shares(3, ())


# What all members must agree on.

steps_of_notes = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 40), st.lists(st.floats(), min_size=5, max_size=5)), max_size=30
)


@few
@given(steps_of_notes)
def test_members_with_the_same_notes_hold_the_same_bits_also_after_a_handover(
    scene: list[tuple[int, int, list[float]]],
) -> None:
    """Whatever the clocks said: negative, infinite, not a number. The newcomer gets the state as JSON in every step."""
    old, new = Balance.start(), Balance.start()
    for workers, size, seconds in scene:
        members = names(workers)
        held = old.shares(min(12, size), members)
        assert new.shares(min(12, size), members) == held
        old = old.observe(members, held, tuple(seconds[:workers]), size)
        new = new.observe(members, held, tuple(seconds[:workers]), size)
        new = msgspec.json.decode(msgspec.json.encode(new), type=Balance)
        assert msgspec.msgpack.encode(new) == msgspec.msgpack.encode(old)
        assert tuple(old.paces) == members
        assert all(1 / FURTHEST <= pace.pace <= FURTHEST for pace in old.paces.values())


def test_who_has_left_is_forgotten_and_who_comes_is_taken_as_average() -> None:
    after = known(1.0, 3.0).observe(("worker-0", "worker-9"), (range(3), range(3, 4)), (3.0, 1.0), 4)
    assert list(after.paces) == ["worker-0", "worker-9"]
    three = known(1.0, 0.5).shares(9, ("worker-0", "worker-1", "newcomer"))
    assert [len(run) for run in three] == [2, 4, 3]


def test_who_held_nothing_or_measured_nothing_says_nothing() -> None:
    before = known(1.0, 1.0, 1.0)
    after = before.observe(names(3), (range(1), range(1, 2), range(2, 2)), (1.0, 0.0, 7.0), 8)
    assert [len(pace.recent) for pace in after.paces.values()] == [1, 0, 0]


def test_who_has_no_piece_is_tried_again_in_time() -> None:
    """Two pieces, three workers: the slow one hands its piece on. It recovers; much later another one gets slow."""
    cluster = Cluster(pieces=2).train(own_machines(0.25, 1, 1), 3, 40)
    assert cluster.counts() == [0, 1, 1]
    cluster.train(own_machines(1, 1, 1), 3, 400).train(own_machines(1, 0.4, 1), 3, 40)
    assert cluster.counts() == [1, 0, 1]


# How it follows real workers.


@pytest.mark.parametrize("workers", [2, 8])
def test_noise_between_equal_workers_moves_no_piece_in_10000_steps(workers: int) -> None:
    cluster = Cluster(64).train(own_machines(*[1.0] * workers), workers, 10_000)
    assert cluster.reshuffles() == 0


@pytest.mark.parametrize(
    ("without", "sigma"),
    [({"WINDOW": 1, "ENOUGH": 1}, 0.1), ({"CHANGE_NOISE": 0.0}, 0.3)],
    ids=["median", "noise"],
)
def test_without_its_precautions_noise_moves_pieces(
    without: dict[str, float], sigma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    assert Cluster(64, sigma=sigma).train(own_machines(*[1] * 8), 8, 800).reshuffles() == 0
    for name, value in without.items():
        monkeypatch.setattr(balance, name, value)
    assert Cluster(64, sigma=sigma).train(own_machines(*[1] * 8), 8, 800).reshuffles() > 50


def test_without_the_margin_small_pieces_move_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: 256 pieces on two workers are so small that one more or less is always better."""
    assert Cluster(256, size=512).train(own_machines(1, 1.27), 2, 1_500).reshuffles(since=100) <= 1
    monkeypatch.setattr(balance, "MARGIN", 1.0)
    assert Cluster(256, size=512).train(own_machines(1, 1.27), 2, 1_500).reshuffles(since=100) > 5


def test_steps_that_are_longer_for_all_move_no_piece() -> None:
    """Short last batches, which also cost more per sample, and a first step that compiles."""
    cluster = Cluster(16).train(own_machines(1, 1, 1, overhead=900), 3, 1)
    cluster.train(own_machines(1, 1, 1, overhead=20), 3, 2_000, batches=[256] * 9 + [19])
    assert len({shares for shares in cluster.shares if shares[-1].stop == 16}) == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("workers", "pieces"), [(2, 8), (2, 64), (4, 32), (8, 64)])
def test_a_worker_that_slows_to_a_quarter_is_followed_within_10_steps_and_back(
    workers: int, pieces: int, seed: int
) -> None:
    equal, slowed = [1.0] * workers, [1.0] * (workers - 1) + [0.25]
    cluster = Cluster(pieces, seed=seed).train(own_machines(*equal), workers, 300)
    assert cluster.reshuffles() == 0
    for speeds in slowed, equal:
        changed = len(cluster.shares)
        cluster.train(own_machines(*speeds), workers, 200)
        best = cluster.size / sum(speeds) / best_efficiency(pieces, speeds)
        one_piece = cluster.size / pieces
        assert cluster.took[changed + 10] <= max(best + one_piece, 1.08 * best), "a piece or 8 % off after 10 steps"
        assert statistics.mean(cluster.took[changed + 10 :]) <= 1.04 * best, "and then the best, or nearly"
        assert cluster.reshuffles(since=changed + 10) <= 2


def best_efficiency(pieces: int, speeds: Sequence[float]) -> float:
    return known(*[1 / speed for speed in speeds]).efficiency(pieces, names(len(speeds)))


@pytest.mark.parametrize("speeds", [(1, 0.25), (1, 2, 3), (1, 1, 1, 0.7), (0.1, 1, 1), (1, 1.5, 2, 2.5, 3, 4)])
def test_unequal_workers_use_92_percent_of_their_summed_speeds(speeds: tuple[float, ...]) -> None:
    """They start with a piece each. After 20 steps, and again after 200, they take as many as are suggested."""
    cluster, members = Cluster(len(speeds), size=512, seed=3), names(len(speeds))
    for steps in (20, 180):
        cluster.train(own_machines(*speeds), members, steps)
        cluster.pieces = suggest_pieces(cluster.balance, cluster.pieces, members, cluster.size)
    assert cluster.pieces > len(speeds)
    cluster.train(own_machines(*speeds), members, 500)
    assert cluster.efficiency(sum(speeds), since=250) >= 0.92
    assert cluster.reshuffles(since=250) <= 1


def test_what_a_step_costs_whatever_its_samples_does_not_make_a_slow_worker_ever_slower() -> None:
    """With few pieces it looks slower than it is, and gets fewer still. This must end, and end well."""
    cluster = Cluster(32).train(own_machines(1, 1, 0.5, overhead=10), 3, 1_000)
    assert cluster.counts() == [13, 13, 6]
    assert cluster.reshuffles(since=100) <= 1
    cluster.train(own_machines(1, 1, 1, overhead=10), 3, 1_000)
    assert max(cluster.counts()) <= 12


@pytest.mark.parametrize(("work", "workers"), [(shared_core(), 2), (shared_core(1.0), 3), (shared_core(1.0, 1.0), 4)])
def test_workers_that_share_a_core_settle(work: Work, workers: int) -> None:
    """Each of the two is as fast as the other lets it be: shares must not chase their own effect."""
    cluster = Cluster(32, seed=workers).train(work, workers, 2_000)
    assert cluster.reshuffles(since=100) <= 2
    assert cluster.efficiency(workers - 1, since=100) >= 0.92


def test_a_newcomer_gets_its_part_and_a_leavers_part_is_taken_over() -> None:
    cluster = Cluster(32).train(own_machines(1, 2), ["a", "b"], 300)
    cluster.train(own_machines(1, 2, 4), ["a", "b", "c"], 10).train(own_machines(1, 2, 4), ["a", "b", "c"], 100)
    assert cluster.efficiency(7, since=310) >= 0.92
    cluster.train(own_machines(1, 4), ["a", "c"], 100)
    assert cluster.efficiency(5, since=410) >= 0.92, "what was known of those who stay is kept"


# How many pieces it takes.


def test_a_slow_worker_calls_for_more_pieces_and_equal_ones_do_not() -> None:
    """1 : 0.25 with 2 pieces uses 0.4 of the summed speeds, with 4 0.8, with 8 0.91, with 16 0.98."""
    assert suggest_pieces(known(1.0, 4.0), 2, names(2), 256) == 16
    assert suggest_pieces(known(1.0, 4.0), 2, names(2), 256, limit=8) == 8
    assert suggest_pieces(known(1.0, 4.0), 2, names(2), 8) == 8
    assert suggest_pieces(known(1.0, 4.0), 128, names(2), 256) == 128
    assert suggest_pieces(known(1.0, 1.05), 2, names(2), 256) == 2
    assert suggest_pieces(Balance.start(), 8, names(8), 256) == 8


def test_pieces_that_cut_a_batch_badly_are_not_suggested() -> None:
    """12 samples in 8 pieces: some have two samples, some have one."""
    assert suggest_pieces(known(1.0, 4.0), 4, names(2), 12, limit=8) == 4
    assert suggest_pieces(known(1.0, 4.0), 4, names(2), 16, limit=8) == 8


@few
@given(st.integers(1, 70), st.lists(paces, min_size=1, max_size=6), st.integers(1, 100), st.integers(1, 100))
def test_pieces_are_raised_by_powers_of_two_up_to_the_limit_and_only_if_it_helps(
    pieces: int, used: list[float], size: int, limit: int
) -> None:
    members = names(len(used))
    more = suggest_pieces(known(*used), pieces, members, size, limit)
    factor, rest = divmod(more, pieces)
    assert rest == 0
    assert factor & (factor - 1) == 0
    if more > pieces:
        assert more <= min(limit, size)
        assert known(*used).efficiency(more, members) > known(*used).efficiency(pieces, members)


# The part of a step that does not shrink with the share: the update of the weights.


def played(speeds: Sequence[float], update: float, pieces: int, size: int, steps: int = 60) -> tuple[float, float]:
    """Samples per second in the end; and of the workers alone, each with its part of the batch and its update."""
    members, known = names(len(speeds)), Balance.start()
    lasted = 0.0
    for _ in range(steps):
        held = known.shares(pieces, members, size)
        seconds = [len(run) * size / pieces / speed for run, speed in zip(held, speeds, strict=True)]
        updates = [update / speed for speed in speeds]
        lasted = max(took + then for took, then in zip(seconds, updates, strict=True))
        known = known.observe(members, held, tuple(seconds), size, tuple(updates))
    part = size / len(speeds)
    return size / lasted, sum(part / ((part + update) / speed) for speed in speeds)


def test_a_worker_that_is_slow_in_its_update_too_gets_fewer_pieces_still() -> None:
    reached, alone = played([1.0, 0.25], update=20.0, pieces=32, size=128)
    assert reached >= 0.95 * alone
    without = Balance.start()
    for _ in range(60):  # as if updates took no time
        held = without.shares(32, names(2))
        without = without.observe(names(2), held, (len(held[0]) * 4.0, len(held[1]) * 16.0), 128)
    held = without.shares(32, names(2))
    assert 128 / max(len(held[0]) * 4.0 + 20.0, len(held[1]) * 16.0 + 80.0) < 0.8 * alone, "the control"


def test_equal_workers_stay_equal_whatever_their_update_takes() -> None:
    members, known = names(2), Balance.start()
    for _ in range(30):
        held = known.shares(8, members, 64)
        assert [len(run) for run in held] == [4, 4]
        known = known.observe(members, held, (1.0, 1.0), 64, (5.0, 5.0))


def test_a_few_slow_updates_move_nothing() -> None:
    members, known = names(2), Balance.start()
    for step in range(60):
        held = known.shares(32, members, 64)
        assert [len(run) for run in held] == [16, 16]
        known = known.observe(members, held, (1.0, 1.0), 64, (0.1, 3.0 if step % 11 < 3 else 0.1))


def test_who_takes_longer_to_update_than_all_others_together_still_holds_a_piece() -> None:
    members, known = names(3), Balance.start()
    for _ in range(30):
        held = known.shares(12, members, 48)
        assert all(held)
        seconds = tuple(len(run) * 1.0 for run in held)
        known = known.observe(members, held, seconds, 48, (0.1, 0.1, 50.0))
    assert len(held[2]) == 1


def test_pieces_become_more_when_updates_call_for_it() -> None:
    members, known = names(2), Balance.start()
    for _ in range(30):
        held = known.shares(2, members, 128)
        known = known.observe(members, held, (64.0, 64.0), 128, (10.0, 100.0))
    assert known.efficiency(2, members, 128) < 0.75
    more = suggest_pieces(known, 2, members, 128)
    assert more > 2
    assert known.efficiency(more, members, 128) > known.efficiency(2, members, 128)

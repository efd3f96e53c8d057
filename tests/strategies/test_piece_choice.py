"""More pieces are kept where they pay and given back where they do not, by everybody alike."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from shoal.codecs.codec import AS_THEY_ARE, AbstractCodec
from shoal.codecs.feedback import ErrorFeedback
from shoal.codecs.lossy import TopK
from shoal.data.order import piece_bounds
from shoal.strategies import piece_choice
from shoal.strategies.allreduce import Division, Exchanged, Shared
from shoal.strategies.balance import Balance
from shoal.strategies.notes import Note
from shoal.strategies.piece_choice import EVERY, PieceChoice
from shoal.training.synchronous import SynchronousTraining, fixes_pieces

MEMBERS = ("worker-0", "worker-1")


class Cluster:
    """Workers whose steps take so long per sample, and so long per piece."""

    def __init__(self, pieces: int = 2, size: int = 64, seed: int = 0) -> None:
        self.pieces, self.size = pieces, size
        self.balance, self.choice = Balance.start(), PieceChoice()
        self.random = random.Random(seed)
        self.counts: list[int] = []  # of pieces, of every step so far
        self.told: list[int] = []  # each number that was chosen

    def train(self, paces: tuple[float, ...], overhead: float, steps: int, link: float = 0.0) -> Cluster:
        """`link`: what the exchange takes for each piece."""
        members = tuple(f"worker-{rank}" for rank in range(len(paces)))
        for _ in range(steps):
            self.counts.append(self.pieces)
            held = self.balance.shares(self.pieces, members, self.size)
            bounds = piece_bounds(self.size, self.pieces)
            seconds = tuple(
                (pace * (bounds[run.stop] - bounds[run.start]) + pace * overhead * len(run))
                * self.random.lognormvariate(0.0, 0.1)
                for pace, run in zip(paces, held, strict=True)
            )
            self.balance = self.balance.observe(members, held, seconds, self.size)
            took = max(seconds) + link * self.pieces
            self.choice = self.choice.observe(members, (took,) * len(paces), self.size)
            if len(self.counts) % EVERY == 0:
                before = self.pieces
                self.pieces, self.choice = self.choice.look(self.balance, before, self.size)
                if self.pieces != before:
                    self.told.append(self.pieces)
        return self


@pytest.mark.parametrize("seed", range(5))
def test_more_pieces_are_kept_where_steps_get_shorter(seed: int) -> None:
    cluster = Cluster(seed=seed).train((1.0, 4.0), 0.5, 400)
    assert cluster.told == [16]
    assert cluster.counts.index(16) == EVERY


@pytest.mark.parametrize("seed", range(5))
def test_more_pieces_are_given_back_where_each_costs_much_and_are_not_tried_again(seed: int) -> None:
    cluster = Cluster(seed=seed).train((1.0, 2.0), 64.0, 2_000)
    assert cluster.told == [16, 8, 4, 2]
    assert cluster.counts.count(16) == EVERY


def test_where_very_many_cost_too_much_fewer_may_still_pay() -> None:
    assert Cluster().train((1.0, 4.0), 12.0, 400).told == [16, 8]


def test_without_the_trial_they_stay_and_everything_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(piece_choice, "PAYS", 99.0)
    assert Cluster().train((1.0, 4.0), 64.0, 2_000).told == [16]


def test_more_pieces_are_given_back_where_their_exchange_costs_more_than_they_save() -> None:
    cluster = Cluster().train((1.0, 4.0), 0.5, 2_000, link=40.0)
    assert cluster.told == [16, 8, 4, 2]


@pytest.mark.parametrize("codec", [AS_THEY_ARE, ErrorFeedback(TopK(0.01))], ids=["as they are", "top-k"])
def test_training_judges_whole_steps_and_with_residuals_leaves_pieces_as_they_are(codec: AbstractCodec) -> None:
    seen: list[tuple[float, ...]] = []
    shared = Shared(8, 2, MEMBERS, ((0, 1), (1, 2)))
    notes = [Note(7, seconds=1.0, took=5.0), Note(7, seconds=2.0, took=6.0)]
    training: Any = object.__new__(SynchronousTraining)
    training._fixed_pieces = fixes_pieces(False, codec)
    training._division = Division(2)
    choice = SimpleNamespace(observe=lambda members, seconds, size: seen.append(seconds))
    training._at = SimpleNamespace(piece_choice=choice, total=7)
    training._consider_pieces([Exchanged([], notes, shared, None)])
    assert seen == ([(5.0, 6.0)] if codec is AS_THEY_ARE else [])
    assert fixes_pieces(True, codec)


def test_a_worker_that_does_not_know_how_long_its_step_was_is_waited_for() -> None:
    choice = PieceChoice(MEMBERS).observe(MEMBERS, (1.0, 0.0), 8)
    assert choice == PieceChoice(MEMBERS)


@pytest.mark.parametrize("paces", [(1.0, 1.0), (1.0, 1.4), (1.0,)])
def test_nothing_is_tried_where_workers_are_nearly_equal_or_alone(paces: tuple[float, ...]) -> None:
    assert Cluster().train(paces, 0.5, 400).told == []


def test_they_are_tried_again_with_other_members() -> None:
    cluster = Cluster().train((1.0, 2.0), 64.0, 200)
    assert cluster.choice.is_over
    cluster.train((1.0, 4.0, 4.0), 0.5, 200)
    assert not cluster.choice.is_over
    assert cluster.told[-1] > 4


def test_a_trial_is_judged_by_nobody_whose_members_have_changed() -> None:
    choice = PieceChoice(MEMBERS, (1.0,) * 11, fewer=2, before=0.1)
    changed = choice.observe(("worker-0",), (1.0,), 8)
    assert changed == PieceChoice(("worker-0",), (1.0 / 8,))


def test_too_few_steps_say_nothing() -> None:
    choice = PieceChoice(MEMBERS, (1.0,) * 10, fewer=2, before=0.1)
    assert choice.look(Balance.start(), 16, 64) == (16, choice)


def test_a_newcomer_that_is_told_it_decides_as_the_others_do() -> None:
    for steps in (15, 30, 50):
        cluster = Cluster(seed=steps).train((1.0, 4.0), 64.0, steps)
        told = msgspec.msgpack.decode(msgspec.msgpack.encode(cluster.choice), type=PieceChoice)
        assert told == cluster.choice

"""Steps of real companies: who computes what follows the notes, and the sum does not tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.collectives.crew import Crew, Mate

from shoal.codecs.codec import AsTheyAre
from shoal.collectives.abstract import AbstractGroup
from shoal.strategies.allreduce import Division, Exchanged, Reduction
from shoal.strategies.balance import Balance
from shoal.strategies.notes import Note
from shoal.strategies.schema import Array, Combine, Entry, Schema

PIECES, BATCH, STEPS = 10, 40, 30
SLOW = "worker-1"
SCHEMA = Schema([Entry("gradient", Combine.SUM, "float32", (64,))])


class Task:
    """A worker's part of a step, on a clock of its own: it takes 4 times as long if it is the slow one."""

    def __init__(self, me: str, step: int, computed: list[int]) -> None:
        self._seconds_per_piece = 0.4 if me == SLOW else 0.1
        self._step = step
        self._computed = computed
        self._count = 0

    def take(self, split: Callable[[int], Sequence[range]], group: AbstractGroup) -> int | None:
        self._count = 0
        return BATCH

    def compute(self, piece: int, low: int, high: int) -> Sequence[Array]:
        self._count += 1
        return [np.random.default_rng((self._step, piece)).normal(size=64).astype("float32")]

    def note(self) -> Note:
        self._computed.append(self._count)
        return Note(self._step, seconds=self._count * self._seconds_per_piece)


def steps(mate: Mate) -> tuple[list[bytes], list[int], Balance]:
    """The totals of all steps, how many pieces this worker computed in each, and what it knows in the end."""
    computed: list[int] = []
    totals = []
    division = Division(PIECES)
    reduction = Reduction(mate.worker_group, SCHEMA, division, "test")
    for step in range(STEPS):
        exchanged = reduction.step(f"step {step}", Task(mate.id, step, computed))
        assert isinstance(exchanged, Exchanged)
        totals.append(exchanged.totals[0].tobytes())
        division.learn([exchanged])
    reduction.close()
    return totals, computed, division.balance


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The totals that one worker finds."""
    crew = Crew(tmp_path_factory.mktemp("a"), 1)
    try:
        return crew.play_alike(steps)[0][0]  # type: ignore[no-any-return]
    finally:
        crew.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_slow_worker_gets_fewer_pieces_and_the_sums_keep_their_bits(
    tmp_path: Path, alone: list[bytes], transport: str
) -> None:
    crew = Crew(tmp_path, 2, transport)  # type: ignore[arg-type]
    try:
        results = crew.play_alike(steps)
    finally:
        crew.close()
    (fast_totals, fast, fast_knows), (slow_totals, slow, slow_knows) = results[0], results[1]
    assert fast_totals == slow_totals == alone
    assert fast_knows == slow_knows, "all conclude the same"
    assert (fast[0], slow[0]) == (5, 5)
    assert (fast[-1], slow[-1]) == (8, 2)
    changes = [step for step in range(1, STEPS) if slow[step] != slow[step - 1]]
    assert len(changes) == 1, "once, and not back and forth"
    assert changes[0] <= 10


def test_without_balance_the_slow_one_would_keep_its_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The witness of the test above."""
    monkeypatch.setattr(Balance, "observe", lambda self, *_: self)
    crew = Crew(tmp_path, 2)
    try:
        _, slow, _ = crew.play_alike(steps)[1]
    finally:
        crew.close()
    assert slow == [5] * STEPS


def test_with_the_identity_exchanges_are_those_without_a_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a codec is ever called, not even the shapes."""
    for verb in ("shapes", "encode", "decode", "add"):
        monkeypatch.setattr(AsTheyAre, verb, None)
    crew = Crew(tmp_path, 2)
    try:
        totals = [totals for totals, _, _ in crew.play_alike(steps).values()]
    finally:
        crew.close()
    assert totals[0] == totals[1]

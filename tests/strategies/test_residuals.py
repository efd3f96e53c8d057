"""Steps with a codec that has residuals, among real worker groups. A residual belongs to its piece: it goes with it
from worker to worker and from host to host, and outlives who computed it. So the bits are the same for any workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, starmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.collectives.crew import DEAD, Crew, Dies, Mate

from shoal.codecs.codec import AbstractCodec
from shoal.codecs.feedback import ErrorFeedback
from shoal.codecs.lossy import LowRank, TopK
from shoal.collectives.abstract import AbstractGroup, Result
from shoal.collectives.residuals import Residuals
from shoal.errors import UsageError
from shoal.strategies.allreduce import Division, Reduction
from shoal.strategies.notes import Note
from shoal.strategies.schema import Array, Combine, Entry, Schema
from shoal.training.left_out import refuse_own_folders
from shoal.training.replica_states import ReplicaStates
from shoal.training.streamed import StreamedTraining

PIECES, BATCH, STEPS = 5, 50, 6
SCHEMA = Schema(
    [
        Entry("kernel", Combine.SUM, "float32", (90, 100)),
        Entry("bias", Combine.SUM, "float32", (10,)),
        Entry("moving mean", Combine.MEAN, "float32", (30,)),
        Entry("count", Combine.SUM, "int64", (6,)),
    ],
    gradients=2,
)
CODECS = pytest.mark.parametrize(
    "codec", [ErrorFeedback(TopK(0.01)), ErrorFeedback(TopK(0.02, "int8")), ErrorFeedback(LowRank(2))], ids=repr
)
TOPK = ErrorFeedback(TopK(0.01))
DiesAt = Callable[[str, int, int], bool]


def nobody(member: str, step: int, piece: int) -> bool:
    return False


class Task:
    def __init__(
        self, me: str, step: int, dies: DiesAt, overflows: tuple[int, ...] = (), stops: tuple[int, ...] = ()
    ) -> None:
        self._me = me
        self._step = step
        self._dies = dies
        self._overflows = self._step in overflows
        self._stops = self._step in stops and me == "worker-0"

    def take(self, split: Callable[[int], Sequence[range]], group: AbstractGroup) -> int | None:
        return BATCH if self._step != 3 else 3  # a short batch: three pieces of one row

    def compute(self, piece: int, low: int, high: int) -> Sequence[Array]:
        if self._dies(self._me, self._step, piece):
            raise Dies
        random = np.random.default_rng((self._step, piece))
        arrays = [(random.standard_normal(entry.shape) * 30).astype(entry.dtype) for entry in SCHEMA.entries]
        if self._overflows and piece == 1:
            arrays[0][3, 5] = np.inf
        return arrays

    def note(self) -> Note:
        return Note(self._step, stop=self._stops)


class Moving:
    """Shares that are others in every step: so do pieces move among unequal workers."""

    def __init__(self, step: int) -> None:
        self._step = step

    def shares(self, pieces: int, members: tuple[str, ...], size: int = 0) -> tuple[range, ...]:
        cuts = sorted((rank * (self._step + 2)) % (pieces + 1) for rank in range(1, len(members)))
        return tuple(starmap(range, pairwise([0, *cuts, pieces])))


def train(
    mate: Mate,
    codec: AbstractCodec,
    dies: DiesAt,
    lost: list[int],
    run: range = range(STEPS),
    saved: dict[int, list[Array]] | None = None,
) -> list[list[bytes]]:
    """The totals of all steps of the `run`. It begins with what is `saved`, or leaves it there if it is the first."""
    division = Division(PIECES)
    reduction = Reduction(mate.worker_group, SCHEMA, division, "test", codec=codec, on_lost=lost.extend)
    totals = []
    try:
        if run.start and saved is not None:
            reduction.go_on_with(lambda pieces: {piece: saved[piece] for piece in pieces if piece in saved})
        for step in run:
            division.balance = Moving(step)  # type: ignore[assignment]
            exchanged = reduction.step(f"step {step}", Task(mate.id, step, dies))
            assert exchanged is not None
            totals.append([total.tobytes() for total in exchanged.totals])
        if not run.start and saved is not None:
            mine = {piece: [array.copy() for array in arrays] for piece, arrays in reduction.left_out().items()}
            assert not mine.keys() & saved.keys()
            saved |= mine
    finally:
        reduction.close()
    return totals


def played(
    folder: Path,
    codec: AbstractCodec,
    workers: int,
    hosts: str = "",
    transport: Any = "shm",
    dies: DiesAt = nobody,
    run: range = range(STEPS),
    saved: dict[int, list[Array]] | None = None,
) -> tuple[list[list[bytes]], list[list[int]]]:
    """What the survivors found, and of which slots each was told that their residuals are lost."""
    folder.mkdir(exist_ok=True)
    crew = Crew(folder, workers, transport, hosts=hosts)
    losses: dict[str, list[int]] = {mate.id: [] for mate in crew.mates.values()}
    try:
        found = crew.play_alike(lambda mate: train(mate, codec, dies, losses[mate.id], run, saved))
    finally:
        crew.close()
    survivors = [totals for totals in found.values() if totals != DEAD]
    assert all(isinstance(totals, list) for totals in survivors), survivors
    assert survivors == [survivors[0]] * len(survivors)
    return survivors[0], [losses[f"worker-{number}"] for number, totals in found.items() if totals != DEAD]


def once(member: str, step: int) -> DiesAt:
    """A worker dies as soon as it has something to compute in this step or later."""
    return lambda me, at, piece: me == member and at >= step


@pytest.mark.parametrize("way", ["overflows", "stops"])
@pytest.mark.parametrize("workers", [1, 2])
def test_of_a_step_that_does_not_count_no_pieces_residual_is_kept(tmp_path: Path, way: str, workers: int) -> None:
    """Also of those pieces that were finite, and of who had nothing to stop for."""
    crew = Crew(tmp_path, workers, "shm")

    def train(mate: Mate, **unlucky: tuple[int, ...]) -> list[list[bytes]]:
        reduction = Reduction(mate.worker_group, SCHEMA, Division(PIECES), "test", codec=TOPK)
        totals = []
        try:
            for step in range(4):
                if step == 2 and not unlucky:
                    continue
                task = Task(mate.id, step, nobody, **unlucky)
                stops = step in unlucky.get("stops", ()) and mate.id == "worker-0"
                exchanged = reduction.step(f"step {step}", task, stops=stops)
                assert exchanged is not None
                totals.append([total.tobytes() for total in exchanged.totals])
        finally:
            reduction.close()
        return totals

    try:
        without = crew.play_alike(train)
        found = crew.play_alike(lambda mate: train(mate, **{way: (2,)}))
    finally:
        crew.close()
    for mate, totals in found.items():
        assert [*totals[:2], totals[3]] == without[mate]


@pytest.mark.parametrize("stops", [False, True])
def test_of_a_round_that_does_not_count_the_fragment_leaves_nothing_either(stops: bool) -> None:
    """The fragment's own notes are of an exchange in the middle of the round, and know nothing of its end."""
    counted: list[tuple[str, bool]] = []

    class Part:
        def __init__(self, name: str) -> None:
            self._name = name

        def exchanged(self, result: Any, counts: bool = True) -> Any:
            counted.append((self._name, counts))
            return SimpleNamespace(notes=[Note(4, stop=stops)] if self._name == "round" else [Note(4)])

    training: Any = object.__new__(StreamedTraining)
    training._at = SimpleNamespace(step=4)
    training._schedule = SimpleNamespace(during=lambda step: 0)
    training._reduction, training._fragments = Part("round"), [Part("fragment")]
    assert training._exchanged(Result([b"", b"", b"", b""], [np.zeros(1)] * 8)).notes == [Note(4, stop=stops)]
    assert counted == [("round", True), ("fragment", not stops)]


def test_if_all_who_hosted_replicas_are_lost_that_is_told_and_all_begin_with_what_the_model_has() -> None:
    told: list[Any] = []
    states = ReplicaStates(Any, [], 2, lambda lost, giver: told.append((list(lost), giver)))  # type: ignore[arg-type]
    group: Any = SimpleNamespace(settle=lambda kept, shares: None)
    states.settle(group, (range(2),))
    assert told == [], "before the first round nothing is kept"
    states.are_kept = True
    for _ in range(2):
        states.settle(group, (range(2),))
    assert told == [([0, 1], None)]
    assert not states.are_kept
    training: Any = object.__new__(StreamedTraining)
    training._states = states
    assert [value.tolist() for value in training._own(0, [np.arange(3), np.ones(1)])] == [[0, 1, 2], [1.0]]


def test_checkpoints_that_could_not_hold_what_is_left_out_are_refused_before_training() -> None:
    parts: Any = [SimpleNamespace(sizes_left_out=None), SimpleNamespace(sizes_left_out=(9000, 10))]
    run: Any = SimpleNamespace(saving=object(), own_folder="host-a")
    with pytest.raises(UsageError, match="what a codec has left out can't be in checkpoints of this run"):
        refuse_own_folders(run, parts)
    refuse_own_folders(run, parts[:1])
    run.own_folder = None
    refuse_own_folders(run, parts)


@CODECS
def test_what_is_left_out_comes_later(tmp_path: Path, codec: AbstractCodec) -> None:
    """The witness: each piece's gradients through the codec, one piece after another."""
    totals, _ = played(tmp_path, codec, 1)
    states: dict[int, Any] = {}
    for step in range(STEPS):
        pieces = PIECES if step != 3 else 3
        sums = [np.zeros((90, 100), np.float32), np.zeros(10, np.float32)]
        for piece in range(pieces):
            arrays = Task("witness", step, nobody).compute(piece, 0, 1)[:2]
            sent, states[piece] = codec.encode(arrays, states.get(piece))
            codec.add(sent, sums)
        assert [total.tobytes() for total in sums] == totals[step][:2]


@CODECS
@pytest.mark.parametrize(
    ("workers", "hosts", "transport"), [(2, "", "shm"), (3, "", "tcp"), (4, "aabb", "shm"), (3, "aba", "shm")]
)
def test_any_number_of_workers_on_any_hosts_find_the_same_bits(
    tmp_path: Path, codec: AbstractCodec, workers: int, hosts: str, transport: str
) -> None:
    alone, _ = played(tmp_path / "one", codec, 1)
    assert played(tmp_path, codec, workers, hosts, transport) == (alone, [[]] * workers)


@pytest.mark.parametrize(("workers", "hosts"), [(3, ""), (4, "aabb"), (2, "")])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_killed_worker_takes_no_residual_with_it(tmp_path: Path, workers: int, hosts: str, step: int) -> None:
    alone, _ = played(tmp_path / "one", TOPK, 1)
    found, lost = played(tmp_path, TOPK, workers, hosts, dies=once("worker-1", step))
    assert found == alone
    assert lost == [[]] * (workers - 1)


def test_the_residuals_of_a_lost_host_are_zero_for_everybody_and_that_is_told(tmp_path: Path) -> None:
    alone, _ = played(tmp_path / "one", TOPK, 1)
    found, lost = played(tmp_path, TOPK, 3, "aab", dies=once("worker-2", 2))
    assert found[:2] == alone[:2]
    assert found[2][0] != alone[2][0]
    assert lost[0]
    assert lost == [lost[0]] * 2


@CODECS
@pytest.mark.parametrize(
    ("before", "after"), [((1, ""), (3, "")), ((4, "aabb"), (2, "ab")), ((3, "aba"), (1, ""))], ids=str
)
@pytest.mark.parametrize("step", [2, 4])
def test_what_is_left_out_goes_on_from_a_checkpoint_on_any_other_workers(
    tmp_path: Path, codec: AbstractCodec, before: tuple[int, str], after: tuple[int, str], step: int
) -> None:
    whole, _ = played(tmp_path / "one", codec, 1)
    saved: dict[int, list[Array]] = {}
    first, _ = played(tmp_path / "first", codec, *before, run=range(step), saved=saved)
    assert sorted(saved) == list(range(PIECES)), "each piece's, once"
    kept = saved.copy()
    second, _ = played(tmp_path / "second", codec, *after, run=range(step, STEPS), saved=kept)
    assert [*first, *second] == whole
    without, _ = played(tmp_path / "without", codec, *after, run=range(step, STEPS))
    assert without != second, "the control: what was left out matters"


def test_a_checkpoint_after_a_worker_was_lost_has_every_pieces_residual(tmp_path: Path) -> None:
    saved: dict[int, list[Array]] = {}
    played(tmp_path / "first", TOPK, 3, dies=once("worker-1", 2), run=range(3), saved=saved)
    assert sorted(saved) == list(range(PIECES))


def test_the_control_residuals_that_stay_with_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As other systems have it: the bits depend on who computed what, and the tests above would see it."""
    own: dict[int, list[Array]] = {}  # by worker

    def begin(self: Residuals, slot: int) -> tuple[list[Array] | None, list[Array]]:
        before = own.get(id(self))
        own[id(self)] = [np.zeros(size, np.float32) for size in self._sizes]
        return before, own[id(self)]

    monkeypatch.setattr(Residuals, "begin", begin)
    monkeypatch.setattr(Residuals, "end", lambda self, slot: None)
    one, two = (played(tmp_path / str(workers), TOPK, workers)[0] for workers in (1, 2))
    assert one != two

"""Steps with a codec that rounds, among real worker groups: the totals are the same bits for any workers on any
hosts, also when one of them dies in the middle of a step. Processes do the same in tests/hook/test_compressed.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.collectives.crew import DEAD, Crew, Dies, Mate

from shoal.codecs.choice import codec_of
from shoal.codecs.rounding import AbstractRounding
from shoal.collectives.abstract import AbstractGroup
from shoal.collectives.tree import Node, split
from shoal.strategies.allreduce import Division, Reduction
from shoal.strategies.notes import Note
from shoal.strategies.partial_sums import PartialSums
from shoal.strategies.schema import Array, Combine, Entry, Schema

PIECES, BATCH, STEPS = 7, 70, 3
SCHEMA = Schema(
    [
        Entry("kernel", Combine.MEAN, "float32", (90_001,)),
        Entry("bias", Combine.SUM, "float32", (10,)),
        Entry("half", Combine.SUM, "float16", (600,)),
        Entry("double", Combine.SUM, "float64", (700,)),
        Entry("moving mean", Combine.MEAN, "float32", (3000,)),
        Entry("count", Combine.SUM, "int64", (600,)),
    ],
    gradients=4,
)
CODECS = pytest.mark.parametrize("codec", ["bf16", "int8"])


class Task:
    def __init__(self, step: int, dies: Callable[[int, int], bool] = lambda step, piece: False) -> None:
        self._step = step
        self._dies = dies

    def take(self, split: Callable[[int], Sequence[range]], group: AbstractGroup) -> int | None:
        return BATCH

    def compute(self, piece: int, low: int, high: int) -> Sequence[Array]:
        if self._dies(self._step, piece):
            raise Dies
        return arrays(self._step, piece)

    def note(self) -> Note:
        return Note(self._step)


def arrays(step: int, piece: int) -> list[Array]:
    random = np.random.default_rng((step, piece))
    return [(random.standard_normal(entry.shape) * 30).astype(entry.dtype) for entry in SCHEMA.entries]


def train(
    mate: Mate, codec: str, dies: Callable[[int, int], bool] = lambda step, piece: False, then: str = ""
) -> list[list[bytes]]:
    """The totals of all steps. `then`: the codec of the last of them."""
    reduction = Reduction(mate.worker_group, SCHEMA, Division(PIECES), "test", codec=codec_of(codec, "test"))
    totals = []
    known: dict[int, list[int]] = {}
    for step in range(STEPS):
        if then and step == STEPS - 1:
            reduction.round_like(codec_of(then, "test"))
        exchanged = reduction.step(f"step {step}", Task(step, dies))
        assert exchanged is not None
        totals.append([total.tobytes() for total in exchanged.totals])
        places = [total.ctypes.data for total in exchanged.totals]
        # Backends keep hold of where totals lie, by the first.
        assert places == known.setdefault(places[0], places)
    reduction.close()
    return totals


def played(folder: Path, codec: str, workers: int, hosts: str = "", transport: Any = "shm", **more: Any) -> Any:
    crew = Crew(folder, workers, transport, hosts=hosts)
    try:
        found = crew.play_alike(lambda mate: train(mate, codec, **more))
    finally:
        crew.close()
    survivors = [totals for totals in found.values() if totals != DEAD]
    assert all(isinstance(totals, list) for totals in survivors), survivors
    assert survivors == [survivors[0]] * len(survivors)
    return survivors[0], len(survivors)


def rounded_sum(rounding: AbstractRounding, values: Callable[[int], Array], node: Node) -> Array:
    """The witness: every node of the tree, rounded."""
    if node.hi - node.lo == 1:
        exact = values(node.lo).astype(np.float32)
    else:
        left, right = split(node)
        exact = rounded_sum(rounding, values, left) + rounded_sum(rounding, values, right)
    records = np.zeros(rounding.records(exact.size), rounding.record)
    rounding.encode(exact, records)
    rounding.decode(records, exact := np.empty_like(exact))
    return exact


@CODECS
def test_every_node_of_the_tree_is_rounded_and_nothing_else_is(tmp_path: Path, codec: str) -> None:
    rounding = codec_of(codec, "test").rounding
    assert rounding is not None
    totals, _ = played(tmp_path, codec, 1)
    weight = np.float32(1 / PIECES)
    root = Node(0, PIECES)

    def values(entry: int, step: int) -> Callable[[int], Array]:
        return lambda piece: arrays(step, piece)[entry] * (weight if entry == 0 else np.float32(1))

    for step in range(STEPS):
        kernel, bias, half, double, moving, count = (
            np.frombuffer(total, {"float16": "float32"}.get(entry.dtype, entry.dtype))
            for total, entry in zip(totals[step], SCHEMA.entries, strict=True)
        )
        for found, entry in ((kernel, 0), (half, 2), (double, 3)):
            assert (found == rounded_sum(rounding, values(entry, step), root)).all(), SCHEMA.entries[entry].name
        exact = [np.sum([arrays(step, p)[entry] for p in range(PIECES)], axis=0, dtype=float) for entry in (1, 4, 5)]
        assert bias == pytest.approx(exact[0], rel=1e-5, abs=1e-4)
        assert moving == pytest.approx(exact[1] / PIECES, rel=1e-5, abs=1e-4)
        assert (count == exact[2]).all()


@CODECS
@pytest.mark.parametrize(
    ("workers", "hosts", "transport"),
    [(2, "", "shm"), (3, "", "tcp"), (4, "aabb", "shm"), (4, "abab", "shm"), (3, "aab", "shm"), (5, "", "shm")],
)
def test_any_number_of_workers_on_any_hosts_find_the_same_bits(
    tmp_path: Path, codec: str, workers: int, hosts: str, transport: str
) -> None:
    (tmp_path / "one").mkdir()
    alone, _ = played(tmp_path / "one", codec, 1)
    assert played(tmp_path, codec, workers, hosts, transport) == (alone, workers)


@CODECS
@pytest.mark.parametrize("hosts", ["", "aab"])
def test_a_worker_that_dies_in_the_middle_of_a_step_leaves_no_trace(tmp_path: Path, codec: str, hosts: str) -> None:
    (tmp_path / "one").mkdir()
    alone, _ = played(tmp_path / "one", codec, 1)
    died: list[int] = []

    def dies(step: int, piece: int) -> bool:
        if step != 1 or piece != PIECES - 1 or died:
            return False
        died.append(piece)
        return True

    assert played(tmp_path, codec, 3, hosts, dies=dies) == (alone, 2)


def test_a_codec_that_is_changed_between_two_steps_rounds_from_then_on(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("auto", "two", "int8")}
    for folder in folders.values():
        folder.mkdir()
    alone, _ = played(folders["auto"], "auto", 1, then="int8")
    assert played(folders["two"], "auto", 2, then="int8") == (alone, 2)
    assert alone[-1] == played(folders["int8"], "int8", 1)[0][-1]


@CODECS
def test_the_control_rounding_what_a_worker_happens_to_hold(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits then depend on how many workers there are, and the tests above would see it."""

    def fill(self: PartialSums, slot: Any, node: Node, piece: Any) -> None:
        places = self._schema.views(slot)
        for number, place in enumerate(places):
            if self._schema.places[number][0] == "rounded":
                weighted = [np.float32(weight) * pieces[number] for pieces, weight in map(piece, range(*node))]
                self._round(place, np.sum(weighted, axis=0, dtype=np.float32).reshape(-1), 1.0)

    monkeypatch.setattr(PartialSums, "fill", fill)
    folders = [tmp_path / str(workers) for workers in (1, 3)]
    for folder in folders:
        folder.mkdir()
    one, three = (played(folder, codec, workers)[0] for folder, workers in zip(folders, (1, 3), strict=True))
    assert one[0][0] != three[0][0]

"""Tensors that are written in pieces are whole when they are read, or refused."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.checkpoint.drafts import Draft
from shoal.checkpoint.pieces import join, wholes
from shoal.checkpoint.publish import NotWritten, PublishedCheckpoint, publish
from shoal.checkpoint.read import load
from shoal.checkpoint.tensor_names import Piece, piece_of
from shoal.checkpoint.writer import Writer, Written

FIRST, SECOND = Piece("a/b", 0, 4, (2, 3)), Piece("a/b", 4, 6, (2, 3))


def listed(*pieces: Piece, dtype: str = "float32") -> list[tuple[str, str, tuple[int, ...]]]:
    return [(piece.name, dtype, (piece.stop - piece.start,)) for piece in pieces]


def test_a_name_says_which_piece_it_is():
    assert FIRST.name == "a/b[0:4 of 2x3]"
    assert piece_of(FIRST.name) == FIRST
    assert piece_of("a/b") is None
    assert piece_of("odd[3]") is None


def test_pieces_make_one_tensor():
    values = np.arange(6, dtype=np.float32)
    joined = join({SECOND.name: values[4:], "c": values, FIRST.name: values[:4]})
    assert joined.keys() == {"a/b", "c"}
    assert (joined["a/b"] == values.reshape(2, 3)).all()
    assert wholes([*listed(SECOND, FIRST), ("c", "int8", (1,))]) == {"a/b": ("float32", (2, 3)), "c": ("int8", (1,))}


@pytest.mark.parametrize(
    "tensors",
    [
        listed(FIRST),
        listed(SECOND),
        listed(FIRST, SECOND, Piece("a/b", 6, 8, (2, 3))),
        listed(FIRST, Piece("a/b", 3, 6, (2, 3))),
        listed(FIRST, Piece("a/b", 4, 6, (3, 2))),
        listed(FIRST) + listed(SECOND, dtype="float64"),
        [*listed(FIRST, SECOND), ("a/b", "float32", (2, 3))],
        [(FIRST.name, "float32", (5,)), *listed(SECOND)],
    ],
    ids=["no end", "no beginning", "too much", "overlap", "shapes", "types", "twice", "size"],
)
def test_pieces_that_do_not_fit_are_refused(tensors):
    with pytest.raises(ValueError, match="a/b"):
        wholes(tensors)


def written(folder, *parts) -> PublishedCheckpoint | NotWritten:
    draft, described = Draft(folder, "run", 1), []
    for number, arrays in enumerate(parts):
        writer = Writer()
        writer.begin(draft, number, arrays)
        outcome = writer.wait(10)
        assert isinstance(outcome, Written)
        described.append(outcome.part)
        writer.close()
    return publish(draft, described, {})


def test_a_tensor_in_pieces_of_two_writers_is_read_whole_and_what_is_not_wanted_is_not_read(tmp_path):
    values = np.arange(6, dtype=np.float32)
    outcome = written(tmp_path, {FIRST.name: values[:4], "d": values}, {SECOND.name: values[4:]}, {"e": values})
    assert isinstance(outcome, PublishedCheckpoint)
    found = load(outcome.path)
    assert (found.arrays["a/b"] == values.reshape(2, 3)).all()
    assert found.manifest.shapes == {"a/b": (2, 3), "d": (6,), "e": (6,)}
    (outcome.path / "part-002.safetensors").unlink()
    assert load(outcome.path, lambda name: name == "a/b").arrays.keys() == {"a/b"}


def test_a_checkpoint_that_lacks_a_piece_is_not_published(tmp_path):
    outcome = written(tmp_path, {FIRST.name: np.zeros(4, np.float32)})
    assert isinstance(outcome, NotWritten)
    assert "do not make one tensor" in outcome.why
    assert list(tmp_path.iterdir()) == []

"""What was written is what is read, bit for bit; and others can read it too."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from shoal.checkpoint.drafts import Draft, checkpoints
from shoal.checkpoint.dtypes import DTYPES
from shoal.checkpoint.image import Image, layout_of
from shoal.checkpoint.publish import NotWritten, PublishedCheckpoint, publish
from shoal.checkpoint.read import load, newest_whole, verify
from shoal.checkpoint.writer import Writer, Written
from shoal.errors import UsageError

from .scene import LIMIT, arrays_of, header_of, is_right, write

SHAPES = [(), (0,), (1,), (7,), (3, 5), (4, 0, 2), (2, 1, 3)]


def of_every_type() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        f"{dtype}/{i}/x": rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(DTYPES[dtype])
        for dtype in DTYPES
        for i, shape in enumerate(SHAPES)
    }


@pytest.fixture
def writer():
    writer = Writer()
    yield writer
    writer.close()


def written(writer: Writer, draft: Draft, arrays: dict[str, np.ndarray], number: int = 0) -> Written:
    writer.begin(draft, number, arrays)
    outcome = writer.wait(LIMIT)
    assert isinstance(outcome, Written), outcome
    return outcome


def test_every_type_and_shape_comes_back_as_it_was(tmp_path, writer):
    draft, arrays = Draft(tmp_path, "r1", 3), of_every_type()
    arrays["special"] = np.array([np.nan, -0.0, np.inf, 5e-324])
    part = written(writer, draft, arrays).part
    published = publish(draft, [part], {"any": ["document", 1, None, 0.1]})
    loaded = load(published.path)
    assert loaded.header == {"any": ["document", 1, None, 0.1]}
    assert loaded.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded.arrays[name].dtype == array.dtype
        assert loaded.arrays[name].shape == array.shape
        assert loaded.arrays[name].tobytes() == array.tobytes()


def test_the_safetensors_package_reads_a_part(tmp_path, writer):
    draft, arrays = Draft(tmp_path, "r1", 3), of_every_type()
    written(writer, draft, arrays)
    witness = load_file(draft.path / "part-000.safetensors")
    assert witness.keys() == arrays.keys()
    assert all(np.array_equal(witness[name], array) for name, array in arrays.items())
    assert witness["bfloat16/3/x"].dtype == ml_dtypes.bfloat16


def test_any_layout_of_memory_can_be_given(tmp_path, writer):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = {"transposed": base.T, "strided": base[::2, ::3], "big endian": base.astype(">f4")}
    draft = Draft(tmp_path, "r1", 0)
    path = publish(draft, [written(writer, draft, arrays).part], {}).path
    loaded = load(path).arrays
    assert all(np.array_equal(loaded[name], array) for name, array in arrays.items())


@pytest.mark.parametrize("members", [1, 2, 5])
def test_the_parts_of_any_number_of_members_are_one_checkpoint(tmp_path, members):
    path = write(tmp_path, 1234, members)
    assert path == tmp_path / "step-000001234"
    assert sorted(file.name for file in path.iterdir()) == [
        "manifest.json",
        *(f"part-{number:03}.safetensors" for number in range(members)),
    ]
    assert is_right(load(path))
    assert newest_whole(tmp_path) == (path, [])


def test_the_manifest_says_what_is_where(tmp_path):
    path = write(tmp_path, 7)
    manifest = json.loads((path / "manifest.json").read_text())["manifest"]
    assert (manifest["format"], manifest["run"], manifest["step"], manifest["header"]) == (1, "r1", 7, header_of(7))
    listed = {tensor["name"]: (tensor["dtype"], tuple(tensor["shape"])) for tensor in manifest["tensors"]}
    assert listed == {name: (array.dtype.name, array.shape) for name, array in arrays_of(7).items()}
    assert {part["name"]: part["nbytes"] for part in manifest["parts"]} == {
        file.name: file.stat().st_size for file in path.glob("*.safetensors")
    }


def test_training_may_change_its_arrays_as_soon_as_begin_has_returned(tmp_path, writer):
    draft, arrays = Draft(tmp_path, "r1", 5), arrays_of(5)
    writer.begin(draft, 0, arrays)
    for array in arrays.values():
        array[...] = 0
    path = publish(draft, [writer.wait(LIMIT).part], header_of(5)).path
    assert is_right(load(path))


def test_the_copys_memory_is_kept_from_checkpoint_to_checkpoint(tmp_path, writer):
    writer.prepare(arrays_of(1))
    first = writer._image
    written(writer, Draft(tmp_path, "r1", 1), arrays_of(1))
    assert writer._image is first
    written(writer, Draft(tmp_path, "r1", 2), arrays_of(2))
    assert writer._image is first
    written(writer, Draft(tmp_path, "r1", 3), {"other": np.zeros(3)})
    assert writer._image is not first


def test_the_chief_publishes_in_the_background(tmp_path, writer):
    draft = Draft(tmp_path, "r1", 5)
    part = written(writer, draft, arrays_of(5)).part
    assert checkpoints(tmp_path) == []
    writer.publish(draft, [part], header_of(5))
    assert writer.wait(LIMIT) == PublishedCheckpoint(tmp_path / "step-000000005")
    assert is_right(load(tmp_path / "step-000000005"))


def test_tensors_lie_where_their_types_want_them():
    image = Image(layout_of(of_every_type()))
    assert all(tensor.flags.aligned for tensor in image._tensors)


def test_what_no_checkpoint_can_hold_is_refused(tmp_path, writer):
    with pytest.raises(UsageError, match=r"can't hold the tensor 'words' of type str"):
        writer.begin(Draft(tmp_path, "r1", 0), 0, {"words": np.array(["a"])})


@pytest.mark.parametrize("header", [{"x": object()}, {"x": {1, 2}, "y": 1j}])
def test_a_header_that_is_no_json_is_refused_and_the_draft_goes(tmp_path, writer, header):
    draft = Draft(tmp_path, "r1", 0)
    part = written(writer, draft, arrays_of(0)).part
    with pytest.raises(UsageError, match="must be a JSON document"):
        publish(draft, [part], header)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("run", ["", "../elsewhere", "a/b", ".hidden", "x" * 200, "a\n"])
def test_a_run_whose_name_can_not_be_a_files_is_refused(tmp_path, run):
    with pytest.raises(UsageError, match="can't be part of a file's name"):
        Draft(tmp_path, run, 0)


def test_a_draft_with_a_part_that_is_not_as_told_is_no_checkpoint(tmp_path, writer):
    draft = Draft(tmp_path, "r1", 4)
    part = written(writer, draft, arrays_of(4)).part
    with (draft.path / part.name).open("ab") as file:
        file.write(b"more")
    outcome = publish(draft, [part], {})
    assert isinstance(outcome, NotWritten)
    assert "no checkpoint of step 4" in outcome.why
    assert "its writer told" in outcome.why
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_may_be_moved_and_renamed(tmp_path):
    moved = write(tmp_path, 3).rename(tmp_path / "best")
    assert is_right(load(moved))
    assert verify(moved).step == 3

"""Whatever happens to its files: a checkpoint is read as it was written, or refused with a reason."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from shoal.checkpoint import manifest
from shoal.checkpoint.read import load, newest_whole, verify
from shoal.errors import BadCheckpoint

from .scene import is_right, write

SEEDS = 400


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("sound"), 20, size=100)


@pytest.fixture
def folder(tmp_path: Path, sound: Path) -> Path:
    """Two checkpoints: an older one that stays sound, and one to be damaged."""
    write(tmp_path, 10, size=100)
    shutil.copytree(sound, tmp_path / sound.name)
    return tmp_path


def is_refused(path: Path) -> str:
    """Why both `verify` and `load` refuse it."""
    with pytest.raises(BadCheckpoint, match="is not a whole checkpoint") as first:
        verify(path)
    with pytest.raises(BadCheckpoint) as second:
        load(path)
    assert second.value.path == path
    assert second.value.why == first.value.why
    return first.value.why


def damage(rng: random.Random, path: Path) -> str:
    """Does something to a file of a checkpoint, and tells what."""
    file = rng.choice(sorted(path.iterdir()))
    data = bytearray(file.read_bytes())
    what = rng.choice(["cut", "flip", "flip", "flip", "zero", "grow", "remove", "swap"])
    if what == "cut":
        data = data[: rng.randrange(len(data))]
    elif what == "flip":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif what == "zero":  # a block that never reached the disk
        start = rng.randrange(len(data))
        data[start : start + 512] = bytes(len(data[start : start + 512]))
    elif what == "grow":
        data += rng.randbytes(rng.randrange(1, 100))
    elif what == "remove":
        file.unlink()
        return f"{file.name} removed"
    else:
        other = rng.choice([other for other in sorted(path.iterdir()) if other != file])
        data = bytearray(other.read_bytes())
    if bytes(data) == file.read_bytes():  # zeros over zeros
        data[-2] ^= 1
    file.write_bytes(data)
    return f"{file.name}: {what}"


def test_no_damage_is_ever_read(folder, sound):
    target = folder / sound.name
    for seed in range(SEEDS):
        shutil.rmtree(target)
        shutil.copytree(sound, target)
        done = damage(random.Random(seed), target)
        why = is_refused(target)
        assert why, f"seed {seed}: {done}"
        newest, skipped = newest_whole(folder)
        assert newest == folder / "step-000000010", f"seed {seed}: {done}"
        assert skipped == [(target, why)], f"seed {seed}: {done}"
    assert is_right(load(newest), size=100)


def test_a_sound_copy_is_read(folder, sound):
    """The control: without damage the newest is taken."""
    assert newest_whole(folder) == (folder / sound.name, [])
    assert is_right(load(folder / sound.name), size=100)


def test_no_folder_or_an_empty_one_has_no_checkpoint(tmp_path):
    assert newest_whole(tmp_path) == (None, [])
    assert newest_whole(tmp_path / "nowhere") == (None, [])
    assert "there is no such folder" in is_refused(tmp_path / "nowhere")


def test_names_that_are_not_checkpoints_are_left_alone(folder):
    (folder / "step-12").mkdir()
    (folder / "step-000000099x").mkdir()
    (folder / ".draft-r1-000000099-0").mkdir()
    newest, skipped = newest_whole(folder)
    assert (newest, skipped) == (folder / "step-000000020", [])


def test_a_checkpoint_under_another_steps_name_is_refused(folder):
    renamed = (folder / "step-000000020").rename(folder / "step-000000030")
    assert "is of step 20, the folder's name says 30" in is_refused(renamed)


# Hostile ones: the manifest's digest is right, since whoever writes a file can hash it too.


def forge(path: Path, **changes: Any) -> None:
    file = path / manifest.FILE
    content = json.loads(file.read_text())["manifest"] | changes
    inner = json.dumps(content)
    digest = hashlib.sha256(inner.encode()).hexdigest()
    file.write_text(f'{{"digest":"{digest}","manifest":{inner}}}')


def parts_of(path: Path) -> list[dict[str, Any]]:
    return json.loads((path / manifest.FILE).read_text())["manifest"]["parts"]


def tensors_of(path: Path) -> list[dict[str, Any]]:
    return json.loads((path / manifest.FILE).read_text())["manifest"]["tensors"]


def test_a_forged_manifest_that_is_in_order_is_read(folder):
    """The control: it is not the forging itself that is refused below."""
    forge(folder / "step-000000020")
    assert is_right(load(folder / "step-000000020"), size=100)


@pytest.mark.parametrize(
    "name",
    [
        "../step-000000010/part-000.safetensors",
        "/etc/passwd",
        "part-000.safetensors\n",
        "./part-000.safetensors",
        "..",
        "",
        "part-000.safetensors\0",
        "manifest.json",
        "PART-000.safetensors",
        "part-٠٠٠.safetensors",
    ],
)
def test_a_part_is_a_plain_file_in_the_folder(folder, name):
    path = folder / "step-000000020"
    first, *others = parts_of(path)
    tensors = [tensor | {"part": name} if tensor["part"] == first["name"] else tensor for tensor in tensors_of(path)]
    forge(path, parts=[first | {"name": name}, *others], tensors=tensors)
    assert "is not a manifest" in is_refused(path)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": 2}, "is of format 2, this version of Shoal reads format 1"),
        ({"format": "1"}, "Expected `int`"),
        ({"run": "../x"}, "is not a manifest"),
        ({"step": -1}, "is not a manifest"),
        ({"step": 2**63}, "is not a manifest"),
        ({"step": 20.5}, "is not a manifest"),
        ({"when": "yesterday"}, "Invalid RFC3339"),
        ({"when": "2026-11-15T20:00:00"}, "timezone"),
        ({"parts": {}}, "Expected `array`"),
        ({"parts": []}, "which it does not list"),
        ({"tensors": None}, "Expected `array`"),
        ({"extra": 1}, "unknown field"),
    ],
)
def test_fields_of_another_type_or_meaning_are_refused(folder, changes, why):
    forge(folder / "step-000000020", **changes)
    assert why in is_refused(folder / "step-000000020")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"nbytes": 10**6}, r"has \S+ bytes, it was written with 1,000,000"),
        ({"nbytes": 10**18}, "1,000,000,000,000,000,000 bytes, far more than its tensors need"),
        ({"nbytes": 2**63}, "is not a manifest"),
        ({"nbytes": -1}, "is not a manifest"),
        ({"nbytes": 8}, "more tensors in part-000.safetensors than its bytes could hold"),
        ({"digest": "0" * 64}, "does not match its digest"),
        ({"digest": "0" * 63}, "is not a manifest"),
        ({"digest": None}, "is not a manifest"),
        ({"name": "part-001.safetensors"}, "lists part-001.safetensors twice"),
        ({"name": "part-777.safetensors"}, "which it does not list"),
    ],
)
def test_wrong_sizes_digests_and_names_of_parts_are_refused(folder, change, why):
    path = folder / "step-000000020"
    first, *others = parts_of(path)
    forge(path, parts=[first | change, *others])
    assert re.search(why, is_refused(path))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"shape": [2**62, 2**62]}, "than its bytes could hold"),
        ({"shape": [-1]}, "is not a manifest"),
        ({"shape": [1] * 65}, "is not a manifest"),
        ({"shape": [True]}, "is not a manifest"),
        ({"dtype": "object"}, "unknown type 'object'"),
        ({"dtype": "|O"}, "unknown type"),
        ({"name": 5}, "is not a manifest"),
        ({"part": "part-777.safetensors"}, "which it does not list"),
    ],
)
def test_wrong_tensors_are_refused(folder, change, why):
    path = folder / "step-000000020"
    first, *others = tensors_of(path)
    forge(path, tensors=[first | change, *others])
    assert why in is_refused(path)


def test_a_tensor_that_is_listed_twice_is_refused(folder):
    path = folder / "step-000000020"
    forge(path, tensors=[*tensors_of(path), tensors_of(path)[0]])
    assert "twice" in is_refused(path)


@pytest.mark.parametrize("change", [{"shape": [5, 2]}, {"dtype": "int32"}, {"name": "other"}])
def test_a_part_must_hold_what_the_manifest_says(folder, change):
    path = folder / "step-000000020"
    tensors = [tensor | change if tensor["name"] == "trainable/1/dense/bias" else tensor for tensor in tensors_of(path)]
    forge(path, tensors=tensors)
    assert "holds other tensors than" in is_refused(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (2**62).to_bytes(8, "little") + b"{}",
        (60).to_bytes(8, "little") + b'{"x":{"dtype":"F32","shape":[9],"data_offsets":[0,4096000]}}',
        b"\x80\x04\x95" + b"cos\nsystem\n",
        save({"other": np.zeros(3)}),
    ],
)
def test_a_part_with_a_right_digest_must_still_be_a_part(folder, data):
    path = folder / "step-000000020"
    first, *others = parts_of(path)
    (path / first["name"]).write_bytes(data)
    changed = first | {"nbytes": len(data), "digest": hashlib.sha256(data).hexdigest()}
    forge(path, parts=[changed, *others], tensors=[t for t in tensors_of(path) if t["part"] != first["name"]])
    assert first["name"] in is_refused(path)


def test_a_part_that_is_all_hole_is_not_read(folder):
    """A sparse file of 1 TiB costs no disk, and an hour to hash."""
    path = folder / "step-000000020"
    first, *others = parts_of(path)
    os.truncate(path / first["name"], 2**40)
    assert "has 1,099,511,627,776 bytes, it was written with" in is_refused(path)
    forge(path, parts=[first | {"nbytes": 2**40}, *others])
    assert "1,099,511,627,776 bytes, far more than its tensors need" in is_refused(path)
    of_part = [tensor for tensor in tensors_of(path) if tensor["part"] == first["name"]]
    large = of_part[0] | {"shape": [2**40 - 4096], "dtype": "uint8"}
    rest = [tensor for tensor in tensors_of(path) if tensor["part"] != first["name"]]
    forge(path, parts=[first | {"nbytes": 2**40}, *others], tensors=[large, *rest])
    assert "file not fully covered" in is_refused(path)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"digest":"x","manifest":{}}', "[" * 200_000, '{"manifest":' * 100_000, "\ufeff{}"],
)
def test_another_document_is_not_a_manifest(folder, text):
    (folder / "step-000000020" / manifest.FILE).write_text(text)
    assert "is not a manifest" in is_refused(folder / "step-000000020")


def test_a_deep_header_is_refused(folder):
    path = folder / "step-000000020"
    inner = '{"format":1,"header":' + "[" * 100_000 + "]" * 100_000 + "}"
    digest = hashlib.sha256(inner.encode()).hexdigest()
    (path / manifest.FILE).write_text(f'{{"digest":"{digest}","manifest":{inner}}}')
    assert "is not a manifest" in is_refused(path)


def test_a_manifest_that_is_too_large_is_not_read(folder):
    file = folder / "step-000000020" / manifest.FILE
    os.truncate(file, manifest.MAX_BYTES + 1)
    assert "at most 67,108,864 are allowed" in is_refused(folder / "step-000000020")


@pytest.mark.parametrize("name", ["part-000.safetensors", manifest.FILE])
def test_links_and_pipes_are_refused_even_with_the_right_content(folder, name):
    file = folder / "step-000000020" / name
    file.rename(folder / "elsewhere")
    file.symlink_to(folder / "elsewhere")
    assert "can't be opened" in is_refused(folder / "step-000000020")
    file.unlink()
    os.mkfifo(file)
    assert "not a plain file" in is_refused(folder / "step-000000020")
    file.unlink()
    file.mkdir()
    assert "not a plain file" in is_refused(folder / "step-000000020")


def test_a_folder_that_is_a_link_is_refused_whatever_it_leads_to(folder):
    elsewhere = (folder / "step-000000020").rename(folder / "elsewhere")
    (folder / "step-000000020").symlink_to(elsewhere)
    assert "it is a link" in is_refused(folder / "step-000000020")
    assert newest_whole(folder)[0] == folder / "step-000000010"
    write(folder, 30, size=100, keep=1)
    assert {path.name for path in folder.iterdir()} == {"step-000000020", "step-000000030", "elsewhere"}
    write(folder, 20, size=100)  # the link makes room; what it led to stays
    assert not (folder / "step-000000020").is_symlink()
    assert {path.name for path in folder.iterdir()} == {"step-000000020", "step-000000030", "elsewhere"}
    assert is_right(load(elsewhere), size=100)

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from tests.checkpoint.scene import write

from shoal import cli


def shoal(*words: object) -> Result:
    return CliRunner().invoke(cli.main, ["checkpoint", *map(str, words)])


@pytest.fixture
def folder(tmp_path):
    """Three checkpoints; the newest is torn."""
    for step in (10, 20, 30):
        write(tmp_path, step, members=3)
    (tmp_path / "step-000000030" / "part-001.safetensors").unlink()
    return tmp_path


def test_list_shows_the_newest_first_and_which_are_whole(folder):
    result = shoal("list", folder)
    assert result.exit_code == 0
    heading, *rows = [line.split() for line in result.stdout.splitlines()]
    assert heading == ["checkpoint", "step", "run", "written", "MiB", "parts", "whole"]
    assert rows[0] == ["step-000000030", "no"]
    assert [row[:3] + row[-2:] for row in rows[1:3]] == [
        ["step-000000020", "20", "r1", "3", "yes"],
        ["step-000000010", "10", "r1", "3", "yes"],
    ]
    assert result.stdout.endswith("step-000000030 is not whole: part-001.safetensors is missing\n")


def test_list_gives_the_same_facts_to_programs(folder):
    torn, newest, _ = json.loads(shoal("list", "--json", folder).stdout)
    assert torn == {
        "path": str(folder / "step-000000030"),
        "whole": False,
        "why": "part-001.safetensors is missing",
    }
    size = sum(file.stat().st_size for file in (folder / "step-000000020").glob("*.safetensors"))
    assert newest.pop("when").endswith("Z")
    assert newest == {
        "path": str(folder / "step-000000020"),
        "whole": True,
        "step": 20,
        "bytes": size,
        "parts": 3,
        "tensors": 4,
        "run": "r1",
        "training": "r1",
    }


def test_verify_says_by_its_exit_code_whether_all_are_whole(folder):
    assert shoal("verify", folder).exit_code == 1
    assert shoal("verify", folder / "step-000000030").exit_code == 1
    assert shoal("verify", folder / "step-000000020").exit_code == 0
    (folder / "step-000000020").rename(folder / "best")
    assert shoal("verify", folder / "best").exit_code == 0


@pytest.mark.parametrize("verb", ["list", "verify"])
def test_a_folder_without_checkpoints_is_bad_input(tmp_path, verb):
    for path, problem in ((tmp_path, "there are no checkpoints in"), (tmp_path / "nowhere", "there is no folder")):
        result = shoal(verb, path)
        assert result.exit_code == 2
        assert problem in result.stderr

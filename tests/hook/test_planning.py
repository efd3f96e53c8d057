"""`shoal plan` measures and leaves no trace; `--strategy auto` trains by its plan, with the bits of its flags."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest

from .runs import BACKENDS, FULL, SCRIPTS, Trainings, succeeded


def plan(trainings: Trainings, *words: object) -> tuple[int, str, str]:
    """`shoal plan …`: its exit code, and what it said."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        code = trainings.start(["plan", *words], out, err).wait(280)
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS if FULL else ["torch"])
def test_a_plan_ranks_all_ways_to_train_and_leaves_no_trace(trainings: Trainings, backend: str) -> None:
    out = trainings.folder / f"plan-{backend}"
    code, said, troubles = plan(trainings, "-n", 2, "--backend", backend, "--json", SCRIPTS / "planned.py", out)
    assert code == 0, troubles
    told = json.loads(said)  # and nothing that the script printed
    kinds = {one["kind"] for one in told["plans"]}
    assert kinds >= {"data parallel", "sliced update", "pipeline"}, told["left_out"]
    assert told["batch"] == 24
    fitting = [one["step_seconds"] for one in told["plans"]]
    assert fitting[0] <= 1.02 * min(fitting)
    for one in told["plans"]:
        assert one["step_seconds"] > 0
        assert one["moved_bytes"] > 0
        assert len(one["busy"]) == len(one["memory_bytes"]) == 2
    assert list(out.iterdir()) == []  # neither a callback, nor a file, nor what stands under `finally`


@pytest.mark.timeout(300)
def test_memory_that_nothing_fits_is_an_error_that_says_what_would_be_needed(trainings: Trainings) -> None:
    out = trainings.folder / "little"
    words = ("-n", 2, "--memory", "10M", "--backend", "torch", SCRIPTS / "planned.py", out)
    code, _, troubles = plan(trainings, *words)
    assert code == 2
    assert re.search(r"nothing fits into 10 MB per worker. What needs least is .*: \d+ MB per worker", troubles)


def test_a_script_that_never_trains_or_fails_before_that_is_named(trainings: Trainings) -> None:
    quiet, broken = trainings.folder / "quiet.py", trainings.folder / "broken.py"
    quiet.write_text("print('nothing to do')")
    broken.write_text("raise OSError('no such data')")
    code, _, troubles = plan(trainings, "-n", 2, "--backend", "torch", quiet)
    assert code == 2
    assert "came to its end without calling `model.fit`" in troubles
    assert "nothing to do" in troubles
    code, _, troubles = plan(trainings, "-n", 2, "--backend", "torch", broken)
    assert code == 1
    assert "failed before it could be measured" in troubles
    assert "OSError: no such data" in troubles


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS if FULL else ["torch"])
def test_auto_trains_by_its_plan_with_the_bits_of_the_flags_that_it_names(trainings: Trainings, backend: str) -> None:
    outcomes: list[dict[str, object]] = []
    flags = "--strategy auto"
    for turn in ("auto", "again"):
        out = trainings.folder / f"{turn}-{backend}"
        result = trainings.shoal(backend, f"-n 2 --threads 1 {flags}", "planned.py", out)
        succeeded(result)
        outcomes.append(json.loads((out / "result.json").read_text()))
        if turn == "auto":
            found = re.search(r"shoal: plan: .* The same again: (.*)", result.stderr)
            assert found is not None, result.stderr
            flags = found[1]
            assert "1 plan, 1 fit" in result.stderr
    assert outcomes[0] == outcomes[1]
    stories = [path.read_text() for path in Path(trainings.environ["XDG_STATE_HOME"]).rglob("story.jsonl")]
    assert any('"kind":"plan"' in story for story in stories)

"""`shoal plan` measures and leaves no trace; `--strategy auto` trains by its plan, with the bits of its flags."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest

from .runs import BACKENDS, FULL, SCRIPTS, Trainings, full, succeeded


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


@pytest.mark.timeout(300)
def test_a_worker_that_becomes_slow_means_another_plan_from_a_step_on_for_everybody(trainings: Trainings) -> None:
    result = trainings.shoal("torch", "-n 2 --threads 1 --verbose --strategy auto", "replanned.py", 240, 0.008)
    succeeded(result)
    said = result.stdout + result.stderr
    changes = list(re.finditer(r"plan: (data parallel, (\d+) pieces) instead of .* from step \d+ on, since", said))
    assert changes, said
    change = changes[-1]  # what else this machine does may have meant a second one
    assert len(re.findall(f"pieces {change[2]} plan {change[1]}\n", said)) == 2, "what `shoal status` shows"
    found = re.findall(r"worker (\d) samples (\d+) weights (\w+)", said)
    assert len({weights for *_, weights in found}) == 1, "all workers changed at the same step"
    by_rank = {rank: int(samples) for rank, samples, _ in found}
    assert by_rank["1"] < by_rank["0"]
    stories = [path.read_text() for path in Path(trainings.environ["XDG_STATE_HOME"]).rglob("story.jsonl")]
    assert any(change[0] in story for story in stories)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", [full("jax"), full("tensorflow"), "torch"])
def test_an_update_becomes_sliced_and_whole_again_between_two_steps_and_the_weights_do_not_tell(
    trainings: Trainings, backend: str
) -> None:
    def weights(*changes: str) -> set[str]:
        result = trainings.shoal(backend, "-n 2 --threads 1 --verbose", "switched.py", *changes)
        succeeded(result)
        assert result.stderr.count("the update is not sliced") == 0
        assert result.stderr.count(" from step ") == len(changes), result.stderr
        return set(re.findall(r"pieces 4 weights (\w+)", result.stdout + result.stderr))

    plain = weights()
    assert len(plain) == 1
    assert weights("3:SLICED:4", "7:DATA:4", "9:SLICED:4") == plain

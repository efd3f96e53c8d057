"""A codec that a strategy was given, in real trainings: whoever sends gradients encodes them, nobody else."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from shoal import cli

from .runs import FULL, Trainings, full, succeeded, told

STEPS = 2 * 4
RUNS = {1: "-n 1", 2: "-n 2", 3: "-n 3 --transport tcp", 4: "-n 4"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["torch", full("jax"), full("tensorflow")])
def test_one_to_four_workers_give_the_same_bits_with_every_codec(trainings: Trainings, backend: str) -> None:
    outcomes = []
    numbers = RUNS if FULL else (1, 3)
    for number in numbers:
        out = trainings.folder / f"{backend}-{number}"
        succeeded(trainings.shoal(backend, f"{RUNS[number]} --pieces 4 --threads 1", "every_codec.py", out))
        outcomes += told(out)
    assert len(outcomes) == sum(numbers)
    assert outcomes == [outcomes[0]] * len(outcomes)
    assert len({one["weights"] for one in outcomes[0].values()}) == len(outcomes[0]), "no codec does nothing"
    assert all(one.get("skipped", 1) > 0 for one in outcomes[0].values())
    for name in ("bf16", "int8"):
        assert outcomes[0][name]["loss"] == pytest.approx(outcomes[0]["None"]["loss"], rel=0.1), name
    # Of a gradient's 20th part in each of nine steps: from 1.6.
    assert all(outcomes[0][name]["loss"] < 0.5 for name in ("topk", "topk of int8", "lowrank"))


@pytest.mark.timeout(200)
def test_the_command_lines_codec_is_that_of_a_script_which_names_none(trainings: Trainings) -> None:
    told_by = {}
    for options, codec in (("-n 2", "bf16"), ("-n 2 --compress bf16", "None")):
        out = trainings.folder / codec
        succeeded(trainings.shoal("torch", f"{options} --threads 1", "every_codec.py", out, codec))
        told_by[codec] = told(out)[0][codec]
    assert told_by["bf16"] == told_by["None"]


@pytest.mark.timeout(200)
def test_one_worker_with_one_piece_rounds_whatever_else_the_run_does(trainings: Trainings) -> None:
    """Nobody can have more workers than pieces: this is the one case in which nothing ever travels."""
    found = []
    for name, options in (("bare", "-n 1"), ("saves", f"-n 1 --checkpoint {trainings.folder / 'one'}")):
        out = trainings.folder / f"one-{name}"
        succeeded(trainings.shoal("torch", f"{options} --threads 1 --compress bf16", "every_codec.py", out, "None"))
        found += told(out)
    without = trainings.folder / "one-without"
    saves = f"-n 1 --threads 1 --checkpoint {trainings.folder / 'other'}"
    succeeded(trainings.shoal("torch", saves, "every_codec.py", without, "None"))
    assert found == [found[0]] * 2
    assert told(without) != found[:1], "the control: it rounds"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("codec", ["topk", full("lowrank")])
def test_a_run_that_is_resumed_on_other_workers_has_the_bits_of_one_that_was_not_stopped(
    trainings: Trainings, codec: str
) -> None:
    """What the codec has left out is in the checkpoint."""
    saved, halves = (trainings.folder / f"{name}-{codec}" for name in ("saved", "halves"))
    kept, script = f"--pieces 4 --threads 1 --checkpoint {saved}", ("every_codec.py", halves, codec)
    succeeded(trainings.shoal("torch", f"-n 2 {kept}", *script, 1))
    succeeded(trainings.shoal("torch", f"-n 3 {kept} --resume auto", *script, 3))
    whole = trainings.folder / f"whole-{codec}"
    succeeded(trainings.shoal("torch", "-n 1 --pieces 4 --threads 1", "every_codec.py", whole, codec, 3))
    assert told(halves) == told(whole) * 3


LOST = {
    "allreduce": ["what gradients of 1 piece had left out was lost with a host: zero from now on, for everybody"],
    "local": [
        "what replica 1 had left out of moves was lost with a host: zero from now on, for everybody",
        "the optimizer state of replica 1 was lost with a host: that of replica 0 stands in for it",
    ],
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "step"), [full("allreduce", 150), full("allreduce", 30), full("local", 16)])
def test_a_host_that_is_lost_with_its_residuals_is_told_and_costs_at_most_two_percent_of_the_loss(
    trainings: Trainings, kind: str, step: int
) -> None:
    """Digits. A worker that shares no memory is as alone on its host."""
    calm, disturbed = (trainings.folder / f"{name}-{kind}-{step}" for name in ("calm", "disturbed"))
    succeeded(trainings.shoal("torch", "-n 1 --threads 1", "lost_residuals.py", calm, kind))
    options = "-n 3 --threads 1 --transport tcp --max-restarts 0"
    succeeded(trainings.shoal("torch", options, "lost_residuals.py", disturbed, kind, step))
    assert (disturbed / "killed").exists()
    found, expected = (json.loads((folder / "loss.json").read_text()) for folder in (disturbed, calm))
    assert found != expected, "something was lost"
    assert found == pytest.approx(expected, rel=0.02)
    story = CliRunner().invoke(cli.main, ["story"], env=trainings.environ).stdout
    assert [text for text in LOST[kind] if text not in story] == [], story


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("options", "strategy", "expected"),
    [
        # It encodes what it pushes. The server takes nothing that has another form.
        ("-n 1 --strategy ps --servers 1 --staleness 1", "ps", [(STEPS, 0)]),
        # It encodes its part of the total: the one shard is the first worker's.
        ("-n 2 --strategy ps --servers 1 --staleness 0", "ps", [(STEPS, 0), (0, 0)]),
    ],
    ids=["asynchronous", "synchronous on servers"],
)
def test_gradients_travel_in_the_form_of_the_strategys_codec(
    trainings: Trainings, options: str, strategy: str, expected: list[tuple[int, int]]
) -> None:
    folder = trainings.folder / options.replace(" ", "")
    folder.mkdir()
    succeeded(trainings.shoal("torch", options, "compressed.py", folder, strategy))
    found = told(folder)
    assert [(one["encoded"], one["decoded"] + one["added"]) for one in found] == expected
    assert len({one["weights"] for one in found}) == 1

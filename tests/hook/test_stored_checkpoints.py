"""Trainings whose checkpoints are in an object store: killed, gone on with, and left alone by the store."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.s3 import S3

from .runs import SCRIPTS, Going, Trainings, succeeded

HALT = 17  # a step in the middle of the second epoch of the second fit
OPTIONS = "--pieces 4 --threads 1"
EVERY = "--checkpoint-every 5steps"


@pytest.fixture
def s3(trainings: Trainings) -> Iterator[S3]:
    server = S3()
    before = dict(trainings.environ)
    trainings.environ |= server.environ
    server.files().mkdir("bucket")
    yield server
    trainings.environ = before
    server.close()


def steps(s3: S3, folder: str) -> list[str]:
    return sorted(s3.files().glob(f"{folder.removeprefix('s3://')}/step-*/manifest.json"))


@pytest.mark.full  # tests/hook/test_checkpoints.py does it with a folder, tests/stores with a store
@pytest.mark.timeout(300)
def test_a_training_that_was_cut_off_goes_on_from_a_store_with_the_same_bits(trainings: Trainings, s3: S3) -> None:
    folder, out = "s3://bucket/deep/cut", trainings.folder / "out.json"
    succeeded(trainings.shoal("torch", f"-n 2 {OPTIONS}", "resumed.py", out))
    undisturbed = json.loads(out.read_text())
    words = f"run -n 2 {OPTIONS} --backend torch --checkpoint {folder} {EVERY} --keep 2".split()
    with Going(trainings, [*words, SCRIPTS / "resumed.py", out, HALT]) as run:
        halted = out.with_suffix(".halted")
        run.until("it comes to where it is killed", lambda: halted.exists() and len(steps(s3, folder)) == 2)
        assert f"{folder} can't be locked" in run.said()
        trainings.kill_everything()
        listed = run.ask("checkpoint", "list", "--json", folder)
        assert [one["whole"] for one in json.loads(listed.stdout)] == [True, True], listed.stdout
        refused = trainings.shoal("torch", f"-n 1 --checkpoint {folder}", "resumed.py", out)
        assert refused.returncode == 2
        assert f"{folder} holds checkpoints already" in refused.stderr
        newest = "s3://" + steps(s3, folder)[-1]
        parts = s3.files().find(newest.removesuffix("/manifest.json"))
        s3.files().rm(next(key for key in parts if key.endswith("part-001.safetensors")))  # and this one is torn
        assert run.ask("checkpoint", "verify", folder).returncode == 1
        model = trainings.folder / "model.keras"
        exported = run.ask("checkpoint", "export", "s3://" + steps(s3, folder)[0].removesuffix("/manifest.json"), model)
        assert exported.returncode == 0, exported.output
    out.unlink()
    result = trainings.shoal("torch", f"-n 1 {OPTIONS} --checkpoint {folder} --resume auto", "resumed.py", out)
    succeeded(result)
    assert "is passed over: part-001.safetensors is missing" in result.stderr
    assert json.loads(out.read_text()) == undisturbed


def test_a_store_that_fails_does_not_end_the_training_and_one_that_never_was_does_not_let_it_begin(
    trainings: Trainings, s3: S3
) -> None:
    folder, told = "s3://bucket/fails", trainings.folder / "enough"
    options = f"-n 2 {OPTIONS} --backend torch --checkpoint {folder} --checkpoint-every 2steps".split()
    with Going(trainings, ["run", *options, SCRIPTS / "until_told.py", told]) as run:
        run.until("there is a checkpoint", lambda: bool(steps(s3, folder)))
        s3.kill()
        run.until("it is told", lambda: "no checkpoint of step" in run.said() and "Training goes on." in run.said())
        told.touch()
        assert run.end() == 0, run.said()
    assert "weights" in run.said()
    refused = trainings.shoal("torch", f"-n 2 --checkpoint {folder}", "until_told.py", "1")
    assert refused.returncode == 2
    assert f"can't write checkpoints to {folder}: " in refused.stderr
    assert "whether this host can reach the store" in refused.stderr

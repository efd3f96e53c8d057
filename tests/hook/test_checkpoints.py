"""Checkpoints of real trainings: everything killed at once, and gone on from with other numbers of workers."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from .runs import FULL, SCRIPTS, Going, Trainings, succeeded

HALT = 17  # a step in the middle of the second epoch of the second fit
EVERY = "--checkpoint-every 5steps"


def power_cut(trainings: Trainings, out: Path, folder: Path) -> None:
    """Train on three workers, with checkpoints, and kill every process at once in mid-epoch."""
    words = f"run -n 3 --pieces 4 --threads 1 --backend jax --checkpoint {folder} {EVERY}".split()
    with Going(trainings, [*words, SCRIPTS / "resumed.py", out, HALT]) as run:
        halted = out.with_suffix(".halted")
        run.until("it comes to where it is killed", lambda: halted.exists() and len(list(folder.glob("step-*"))) >= 3)
        trainings.kill_everything()


def train(trainings: Trainings, backend: str, options: str, out: Path) -> dict[str, Any]:
    succeeded(trainings.shoal(backend, f"--pieces 4 --threads 1 {options}", "resumed.py", out))
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.timeout(400)
def test_a_training_that_was_cut_off_goes_on_in_mid_epoch_on_any_number_of_workers_and_any_backend(
    trainings: Trainings,
) -> None:
    undisturbed = train(trainings, "jax", "-n 2", trainings.folder / "undisturbed.json")
    cut = trainings.folder / "cut"
    power_cut(trainings, trainings.folder / "cut.json", cut)
    newest = max(cut.glob("step-*"))
    (newest / "manifest.json").write_bytes((newest / "manifest.json").read_bytes()[:-50])  # and this one is torn
    for workers in (1, 2, 4) if FULL else (4,):
        folder = trainings.folder / f"on-{workers}"
        shutil.copytree(cut, folder)
        out = trainings.folder / f"on-{workers}.json"
        options = f"-n {workers} --pieces 4 --threads 1 --checkpoint {folder} {EVERY} --resume auto"
        result = trainings.shoal("jax", options, "resumed.py", out)
        succeeded(result)
        assert f"{newest.name} is passed over" in result.stderr
        assert json.loads(out.read_text()) == undisturbed
    before = sorted(cut.glob("step-*"))[-2]
    for backend in ("torch", "tensorflow") if FULL else ("torch",):
        found = train(trainings, backend, f"-n 2 --resume {before}", trainings.folder / f"on-{backend}.json")
        assert found["first"] == undisturbed["first"]
        assert found["tested"] == undisturbed["tested"]
        for name, values in undisturbed["second"].items():
            assert found["second"][name] == pytest.approx(values, rel=2e-3, abs=2e-3), name


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["Ctrl-C", "kill -9"])
def test_a_run_whose_launcher_is_ended_writes_a_checkpoint_and_ends(
    trainings: Trainings, number: int, code: int
) -> None:
    folder = trainings.folder / f"ended by {number}"
    options = ["-n", 2, "--pieces", 4, "--threads", 1, "--backend", "torch", "--checkpoint", folder]
    with Going(trainings, ["run", *options, SCRIPTS / "until_told.py", "never"]) as run:
        run.until("it trains", lambda: any(worker["step"] > 2 for worker in run.workers().values()))
        run.process.send_signal(number)
        assert run.end() == code, run.said()
        deadline = time.monotonic() + 60
        while trainings.leftovers():  # they end by themselves, when the checkpoint is there
            assert time.monotonic() < deadline, run.said()
            time.sleep(0.1)
    assert ("writing a checkpoint" in run.said()) == (code == 130)
    found = list(folder.glob("step-*"))
    assert len(found) == 1
    assert run.ask("checkpoint", "verify", found[0]).returncode == 0


def test_a_run_that_loses_its_folder_for_good_writes_a_checkpoint_and_says_why_it_ends(trainings: Trainings) -> None:
    folder = trainings.folder / "homeless"
    options = ["-n", 2, "--pieces", 4, "--threads", 1, "--backend", "torch", "--checkpoint", folder]
    home = Path(trainings.environ["XDG_RUNTIME_DIR"]) / "shoal"
    with Going(trainings, ["run", *options, SCRIPTS / "until_told.py", "never"]) as run:
        run.until("it trains", lambda: any(worker["step"] > 2 for worker in run.workers().values()))
        gone = home.rename(home.with_name("gone"))
        home.touch()
        shutil.rmtree(gone)
        try:
            assert run.end() == 1, run.said()
        finally:
            home.unlink()
    assert "the run ended: its folder was deleted, and can't be made anew" in run.said()
    (found,) = folder.glob("step-*")
    assert run.ask("checkpoint", "verify", found).returncode == 0


def test_what_is_too_large_for_a_checkpoint_is_named_when_it_is_missed(trainings: Trainings) -> None:
    folder = trainings.folder / "large"
    succeeded(trainings.shoal("torch", f"-n 2 --checkpoint {folder}", "large_result.py"))
    again = trainings.shoal("torch", f"-n 2 --checkpoint {folder} --resume auto", "large_result.py")
    assert again.returncode == 1
    assert "call 0 of the script" in again.stderr
    assert "returned too much to be kept in a checkpoint" in again.stderr

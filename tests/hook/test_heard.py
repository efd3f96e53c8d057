"""Callbacks that change the model in the middle of a fit are heard, wherever the weights are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .killing import Killer
from .runs import FULL, SCRIPTS, Going, Trainings, full, succeeded, told

BETWEEN_EPOCHS = (
    "reset_at_the_end_of_an_epoch",
    "prune_when_an_epoch_begins",
    "statistics",
    "after_validation",
    "beside_keras",
    "a_schedule_that_begins_anew",
    "a_learning_rate",
)
IN_BATCHES = ("clip_after_every_batch", "beside_keras_after_every_batch", "before_a_batch")
SERVED = "--strategy ps --threads 1"


def trained(trainings: Trainings, name: str, backend: str, options: str, *arguments: object) -> list[Any]:
    folder = trainings.folder / f"{name}-{backend}"
    folder.mkdir()
    succeeded(trainings.shoal(backend, options, "heard.py", folder, *arguments))
    return told(folder)


def plain(trainings: Trainings, backend: str, *scenes: str) -> Any:
    folder = trainings.folder / f"plain-{backend}"
    folder.mkdir()
    succeeded(trainings.plain(backend, "heard.py", folder, *scenes))
    return told(folder)[0]


def is_the_same(found: Any, expected: Any) -> None:
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(found["history"][name], expected["history"][name], atol=1e-4)
    for mine, theirs in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["torch", full("tensorflow"), full("jax")])
def test_what_callbacks_change_counts_as_on_one_machine_with_and_without_servers(
    trainings: Trainings, backend: str
) -> None:
    """The whole list where nothing is compiled; elsewhere what depends on how a backend notices assignments."""
    between, within = BETWEEN_EPOCHS, IN_BATCHES
    if backend != "torch":
        between, within = ("reset_at_the_end_of_an_epoch", "statistics"), ("beside_keras_after_every_batch",)
    expected = plain(trainings, backend, *between, *within)
    own = trained(trainings, "own", backend, "-n 2 --threads 1", *between, *within)
    served = trained(trainings, "served", backend, f"-n 2 --servers 2 --staleness 0 {SERVED}", *between, *within)
    assert own[0] == own[1] == served[0] == served[1]
    if not FULL:
        between = BETWEEN_EPOCHS[:1]  # they are compared above
    alone = trained(trainings, "alone", backend, f"-n 1 --servers 1 --staleness 1 {SERVED}", *between)[0]
    for name in between:
        is_the_same(alone[name], expected[name])
    for name in {*between, *within} - {"statistics"}:  # which are of the whole batch, and of pieces
        is_the_same(own[0][name], expected[name])


@pytest.mark.timeout(200)
def test_with_a_staleness_a_change_between_two_epochs_counts_once_for_all_workers(trainings: Trainings) -> None:
    scenes = ("nothing", "reset_at_the_end_of_an_epoch", "statistics")
    first, second = trained(trainings, "stale", "torch", f"-n 2 --servers 2 --staleness 3 {SERVED}", *scenes)
    assert first == second
    losses = {name: first[name]["history"]["loss"] for name in scenes}
    begun, after, _ = losses["reset_at_the_end_of_an_epoch"]
    assert after > begun - 0.4  # it learns anew what it had learnt in the first epoch
    assert losses["nothing"][1] < begun - 0.4


REFUSED = {
    "clip_after_every_batch": r"a callback has changed sequential\S*/first/kernel after a batch. With a staleness",
    "compiles_anew": r"a callback has compiled the model anew in the middle of fit",
    "--alone reset_at_the_end_of_an_epoch": r"fit epoch 1: callbacks have changed the weights of worker-1 in another",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_could_not_count_is_named(trainings: Trainings, arguments: str) -> None:
    options = f"-n 2 --servers 1 --staleness 2 {SERVED}"
    result = trainings.shoal("torch", options, "heard.py", trainings.folder, *arguments.split())
    assert result.returncode == 1, result.stderr
    assert re.search(REFUSED[arguments], result.stderr), result.stderr


@pytest.mark.timeout(300)
def test_changes_after_every_batch_count_once_whoever_is_killed(trainings: Trainings) -> None:
    (expected,) = trained(trainings, "calm", "torch", "-n 1 --pieces 4 --threads 1", "clip_after_every_batch")
    folder = trainings.folder / "killed"
    folder.mkdir()
    options = f"run --backend torch -n 2 --pieces 4 --servers 2 --staleness 0 {SERVED}".split()
    words = [*options, SCRIPTS / "heard.py", folder, "clip_after_every_batch", "--pause", 0.5]
    with Going(trainings, words) as run:
        killer = Killer(run, Path(trainings.environ["XDG_RUNTIME_DIR"]), seed=4)
        run.until("both train", lambda: killer.doing("worker-0")[0] > 0 and killer.doing("worker-1")[0] > 0)
        killer.strike("server")
        run.until("another has what it had", lambda: "every shard has 2 copies again" in run.said())
        killer.strike("worker")
        assert run.end() == 0, run.said()[-5000:]
    assert killer.killed.total() == 2
    assert told(folder) == [expected] * len(told(folder))

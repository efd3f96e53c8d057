"""Tables on parameter servers: real processes. The witness is plain Keras, where they are ordinary layers."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .killing import Killer
from .runs import SCRIPTS, Going, Trainings, full, newest, succeeded, told

SERVED = "--strategy ps --servers 2 --staleness 1 --threads 1"


def plain(trainings: Trainings, backend: str, *arguments: str) -> Path:
    folder = trainings.folder / f"plain-{backend}"
    if not folder.exists():
        folder.mkdir()
        succeeded(trainings.plain(backend, "tables.py", folder, *arguments))
    return folder


def is_the_same(found: Path, expected: Path) -> None:
    (mine,), (theirs,) = told(found), told(expected)
    for ours, others in zip(mine["history"], theirs["history"], strict=True):
        assert ours.keys() == others.keys()
        assert all(ours[name] == pytest.approx(others[name], abs=1e-4) for name in ours)
    assert mine["tested"] == pytest.approx(theirs["tested"], abs=1e-4)
    for name in ("predicted", "rows", "looked"):
        np.testing.assert_allclose(mine[name], theirs[name], atol=1e-4)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("backend", "arguments"), [full("tensorflow", ("ftrl", "--one-fit")), ("torch", ("adagrad",))])
def test_one_worker_with_servers_gives_the_results_of_one_machine(
    trainings: Trainings, backend: str, arguments: tuple[str, ...]
) -> None:
    folder = trainings.folder / f"served-{backend}"
    folder.mkdir()
    succeeded(trainings.shoal(backend, f"-n 1 {SERVED}", "tables.py", folder, *arguments))
    is_the_same(folder, plain(trainings, backend, *arguments))


@pytest.mark.timeout(200)
def test_two_workers_train_one_table_and_see_the_same(trainings: Trainings) -> None:
    folder = trainings.folder / "two"
    folder.mkdir()
    options = "-n 2 --strategy ps --servers 2 --staleness 3 --threads 1"
    succeeded(trainings.shoal("torch", options, "tables.py", folder, "adagrad"))
    first, second = told(folder)
    assert first == second
    # Stale weights make other steps, but not another training: every epoch of every fit comes to about the same loss.
    (alone,) = told(plain(trainings, "torch", "adagrad"))
    for ours, theirs in zip(first["history"], alone["history"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.1)


def loaded(path: Path) -> Any:
    import keras

    import shoal.layers  # noqa: F401  Keras must know the layer to load a model that has one

    return keras.saving.load_model(path, compile=False)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_killed_server_changes_nothing_and_the_saved_model_is_an_ordinary_one(trainings: Trainings) -> None:
    folder = trainings.folder / "killed"
    folder.mkdir()
    arguments = ("adam", "--one-fit")
    words = [*f"run --backend jax -n 1 {SERVED}".split(), SCRIPTS / "tables.py", folder, *arguments, "--pause", 0.15]
    with Going(trainings, words) as run:
        killer = Killer(run, Path(trainings.environ["XDG_RUNTIME_DIR"]), seed=0)
        run.until("it trains", lambda: killer.doing("worker-0")[0] > 3)
        os.kill(killer.members("server")["server-0"], signal.SIGKILL)
        assert run.end() == 0, run.said()
    assert "every shard has 2 copies again" in run.said()
    expected = plain(trainings, "jax", *arguments)
    is_the_same(folder, expected)
    ours, theirs = (loaded(path / "model.keras") for path in (folder, expected))
    for name in ("table", "wide"):
        assert type(ours.get_layer(name)).__name__ == "ShardedEmbedding"
        rows, others = (np.asarray(model.get_layer(name).embeddings) for model in (ours, theirs))
        np.testing.assert_allclose(rows, others, atol=1e-5)
        assert rows.shape == others.shape  # all of them, also those that no batch has used


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_training_with_tables_goes_on_from_a_checkpoint_with_other_servers(trainings: Trainings) -> None:
    """Cut off somewhere, most often in the second epoch of the first fit."""
    folder, saved = trainings.folder / "cut", trainings.folder / "saved"
    folder.mkdir()
    script = [SCRIPTS / "tables.py", folder, "adagrad"]
    options = f"run --backend torch -n 1 {SERVED} --checkpoint {saved} --checkpoint-every 4steps".split()
    with Going(trainings, [*options, *script, "--pause", 0.05]) as run:
        run.until("it has come far enough", lambda: newest(saved) > 13)
        trainings.kill_everything()
    exported = trainings.folder / "exported.keras"
    result = run.ask("checkpoint", "export", saved / f"step-{newest(saved):09}", exported)
    assert result.returncode == 0, result.stderr
    rows = np.asarray(loaded(exported).get_layer("table").embeddings)
    assert rows.shape == (40_000, 8)
    options = f"-n 1 --strategy ps --servers 3 --staleness 1 --threads 1 --checkpoint {saved} --resume auto"
    succeeded(trainings.shoal("torch", options, *script))
    is_the_same(folder, plain(trainings, "torch", "adagrad"))


@pytest.mark.timeout(200)
def test_rows_that_are_lost_with_the_only_server_are_those_of_the_last_checkpoint(trainings: Trainings) -> None:
    folder, saved = trainings.folder / "only", trainings.folder / "only-saved"
    folder.mkdir()
    served = "--strategy ps --servers 1 --staleness 1 --threads 1"
    options = f"run --backend torch -n 1 {served} --checkpoint {saved} --checkpoint-every 3steps".split()
    script = [SCRIPTS / "tables.py", folder, "adagrad", "--pause", 0.1, "--one-fit"]
    with Going(trainings, [*options, *script]) as run:
        killer = Killer(run, Path(trainings.environ["XDG_RUNTIME_DIR"]), seed=3)
        run.until("there is a second checkpoint, so that the first is known", lambda: newest(saved) >= 6)
        assert killer.strike("server") == "server-0"
        assert run.end() == 0, run.said()[-5000:]
    lost = re.search(r"its rows of a table are those of step (\d+), from disk", run.said())
    assert lost is not None, run.said()[-5000:]


SYNCHRONOUS = "--strategy ps --staleness 0 --pieces 4 --threads 1"


def reduced(trainings: Trainings, backend: str, *arguments: str) -> list[dict[str, object]]:
    """What all-reduce without servers gives with the same pieces: there the tables are ordinary layers."""
    folder = trainings.folder / "-".join(["reduced", backend, *arguments])
    folder.mkdir()
    succeeded(trainings.shoal(backend, "-n 1 --pieces 4 --threads 1", "tables.py", folder, *arguments))
    return told(folder)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("backend", "optimizer"), [("torch", "adam"), full("jax", "adam"), full("tensorflow", "ftrl")])
def test_synchronous_training_has_the_bits_of_all_reduce(trainings: Trainings, backend: str, optimizer: str) -> None:
    folder = trainings.folder / f"synchronous-{backend}"
    folder.mkdir()
    arguments = (optimizer, "--one-fit")
    succeeded(trainings.shoal(backend, f"-n 2 --servers 2 {SYNCHRONOUS}", "tables.py", folder, *arguments))
    assert told(folder) == reduced(trainings, backend, *arguments) * 2


@pytest.mark.full  # tests/hook/test_served_checkpoints.py loses everything, test_heard.py a worker and a server
@pytest.mark.timeout(300)
def test_synchronous_training_has_the_same_bits_when_workers_and_servers_are_lost(trainings: Trainings) -> None:
    """One of each while the others go on, and others come; then all of them. It goes on from a checkpoint, with other
    numbers of both.
    """
    folder, saved = trainings.folder / "lost", trainings.folder / "lost-saved"
    folder.mkdir()
    script = [SCRIPTS / "tables.py", folder, "adagrad"]
    options = f"run --backend torch -n 1:2 --servers 2 {SYNCHRONOUS} --checkpoint {saved} --checkpoint-every 2steps"
    with Going(trainings, [*options.split(), *script, "--pause", 0.4]) as run:
        killer = Killer(run, Path(trainings.environ["XDG_RUNTIME_DIR"]), seed=2)
        run.until("both train", lambda: killer.doing("worker-0")[0] > 0 and killer.doing("worker-1")[0] > 0)
        killer.strike("worker")
        killer.strike("server")
        run.until("another worker trains", lambda: killer.doing("worker-2")[0] > 0)
        step = killer.doing("worker-2")[0]
        run.until("it is in a checkpoint", lambda: newest(saved) > step)
        trainings.kill_everything()
    assert newest(saved) < 26
    options = f"-n 3 --servers 1 {SYNCHRONOUS} --resume {saved / f'step-{newest(saved):09}'}"
    succeeded(trainings.shoal("torch", options, *script))
    assert told(folder) == reduced(trainings, "torch", "adagrad") * 3


@pytest.mark.timeout(200)
def test_the_example_finds_out_what_users_click_on(trainings: Trainings) -> None:
    example = SCRIPTS.parents[1] / "examples/recommend.py"
    options = "-n 2 --strategy ps --servers 2 --staleness 4 --threads 1"
    result = trainings.shoal("torch", options, example, "--clicks", "8000", "--epochs", "2")
    succeeded(result)
    found = re.search(r"has not seen: AUC (\d\.\d+)", result.stdout)
    assert found is not None, result.stdout
    assert float(found[1]) > 0.6

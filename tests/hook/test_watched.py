"""What a fit tells those who watch it: its logs, the figures of the whole run; and a checkpoint that they ask for."""

from __future__ import annotations

import pytest
from tests.observe.board import read_scalars

from shoal.observe.chart import read

from .runs import Trainings, succeeded, told


def test_a_watcher_gets_logs_and_figures_of_the_whole_run_and_a_checkpoint_when_it_asks(trainings: Trainings) -> None:
    folder, logs, saved = (trainings.folder / name for name in ("told", "logs", "saved"))
    folder.mkdir()
    options = f"-n 2 --threads 1 --logs {logs} --checkpoint {saved} --checkpoint-every 9h"
    succeeded(trainings.shoal("torch", options, "watched.py", folder))
    chief, other = told(folder)
    assert chief["logs"] == {name: values[-1] for name, values in chief["history"].items()}
    assert {"loss", "val_loss"} <= chief["logs"].keys()
    assert other["reports"] == []  # the chief reports
    figures, step = chief["reports"][0]  # at the end, the other is done sooner than the chief
    assert 0 <= step <= 12
    assert (figures["shoal/workers"], figures["shoal/losses"]) == (2.0, 0.0)
    shares = [share for name, share in figures.items() if name.startswith("shoal/time/")]
    assert sum(shares) == pytest.approx(1.0) or sum(shares) == 0.0  # it has hardly begun
    scalars = read_scalars(folder / "board" / "shoal")
    assert scalars.keys() == figures.keys()
    assert len(scalars["shoal/workers"]) == 1, "a fit that is shorter than `every` is reported at its end"
    assert len(list((folder / "board" / "shoal").iterdir())) == 1, "the chief alone writes"
    assert not chief["tensorflow"], "nobody needs it for that"
    # One was asked for after the first epoch of four steps; the other is the last of every fit.
    assert sorted(path.name for path in saved.glob("step-*")) == ["step-000000005", "step-000000012"]
    assert all(set(point.logs) <= set(chief["logs"]) for point in read(logs))


@pytest.mark.full
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_keras_s_own_tensorboard_callback_writes_beside_the_run_s_figures(trainings: Trainings, backend: str) -> None:
    folder = trainings.folder / f"board-{backend}"
    succeeded(trainings.shoal(backend, "-n 2 --threads 1", "boards.py", folder))
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["shoal", "train", "validation"]
    for name in ("shoal", "train", "validation"):
        assert len(list((folder / name).glob("*tfevents*"))) == 1, "the chief alone writes"
    assert "epoch_loss" in read_scalars(folder / "train")
    assert "shoal/samples_per_second" in read_scalars(folder / "shoal")

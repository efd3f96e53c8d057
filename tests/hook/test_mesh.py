"""Several devices in a worker, on JAX: as one device up to rounding, memory as said, the same bits whoever dies.

The devices are virtual ones of the CPU, which XLA treats as it treats others.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from .runs import FULL, Trainings, full, succeeded

SHAPES = ["batch=4,fsdp", "batch=2,model=2", *(["batch=4", "model=4", "batch=2,model=2,fsdp"] if FULL else [])]


def _close(found, expected):
    np.testing.assert_allclose(found["weights"], expected["weights"], rtol=0, atol=2e-5)
    for name in ("evaluated", "predicted"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4)
    for name, values in expected["history"].items():
        np.testing.assert_allclose(found["history"][name], values, rtol=1e-4)


@pytest.mark.timeout(600)
def test_meshes_of_four_devices_train_as_one_device_does_and_hold_what_was_said(trainings: Trainings) -> None:
    out = trainings.folder / "out.json"
    ran = trainings.plain("jax", "mesh.py", out, *SHAPES)
    succeeded(ran)
    found = json.loads(out.read_text())
    alone = found["one device"]
    for shape in SHAPES:
        _close(found[shape], alone)
        assert found[shape]["saved"], shape
    whole = alone["held"][0]

    # Data parallelism holds everything everywhere; FSDP has its bits and a quarter of its memory.
    if FULL:
        assert found["batch=4"]["held"] == [whole] * 4
        assert found["batch=4,fsdp"]["hash"] == found["batch=4"]["hash"]
    assert max(found["batch=4,fsdp"]["held"]) < 0.3 * whole
    assert max(found["batch=4,fsdp"]["optimizer"]) < 0.3 * alone["optimizer"][0]
    assert 0.5 * whole < max(found["batch=2,model=2"]["held"]) < 0.53 * whole

    # By what layers are, not by their names; the table is tied, and its rows are the classes.
    split = found["batch=2,model=2"]["split"]
    assert split["up/kernel"] == "P(None, 'model')"
    assert split["down/kernel"] == "P('model',)" or split["down/kernel"] == "P('model', None)"
    assert split["attention/query/kernel"].startswith("P(None, 'model'")
    assert any(path.endswith("embeddings") for path in split)

    # Said before the first step, in bytes that are those which the devices hold.
    said = re.search(
        r"mesh batch=2,model=2 of 4 devices \(cpu\): each device holds (\S+) kB of (\S+) kB of weights", ran.stderr
    )
    assert said is not None, ran.stderr[-3000:]
    assert float(said[1]) == pytest.approx(max(found["batch=2,model=2"]["held"]) / 1000, rel=0.05)
    assert "whole on every device (LayerNormalization computes with all of it)" in ran.stderr

    # A shape that does not match is refused. The user's own layouts are honoured, and checked.
    assert re.search(r"batch=3 does not match .* it takes 3, and the worker has 4 devices", found["mismatch"])
    assert "matches no variable of this model" in found["users, wrong"]
    if FULL:
        _close(found["users"], alone)
        assert list(found["users"]["split"]) == ["up/kernel"]


def _hash(text: str) -> tuple[float, str]:
    found = re.search(r"loss (\S+) weights (\S+)", text)
    assert found is not None, text[-3000:]
    return float(found[1]), found[2]


@pytest.mark.timeout(600)
def test_a_killed_worker_with_two_devices_leaves_the_same_bits(trainings: Trainings, tmp_path: Path) -> None:
    """And the other one goes on, on its own two."""
    options = "--pieces 4 --threads 1 --devices-per-worker 2"
    alone = trainings.shoal("jax", f"-n 1 {options}", "mesh_elastic.py", 3)
    succeeded(alone)
    flag = tmp_path / "killed"
    killed = trainings.shoal("jax", f"-n 2 {options} --max-restarts 0", "mesh_elastic.py", 3, flag)
    succeeded(killed)
    assert flag.exists()
    assert "1 loss survived" in killed.stderr
    assert _hash(killed.stdout) == _hash(alone.stdout)
    assert "2 virtual devices of the CPU for each worker" in killed.stderr
    assert "mesh batch=2 of 2 devices (cpu)" in killed.stderr


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_checkpoint_of_one_mesh_goes_on_on_another(trainings: Trainings) -> None:
    saved = trainings.folder / "saved"
    keep = f"--checkpoint {saved} --checkpoint-every 4steps"
    succeeded(trainings.shoal("jax", f"-n 1 --pieces 2 --devices-per-worker 2 {keep}", "mesh_elastic.py", 2))
    model = f"-n 1 --pieces 2 --devices-per-worker 2 --mesh model=2 {keep} --resume auto"
    resumed = trainings.shoal("jax", model, "mesh_elastic.py", 4)
    succeeded(resumed)
    assert "from step 8 on" in resumed.stderr
    one = trainings.shoal("jax", "-n 1 --pieces 2 --threads 2", "mesh_elastic.py", 4)
    succeeded(one)
    assert _hash(resumed.stdout)[0] == pytest.approx(_hash(one.stdout)[0], rel=1e-4)


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_mesh_is_refused_by_name_where_keras_would_ignore_it(trainings: Trainings, backend: str) -> None:
    refused = trainings.shoal(backend, "-n 2 --mesh batch=2", "mesh_elastic.py", 1)
    assert refused.returncode != 0
    assert f"--mesh batch=2 needs JAX: on {backend} Keras takes a distribution and ignores it" in refused.stderr


@pytest.mark.parametrize("backend", [full("jax"), "torch", full("tensorflow")])
def test_gradients_that_come_to_the_host_in_one_buffer_are_the_same_bits(trainings: Trainings, backend: str) -> None:
    """As from an accelerator, which no machine of the tests has: the path is taken, the copies are the host's own."""
    out = trainings.folder / "hashes.json"
    succeeded(trainings.plain(backend, "off_host.py", out))
    first, second = json.loads(out.read_text())
    assert first == second

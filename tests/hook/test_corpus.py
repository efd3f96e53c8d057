"""Some scripts of the corpus, as users write them: with two workers they come to what plain Keras comes to.

`make corpus` runs them all, started as users start them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from corpus.header import SCRIPTS, read
from corpus.run import Ended, is_as_told, judge

from .runs import Trainings, full

SOME = [  # that write no files, with the updates that their optimizers make
    full("custom_step_torch", "torch", 40),
    ("gan_vae_gan", "torch", 348),
    full("loss_sum", "torch", 9),
    full("loop_jax_shoal", "jax", 44),
    full("timeseries_generator", "jax", 45),
    full("vision_masked_autoencoder", "tensorflow", 32),
    full("gan_adversarial_autoencoder", "tensorflow", 96),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "backend", "updates"), SOME)
def test_a_script_as_users_write_them_comes_to_what_it_says(
    trainings: Trainings, name: str, backend: str, updates: int, tmp_path: Path
) -> None:
    script = read(SCRIPTS / f"{name}.py")
    plain = ended(trainings.plain(backend, script.path), tmp_path, updates)
    assert plain.went_well, plain.stderr
    shoal = ended(trainings.shoal(backend, "-n 2", script.path), tmp_path)
    found, why = judge(script, plain, shoal)
    assert is_as_told(script, found), f"{found}: {why}\n{shoal.stdout[-2000:]}\n{shoal.stderr[-4000:]}"


def ended(result: subprocess.CompletedProcess[str], folder: Path, updates: int | None = None) -> Ended:
    return Ended(result.returncode, result.stdout, result.stderr, 0.0, folder, updates)

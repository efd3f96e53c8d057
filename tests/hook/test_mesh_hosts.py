"""A worker of several processes, on JAX: the same bits run after run, and it lives and dies as one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import hashlib, pathlib, sys, time
import keras
import numpy as np
keras.utils.set_random_seed(1)
x = np.random.RandomState(0).randn(64, 8).astype("float32")
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
step = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: (
    pathlib.Path(sys.argv[1]).touch(), time.sleep(float(sys.argv[2]))))
model.fit(x, x[:, :1], batch_size=16, epochs=6, verbose=0, callbacks=[step])
print("BITS", hashlib.sha1(b"".join(w.tobytes() for w in model.get_weights())).hexdigest())
"""


def _start(folder: Path, name: str, pause: float) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(SCRIPT)
    words = ["-m", "shoal", "run", "-n", "2", "--backend", "jax", "--threads", "1", "--pieces", "2"]
    words += ["--mesh-hosts", "2", "--devices-per-worker", "2"]
    words += ["--logs", str(folder / name), str(folder / "train.py"), str(folder / f"{name}.began"), str(pause)]
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *words], stdout=pipe, stderr=subprocess.STDOUT, text=True, cwd=folder)


def _bits(said: str) -> str:
    found = re.search(r"BITS (\w+)", said)
    assert found is not None, said[-3000:]
    return found[1]


def _followers(run: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(run.pid).children(recursive=True)
    return [child for child in children if "shoal.hook.mesh.follower" in " ".join(child.cmdline())]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    said, _ = _start(tmp_path_factory.mktemp("mesh"), "whole", 0.0).communicate(timeout=120)
    return _bits(said)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("which", "named"),
    [
        ("follower", r"worker-\d: its mesh process 1 of 2 was killed by SIGKILL"),
        ("leader", r"worker-\d \(pid \d+\) was killed by SIGKILL"),
    ],
)
def test_a_killed_process_of_a_group_is_named_and_the_bits_stay(
    undisturbed: str, tmp_path: Path, which: str, named: str
) -> None:
    run = _start(tmp_path, "killed", 0.4)
    until = time.monotonic() + 60
    while not (tmp_path / "killed.began").exists() and time.monotonic() < until:
        time.sleep(0.05)
    follower = max(_followers(run), key=lambda process: process.pid)
    leader = follower.parent()
    assert leader is not None
    os.kill(follower.pid if which == "follower" else leader.pid, signal.SIGKILL)
    said, _ = run.communicate(timeout=180)
    assert run.returncode == 0, said[-3000:]
    assert re.search(named, said), said[-3000:]
    assert _bits(said) == undisturbed
    assert not follower.is_running(), "it ends with its leader"

"""A kill at any moment leaves the last checkpoint whole, and nothing that looks like one and is not."""

from __future__ import annotations

import contextlib
import os
import random
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.checkpoint.drafts import checkpoints
from shoal.checkpoint.read import load, newest_whole, verify

from .scene import is_right, write

ROOT = Path(__file__).parents[2]
KILLS = 30
LIMIT = 60.0  # seconds for a process to start; only a broken one takes so long
KILLED = 99

# What a checkpoint asks of the kernel. A process is killed right before one of these, each in turn.
CALLS = ("mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir")


def test_a_process_killed_at_random_moments_leaves_its_last_checkpoint_whole(tmp_path):
    rng = random.Random(17)
    told, first = 0, 1
    for kill in range(KILLS):
        command = [sys.executable, "-m", "tests.checkpoint.kill_me", str(tmp_path), str(first)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert select.select([process.stdout], [], [], LIMIT)[0], f"kill {kill}: it never wrote anything"
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(rng.uniform(0, 0.05))  # the moment of the kill is the point
            finally:
                process.kill()
            said = process.stdout.read().split()
            told = int(said[-1])
        newest, skipped = newest_whole(tmp_path)
        assert skipped == [], f"kill {kill}"
        assert newest is not None
        loaded = load(newest)
        assert loaded.step >= told, f"kill {kill}: {told} was told, {loaded.step} is the newest"
        assert is_right(loaded, size=20_000), f"kill {kill}"
        first = loaded.step + rng.choice([0, 1])  # the same step anew, or the next
    assert len(checkpoints(tmp_path)) <= 4
    write(tmp_path, first + 1, training="r0", keep=2, size=20_000)
    assert sorted(path.name[:5] for path in tmp_path.iterdir()) == ["step-", "step-"], "drafts of the dead are gone"


def killed_before(number: int, work: Callable[[], object]) -> bool:
    """Does the work in a process of its own that dies right before its call of this number. False if it has fewer."""
    child = os.fork()
    if child == 0:
        left = [number]

        def deadly(call: Callable[..., object]) -> Callable[..., object]:
            def wrapped(*args: object, **kwargs: object) -> object:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(KILLED)
                return call(*args, **kwargs)

            return wrapped

        for name in CALLS:
            setattr(os, name, deadly(getattr(os, name)))
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED), f"call {number}: the work itself failed"
    return code == KILLED


@pytest.mark.parametrize("same", [False, True], ids=["the next step", "the same step anew"])
def test_a_kill_before_any_call_of_the_kernel_leaves_a_whole_one(tmp_path, same):
    step = 2 if same else 3
    deaths = 0
    for number in range(200):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, 1, size=100)
        write(folder, 2, size=100)

        if not killed_before(
            number, lambda folder=folder: write(folder, step, run="r2", training="r1", keep=1, size=100)
        ):
            break
        deaths += 1
        newest, skipped = newest_whole(folder)
        assert skipped == [], f"call {number}"
        assert newest is not None, f"call {number}"
        assert is_right(load(newest), size=100), f"call {number}"
        assert load(newest).step in (2, step), f"call {number}"
        write(folder, 9, run="r3", training="r1", keep=1, size=100)
        assert [path.name for path in folder.iterdir()] == ["step-000000009"], f"call {number}: something stayed behind"
    assert deaths > 20
    assert [verify(path).run for path in checkpoints(folder)] == ["r2"]

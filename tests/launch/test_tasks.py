"""`shoal worker`: tasks that somebody else has started find each other and are one run."""

from __future__ import annotations

import os
import secrets
import signal
import socket
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.launch.tasks import shared_key

from .launched import Launched, World, eventually

WAIT = "print(who.id, 'is here')\nmark('up')\nuntil('go')\n"


@pytest.fixture
def secret(world: World) -> Path:
    path = world.folder / "secret"
    path.write_text(secrets.token_hex(32))
    path.chmod(0o600)
    return path


def tasks(world: World, secret: Path, size: int) -> list[Launched]:
    """As torchrun starts them, on one host."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = {"WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port - 1)}
    local = {"LOCAL_WORLD_SIZE": str(size), "SHOAL_KEY_FILE": str(secret)}
    script = world.script(WAIT)
    words = ("worker", "--backend", "jax", "--threads", 1, script)
    # The first one last: schedulers start tasks in any order.
    return [world.shoal(*words, RANK=str(n), LOCAL_RANK=str(n), **told, **local) for n in reversed(range(size))][::-1]


def test_tasks_of_torchrun_are_one_run_and_one_that_dies_is_replaced(world: World, secret: Path) -> None:
    first, second = tasks(world, secret, 2)
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    os.kill(second.pid("worker-1"), signal.SIGKILL)
    eventually(lambda: len(world.marks("up")) == 3, "another has come")
    world.tell("go")
    assert (first.wait(), second.wait()) == (0, 0), first.err + second.err
    assert first.out == "worker-0 is here\n"
    assert second.out == "worker-1 is here\nworker-1000 is here\n"
    assert "shoal: task 1 of 2, by RANK, WORLD_SIZE and MASTER_ADDR; the first is at localhost:" in second.err


def test_a_job_has_a_key_of_its_own_and_a_short_secret_is_refused(secret: Path) -> None:
    assert shared_key(secret, "17") == shared_key(secret, "17") != shared_key(secret, "18")
    secret.write_text("short")
    with pytest.raises(UsageError, match="has 5 bytes, which could be guessed"):
        shared_key(secret, "17")

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from warm import Warm

from .launched import World


@pytest.fixture(scope="session")
def warm_launcher() -> Iterator[Warm]:
    """From which runs come, whose scripts are tiny: to start one by itself takes most of such a test."""
    warm = Warm("launch", "jax", os.environ)
    yield warm
    warm.close()


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory, warm_launcher: Warm) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("w"), warm_launcher)  # a short name: a unix socket's path holds 107 bytes
    yield world
    clean = world.is_clean()
    world.close()
    assert clean, "something stayed behind"

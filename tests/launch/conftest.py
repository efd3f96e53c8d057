from __future__ import annotations

from collections.abc import Iterator

import pytest

from .launched import World


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("w"))  # a short name: a unix socket's path holds 107 bytes
    yield world
    clean = world.is_clean()
    world.close()
    assert clean, "something stayed behind"

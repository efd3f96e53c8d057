from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .runs import Trainings, WarmProcesses


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcesses]:
    processes = WarmProcesses()
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory, warm: WarmProcesses) -> Iterator[Trainings]:
    base = tmp_path_factory.getbasetemp()
    session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # the folder of both processes
    trainings = Trainings(tmp_path_factory.mktemp("t"), session / "cache", base / "plain", warm)
    yield trainings
    left = trainings.leftovers()
    for process in left:
        process.kill()
    assert not left, "processes stayed behind"

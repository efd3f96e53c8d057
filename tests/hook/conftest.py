from __future__ import annotations

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
    trainings = Trainings(tmp_path_factory.mktemp("t"), tmp_path_factory.getbasetemp() / "cache", warm)
    yield trainings
    left = trainings.leftovers()
    for process in left:
        process.kill()
    assert not left, "processes stayed behind"

"""A chief and another worker, who handle the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from .scene import Scene, Worker


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def chief(scene: Scene) -> Worker:
    return scene.worker(0)


@pytest.fixture
def other(scene: Scene, chief: Worker) -> Worker:
    return scene.worker(1)

"""`make test` runs the modules in two processes, one module at a time in each (pytest-xdist, `--dist loadfile`)."""

from __future__ import annotations

from pathlib import Path

import pytest

LONGEST = ("hook", "launch", "simulator", "store")  # folders, from the longest on


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long modules begin first, so that neither process works alone at the end."""
    allowed: dict[Path, float] = {}  # seconds, by module: those that say how long they may take are the longest
    for item in items:
        limit = item.get_closest_marker("timeout")
        allowed[item.path] = allowed.get(item.path, 0.0) + (limit.args[0] if limit else 0.0)

    def place(item: pytest.Item) -> tuple[float, int, Path]:
        folder = item.path.parent.name
        return -allowed[item.path], LONGEST.index(folder) if folder in LONGEST else len(LONGEST), item.path

    items.sort(key=place)

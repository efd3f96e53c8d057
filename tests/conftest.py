"""`make test` runs the modules in two processes, one module at a time in each (pytest-xdist, `--dist loadfile`)."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import threading
from pathlib import Path

import pytest

LONGEST = ("hook", "launch", "simulator", "store")  # folders, from the longest on
FULL = bool(os.environ.get("SHOAL_TEST_ALL"))  # `make test-full`


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long modules begin first, so that neither process works alone at the end."""
    if not FULL:
        _leave_out(config, items)
    allowed: dict[Path, float] = {}  # seconds, by module: those that say how long they may take are the longest
    for item in items:
        limit = item.get_closest_marker("timeout")
        allowed[item.path] = allowed.get(item.path, 0.0) + (limit.args[0] if limit else 0.0)

    def place(item: pytest.Item) -> tuple[float, int, Path]:
        folder = item.path.parent.name
        return -allowed[item.path], LONGEST.index(folder) if folder in LONGEST else len(LONGEST), item.path

    items.sort(key=place)


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked `full`: the same scenes on more backends, and with more workers."""
    left_out = [item for item in items if item.get_closest_marker("full")]
    items[:] = [item for item in items if not item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(autouse=True, scope="module")
def _nothing_of_earlier_modules() -> None:
    """Memory that was to be prepared for them would come now, and be taken for a leak. Collections, for which leak
    checks ask again and again, would look at all that they have imported.
    """
    if "shoal.wire.pool" in sys.modules:
        sys.modules["shoal.wire.pool"].pool.clear()
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Python would wait for ever for a thread that hangs. Its test has failed; where it hangs is told."""
    left = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    for thread in left:
        thread.join(10.0)
    if any(thread.is_alive() for thread in left):
        faulthandler.dump_traceback(sys.__stderr__)
        os._exit(1)

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Every test gives back the descriptors and threads it took."""
    before = set(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())
    yield
    after = set(os.listdir("/proc/self/fd"))
    left = [os.readlink(f"/proc/self/fd/{fd}") for fd in after - before if os.path.islink(f"/proc/self/fd/{fd}")]
    assert not left
    assert not set(threading.enumerate()) - threads

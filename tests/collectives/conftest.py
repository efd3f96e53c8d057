from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from shoal.wire.pool import pool


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Every test gives back the descriptors it took, shared memory among them."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    pool.clear()
    gc.collect()
    after = set(os.listdir("/proc/self/fd"))
    left = [os.readlink(f"/proc/self/fd/{fd}") for fd in after - before if os.path.islink(f"/proc/self/fd/{fd}")]
    assert not left

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from shoal.wire.memory import drop_kept, drop_prepared, drop_spare


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Every test gives back the descriptors it took, shared memory among them."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    drop_spare()
    drop_prepared()
    drop_kept()
    gc.collect()
    after = set(os.listdir("/proc/self/fd"))
    left = [os.readlink(f"/proc/self/fd/{fd}") for fd in after - before if os.path.islink(f"/proc/self/fd/{fd}")]
    assert not left

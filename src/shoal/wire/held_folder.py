"""A folder that counts as alive while a process holds it: by a shared lock, which ends with the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def is_alive(folder: Path) -> bool:
    """Whether somebody holds this folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """As long as this lasts, or until this process dies, the folder counts as alive."""
    descriptor = held(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def held(folder: Path) -> int:
    """A descriptor that holds it until it is closed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

"""Every program is compiled once on a machine, on JAX: by the worker that needs it first, with all the run's cores.

The workers of a run need the same programs at nearly the same time. Without this each would compile all of them on its
own core. Here the first one to miss a program in the compilation cache holds its lock until it has put it there; the
others wait for that and load it. A lock belongs to an open file, so a process that dies gives it back. Nothing but
speed depends on it: who has waited for too long compiles.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.clock import Deadline
from shoal.hook import keras_private

_ENTRY = "-cache"  # JAX's own endings and names: other versions of Shoal, and plain JAX, may use the same folder
_LOCK = "-lock"
_PATIENCE = 120.0  # seconds to wait for another worker's compiler
_PAUSE = 0.002


def install() -> None:
    """From now on, wherever JAX's compilation cache is a plain folder on a disk."""
    import jax

    def shared(original: Callable[[str], Any]) -> Callable[[str], Any]:
        def get_file_cache(path: str) -> tuple[Any, str] | None:
            is_plain = jax.config.jax_compilation_cache_max_size == -1 and "://" not in path
            return (SharedCache(Path(path)), path) if is_plain else original(path)

        return get_file_cache

    keras_private.replace_file_cache(shared)


class SharedCache:
    """A folder of compiled programs, each written whole and by one process. What JAX calls a CacheInterface."""

    def __init__(self, folder: Path, patience: float = _PATIENCE) -> None:
        self._path = folder
        self._patience = patience
        self._compiling = threading.local()  # .lock: of the program that this thread compiles
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> bytes | None:
        self._release()  # of a program that was compiled and not put: not all are
        if (found := self._read(key)) is not None:
            return found
        try:
            lock = _Lock(self._path / f"{key}{_LOCK}")
        except OSError:
            return None  # a folder to read from only: everybody compiles what is not there
        if lock.wait(Deadline.after(self._patience)) and (found := self._read(key)) is None:
            self._compiling.lock = lock
        else:
            lock.release()
        return found

    def put(self, key: str, value: bytes) -> None:
        draft = self._path / f".{key}.{secrets.token_hex(4)}"
        try:
            draft.write_bytes(value)
            draft.replace(self._path / f"{key}{_ENTRY}")
        finally:
            draft.unlink(missing_ok=True)
            self._release()

    def _read(self, key: str) -> bytes | None:
        try:
            return (self._path / f"{key}{_ENTRY}").read_bytes()
        except FileNotFoundError:
            return None

    def _release(self) -> None:
        lock: _Lock | None = getattr(self._compiling, "lock", None)
        if lock is not None:
            lock.release()
            self._compiling.lock = None


class _Lock:
    """Held by at most one open file on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def wait(self, deadline: Deadline) -> bool:
        """Whether it could be had in time."""
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if deadline.passed():
                    return False
                time.sleep(_PAUSE)

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._fd)

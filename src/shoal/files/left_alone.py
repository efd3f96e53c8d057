"""Which paths are nobody's business here: the system's, the run's own, and those of libraries that share well.

Libraries keep what they compiled or downloaded in caches that many processes use at the same time, and see to it
themselves that these do not disturb each other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from shoal.files import system

_SYSTEM = ("/proc", "/sys", "/dev")
_CACHES = (  # variables that name a library's folder
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_RUNTIME_DIR",
    "HF_HOME",
    "JAX_COMPILATION_CACHE_DIR",
    "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_HOME",
    "TRITON_CACHE_DIR",
)
_ROOM = 1000  # temporary files that are remembered before it is looked which of them are gone
_AT_HOME = (".cache", ".config", ".local", ".triton", ".nv")


class LeftAlone:
    """Knows them. Temporary files, whose names nobody else has, are added as they are made."""

    def __init__(self, environ: Mapping[str, str], temporary: str, own: Iterable[str]) -> None:
        home = os.path.expanduser("~")
        folders = [*_SYSTEM, *own, sys.prefix, sys.base_prefix, *(os.path.join(home, name) for name in _AT_HOME)]
        folders += [environ[name] for name in _CACHES if environ.get(name)]
        folders = [os.path.abspath(folder) for folder in folders]
        compiled = os.path.join(temporary, "torchinductor_")
        self._beginnings = (*(f"{folder}/" for folder in folders if folder != "/"), compiled)
        self._temporary: set[str] = set()
        self._room = _ROOM

    def add(self, path: str) -> None:
        if len(self._temporary) >= self._room:
            self._temporary = set(filter(system.exists, self._temporary))
            self._room = max(_ROOM, 2 * len(self._temporary))
        self._temporary.add(path)

    def discard(self, path: str) -> None:
        """It is gone."""
        self._temporary.discard(path)

    def is_temporary(self, path: str) -> bool:
        if not self._temporary:
            return False
        while path not in self._temporary:
            path, before = os.path.dirname(path), path
            if path == before:
                return False
        return True

    def has(self, path: str) -> bool:
        """Whether this absolute path is one of them."""
        return path.startswith(self._beginnings) or "/__pycache__" in path or self.is_temporary(path)

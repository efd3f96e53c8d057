"""How a function of Python's is replaced, and which calls of it are looked at: those with a path that is text."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any


def plain(path: Any) -> str | None:
    """The absolute path, where it is text; of bytes and descriptors, nothing."""
    if not isinstance(path, str):
        if not isinstance(path, os.PathLike):
            return None
        path = os.fspath(path)
        if not isinstance(path, str):
            return None
    return os.path.abspath(path)


def wrap(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    setattr(owner, name, functools.wraps(getattr(owner, name))(replacement))


def replace(name: str, replacement: Callable[..., Any]) -> None:
    """A function of `os`, by a bound method: like the builtin, and unlike a function, it is no method of a class."""
    original = getattr(os, name)
    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in able:
            able.add(replacement)
    setattr(os, name, replacement)

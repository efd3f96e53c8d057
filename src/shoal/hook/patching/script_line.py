"""Which line of the user's own code is being run: for errors that name it."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from shoal.hook import keras_private

Place = tuple[str, int]  # a file and a line in it

_SHOAL = str(Path(__file__).parents[2]) + os.sep
_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_PACKAGES = ("/site-packages/", "/dist-packages/")
_FRAMEWORKS = tuple(f"{folder}{name}/" for folder in _PACKAGES for name in ("keras", "jax", "tensorflow", "torch"))


def at_script_line() -> str:
    """`train.py:41: ` for the beginning of a message; empty if the caller was not called by code of the user's."""
    place = script_line()
    return f"{shown(place[0])}:{place[1]}: " if place else ""


def script_line() -> Place | None:
    """The innermost line that is the user's."""
    return users_line(reversed(_stack()))


def users_line(places: Iterable[Place]) -> Place | None:
    """Of some places the first in a file of the user's; else the first that is neither Python's, Shoal's nor a
    framework's: a user's package may be installed like all others.
    """
    found = list(places)
    for is_foreign in (_is_installed, _is_framework):
        if (place := _first(found, is_foreign)) is not None:
            return place
    return None


def _first(places: Iterable[Place], is_foreign: Callable[[str], bool]) -> Place | None:
    return next((place for place in places if not is_foreign(place[0])), None)


def _is_installed(file: str) -> bool:
    return file.startswith(("<", _SHOAL, *_LIBRARIES)) or any(folder in file for folder in _PACKAGES)


def _is_framework(file: str) -> bool:
    is_python = _is_installed(file) and not any(folder in file for folder in _PACKAGES)
    return is_python or any(folder in file for folder in _FRAMEWORKS)


def _stack() -> list[Place]:
    """The innermost last."""
    return keras_private.traced_stack() or [(frame.filename, frame.lineno or 0) for frame in traceback.extract_stack()]


def shown(file: str) -> str:
    """As short as it can be for somebody who is where the run was started."""
    return os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file

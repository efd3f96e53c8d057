"""Libraries that open files themselves, past Python: the usual ones are followed as Python's own `open` is."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from shoal.files import Files
from shoal.files.files import Operation
from shoal.files.opening import place_to_read, place_to_write
from shoal.hook.patching.on_import import when_imported

# A function that writes one file: its module, its name there, and which argument is the path.
_WRITERS = (("torch", "save", 1), ("tensorflow", "io.write_file", 0), ("cv2", "imwrite", 0))

_MARK = "followed_by_shoal"


def install(files: Files) -> None:
    """From the moment that a library is imported."""
    for module, name, position in _WRITERS:
        when_imported(module, functools.partial(_follow_writer, files, module, name, position))
    when_imported("h5py", lambda: _follow_h5py(files, sys.modules["h5py"].File))
    when_imported("tensorflow", lambda: _follow_records(files, sys.modules["tensorflow"].io.TFRecordWriter))


def _follow_writer(files: Files, module: str, name: str, position: int) -> None:
    owner, name = _owner(sys.modules[module], name)

    def make(original: Any) -> Any:
        def write(*args: Any, **more: Any) -> Any:
            given, path = _usual(files, args[position] if len(args) > position else None)
            if path is None:
                return original(*args, **more)

            def to(place: Any) -> Any:
                return original(*args[:position], place, *args[position + 1 :], **more)

            def alone(did: bool) -> Any:
                with place_to_write(files, path, fresh=True, must_exist=False) as place:
                    return to(place)

            return files.change(Operation("library", path), lambda: to(given), alone)

        return write

    _replace(owner, name, make)


def _follow_h5py(files: Files, cls: Any) -> None:
    def make(original: Any) -> Any:
        def begin(self: Any, name: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
            given, path = _usual(files, name if not args and more.get("driver") is None else None)
            if path is None:
                return original(self, name, mode, *args, **more)
            if mode == "r":
                return original(self, place_to_read(files, given, path) or given, mode, **more)

            def alone(did: bool) -> Any:
                kind = "w" if mode in ("w-", "x") else mode
                with place_to_write(files, path, fresh=kind == "w", must_exist=kind == "r+") as place:
                    return original(self, place, kind, **more)

            return files.change(Operation("library", path), lambda: original(self, given, mode, **more), alone)

        return begin

    _replace(cls, "__init__", make)


def _follow_records(files: Files, cls: Any) -> None:
    """TensorFlow's own reader comes to them next: not before the chief has closed them."""

    def make(original: Any) -> Any:
        def begin(self: Any, path: Any, options: Any = None) -> Any:
            given, name = _usual(files, path)
            if name is None:
                return original(self, path, options)
            self.followed = name

            def alone(did: bool) -> Any:
                with place_to_write(files, name, fresh=True, must_exist=False) as place:
                    return original(self, place, options)

            return files.change(Operation("open", name), lambda: original(self, given, options), alone)

        return begin

    def ending(original: Any) -> Any:
        def end(self: Any, *args: Any) -> Any:
            result = original(self, *args)
            if (path := self.__dict__.pop("followed", None)) is not None:
                (files.until_closed if files.follows else files.closed)(path)
            return result

        return end

    _replace(cls, "__init__", make)
    for name in ("close", "__exit__"):
        _replace(cls, name, ending)


def _usual(files: Files, path: Any) -> tuple[Any, str | None]:
    return files.where(path) if isinstance(path, str | os.PathLike) else (path, None)


def _owner(module: Any, name: str) -> tuple[Any, str]:
    *path, last = name.split(".")
    return functools.reduce(getattr, path, module), last


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Once: a module may be imported again."""
    original = getattr(owner, name, None)
    if original is not None and not hasattr(original, _MARK):
        replacement: Any = functools.wraps(original)(make(original))
        setattr(replacement, _MARK, True)
        setattr(owner, name, replacement)

"""open and os.open: a follower's writes go to private files, and it reads those first."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import stat
import threading
from collections.abc import Iterator
from typing import Any

from shoal.files import system
from shoal.files.files import Files, Operation
from shoal.files.replacing import replace

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ANONYMOUS = os.O_TMPFILE & ~os.O_DIRECTORY


class Opening:
    """open and os.open."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def install(self) -> None:
        builtins.open = io.open = self.open
        replace("open", self.os_open)

    def open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        rest = (buffering, encoding, errors, newline)
        if opener is not None or not closefd or not isinstance(mode, str):
            return system.open(file, mode, *rest, closefd, opener)
        reads = mode.isalpha() and "r" in mode
        if reads and not self._files.redirects:
            return system.open(file, mode, *rest)
        file, path = self._files.where(file)
        if path is None:
            return system.open(file, mode, *rest)
        if reads:
            place = place_to_read(self._files, file, path)
            # With an opener, so that the file bears the name that the script knows.
            opener = None if place is None else lambda _, flags: system.os_open(place, flags)
            return system.open(file, mode, *rest, opener=opener)
        return self._files.change(
            Operation("append" if "a" in mode else "open", path),
            lambda: self._open_for_all(file, path, mode, rest),
            lambda did: self._open_alone(file, path, mode, rest),
        )

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None or flags & (_ANONYMOUS | os.O_DIRECTORY):
            return system.os_open(path, flags, mode, dir_fd=dir_fd)
        path, name = self._files.where(path)
        if name is None:
            return system.os_open(path, flags, mode)
        if not flags & _WRITING:
            return system.os_open(place_to_read(self._files, path, name) or path, flags, mode)
        return self._files.change(
            Operation("descriptor", name),
            lambda: system.os_open(path, flags, mode),
            lambda did: self._os_open_alone(name, flags, mode),
        )

    def _open_for_all(self, name: Any, path: str, mode: str, rest: tuple[Any, ...]) -> Any:
        """The chief's: it says when it is closed."""
        file = system.open(name, mode, *rest)
        if not self._files.is_noted or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        # The same again, of the same descriptor: what Python has opened can't be made to tell.
        raw = ChiefsFile(self._files, os.dup(file.fileno()), _kind(mode), path, name)
        file.close()
        return _wrapped(raw, mode, *rest)

    def _open_alone(self, name: Any, path: str, mode: str, rest: tuple[Any, ...]) -> Any:
        kind = _kind(mode)
        system.open(os.devnull, mode.replace("x", "w"), *rest).close()  # raises if they do not go together
        with place_to_write(self._files, path, fresh="w" in kind, must_exist="r" in kind) as place:
            raw = PrivateFile(self._files, place, kind, path, name)
        return _wrapped(raw, mode, *rest)

    def _os_open_alone(self, path: str, flags: int, mode: int) -> int:
        fresh, must_exist = bool(flags & os.O_TRUNC), not flags & os.O_CREAT
        with place_to_write(self._files, path, fresh, must_exist) as place:
            return system.os_open(place, flags & ~os.O_EXCL, mode)


def place_to_read(files: Files, given: Any, path: str) -> str | None:
    """Where a follower reads instead, if anywhere."""
    if not files.follows:
        return None
    try:
        found = system.stat(given)
    except OSError:
        found = None
    return files.look(path, found) if files.is_unsettled(found) else None


@contextlib.contextmanager
def place_to_write(files: Files, path: str, fresh: bool, must_exist: bool) -> Iterator[str]:
    """Where a follower's file lies, while it is opened to be written.

    One that is only changed or added to, and is the chief's, is copied, and the copy is gone when it is closed:
    who reads the file next reads the chief's, which has been changed in the same way.
    """
    place = files.private.find(path)
    is_there = place is not None or system.exists(path)
    if must_exist and not is_there:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if place is not None or fresh or not is_there:
        yield place or files.private.place(path)
        return
    files.until_closed(path)
    place = files.private.throw_away(path)
    try:
        yield place
    finally:
        system.unlink(place)


class _WatchedFile(io.FileIO):
    """Does something when it has been closed."""

    def __init__(self, files: Files, file: str | int, mode: str, path: str, name: Any) -> None:
        super().__init__(file, mode)
        self.path = path
        self.name = name  # as the script knows it
        self._files = files

    def close(self) -> None:
        was_closed = self.closed
        super().close()
        if not was_closed:
            self.closed_now()

    def closed_now(self) -> None:
        raise NotImplementedError


class ChiefsFile(_WatchedFile):
    """The real one."""

    def closed_now(self) -> None:
        self._files.closed(self.path)


class PrivateFile(_WatchedFile):
    """One that its worker alone sees."""

    def __init__(self, files: Files, file: str | int, mode: str, path: str, name: Any) -> None:
        super().__init__(files, file, mode, path, name)
        self.appends = "a" in mode
        self._thread = threading.get_ident()
        files.opened(self)

    def closed_now(self) -> None:
        # Not where it was forgotten: any thread may find that out.
        if self._thread == threading.get_ident():
            self._files.until_closed(self.path)


def _kind(mode: str) -> str:
    """The mode of the bytes. Where this is asked, the file is known to be there, or not to be in the way."""
    return "".join(letter for letter in mode.replace("x", "w") if letter in "rwa+")


def _wrapped(raw: _WatchedFile, mode: str, buffering: int, encoding: Any, errors: Any, newline: Any) -> Any:
    """What io.open makes of a FileIO."""
    binary = "b" in mode
    if buffering == 0 and binary:
        return raw
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    buffered = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
    if binary:
        return buffered
    text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # type: ignore[misc]
    return text

"""What tells about files without changing them: a follower sees its private files among the chief's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from shoal.files import system
from shoal.files.files import Files
from shoal.files.replacing import replace


class Looking:
    """What tells about files without changing them."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def install(self) -> None:
        for name in ("stat", "lstat", "access", "chdir", "listdir", "scandir"):
            replace(name, getattr(self, name))

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        if dir_fd is not None or not self._files.redirects:
            return system.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        return self._stat(path, lambda path: system.stat(path, follow_symlinks=follow_symlinks))

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        if dir_fd is not None or not self._files.redirects:
            return system.lstat(path, dir_fd=dir_fd)
        return self._stat(path, system.lstat)

    def access(self, path: Any, mode: int, **more: Any) -> bool:
        return system.access(self._instead(path), mode, **more)

    def chdir(self, path: Any) -> None:
        system.chdir(self._instead(path))

    def listdir(self, path: Any = None) -> list[Any]:
        names = system.listdir(self._instead(path, of_names=True))
        mine = self._names(path)
        return names if not mine else [*names, *(name for name in mine if name not in set(names))]

    def scandir(self, path: Any = None) -> Any:
        found = system.scandir(self._instead(path, of_names=True))
        mine = self._names(path)
        return found if not mine else _Entries(found, path, mine, self._files)

    def _stat(self, path: Any, look: Callable[[Any], os.stat_result]) -> os.stat_result:
        try:
            found = look(path)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is not None and not self._files.is_unsettled(found):
            return found
        path, name = self._files.where(path)
        place = self._files.look(name, found) if name is not None and self._files.follows else None
        return look(place or path)

    def _instead(self, path: Any, of_names: bool = False) -> Any:
        """What to look at."""
        path, name = self._files.where("." if path is None else path)
        if name is None or not self._files.follows:
            return path
        try:
            found = system.stat(name)
        except OSError:
            found = None
        if of_names and self._files.is_unsettled(found, of_names):
            self._files.look(name, found, of_names)
        return self._files.private.find(name) or path

    def _names(self, path: Any) -> list[str]:
        """What lies in a folder privately, and not otherwise."""
        if not self._files.follows or not self._files.private.exist:
            return []
        _, name = self._files.where("." if path is None else path)
        return self._files.private.names(name) if name is not None else []


class _Entry:
    """As os.DirEntry, for a private file."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path

    def __fspath__(self) -> str:
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path)

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return os.stat(self.path).st_ino


class _Entries:
    """As what os.scandir gives, with private files. Where there are two of a name, the private one."""

    def __init__(self, found: Any, path: Any, mine: list[str], files: Files) -> None:
        self._found = found
        folder = "." if path is None else os.fspath(path)
        self._all = self._chain(found, folder, mine, files)

    @staticmethod
    def _chain(found: Any, folder: str, mine: list[str], files: Files) -> Iterator[Any]:
        theirs = set()
        for entry in found:
            theirs.add(entry.name)
            path = os.path.join(folder, entry.name)
            is_private = entry.name in mine and files.private.find(os.path.abspath(path)) is not None
            yield _Entry(entry.name, path) if is_private else entry
        for name in mine:
            if name not in theirs:
                yield _Entry(name, os.path.join(folder, name))

    def __iter__(self) -> Iterator[Any]:
        return self._all

    def __next__(self) -> Any:
        return next(self._all)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._found.close()

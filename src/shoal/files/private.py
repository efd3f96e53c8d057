"""Files that a worker which is not the chief has written: they lie in a folder of their own, and only it sees them.

The folder has the shape of the file system: /data/a.csv lies at FOLDER/data/a.csv. What lies there hides the chief's
file of the same name from this worker. Folders hide nothing: they show what both have.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator

from shoal.files import system


class PrivateFiles:
    """The private files of one process. `make` says where they are to lie; it is called when there is the first."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make
        self._root = ""  # none yet

    @property
    def exist(self) -> bool:
        return bool(self._root)

    def find(self, path: str) -> str | None:
        """Where the private file of this path lies, or the folder if there is no other of this name."""
        if not self._root:
            return None
        place = self._root + path
        try:
            found = system.lstat(place)
        except OSError:
            return None
        return None if stat.S_ISDIR(found.st_mode) and system.exists(path) else place

    def names(self, folder: str) -> list[str]:
        """What lies in this folder privately."""
        try:
            return system.listdir(self._root + folder) if self._root else []
        except OSError:
            return []

    def place(self, path: str) -> str:
        """Where a new one is to lie. FileNotFoundError if there is no such folder."""
        folder = os.path.dirname(path)
        if not system.is_folder(self.find(folder) or folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._root = self._root or self._make()
        os.makedirs(self._root + folder, exist_ok=True)
        return self._root + path

    def mkdir(self, path: str) -> None:
        system.mkdir(self.place(path))

    def remove(self, path: str) -> None:
        """A file or a folder with all that is in it; nothing if it is not there."""
        if self._root:
            system.remove(self._root + path)

    def rename(self, source: str, target: str) -> bool:
        """Whether there was anything to rename."""
        place = self.find(source)
        if place is None:
            return False
        self.take(place, target)
        return True

    def take(self, place: str, target: str) -> None:
        """What lies at this place, outside or inside, is the private file of that path from now on."""
        self.remove(target)
        shutil.move(place, self.place(target))

    def throw_away(self, path: str) -> str:
        """Where a copy of the chief's file lies, if there is one, which nobody sees: to be opened and removed."""
        place = self.place(path) + ".thrown-away"
        _copy(path, place)
        return place

    def stand_in(self, folder: str) -> str:
        """Where there is an empty folder in the place of one that the chief has removed since."""
        self._root = self._root or self._make()
        os.makedirs(self._root + folder, exist_ok=True)
        return self._root + folder

    def clear(self) -> None:
        if self._root:
            shutil.rmtree(self._root, ignore_errors=True)
        self._root = ""

    def files(self) -> Iterator[tuple[str, str]]:
        """The path of each and where it lies."""
        for folder, _, names in os.walk(self._root) if self._root else ():
            for name in names:
                place = os.path.join(folder, name)
                yield place[len(self._root) :], place


def _copy(path: str, place: str) -> None:
    with contextlib.suppress(FileNotFoundError), system.open(path, "rb") as theirs, system.open(place, "wb") as mine:
        shutil.copyfileobj(theirs, mine)

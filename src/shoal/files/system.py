"""Python's functions on files as they are without Shoal: taken when this is imported, before any is replaced."""

from __future__ import annotations

import io
import os
import shutil
import stat as modes

open = io.open
os_open = os.open
stat = os.stat
lstat = os.lstat
access = os.access
chdir = os.chdir
listdir = os.listdir
scandir = os.scandir
mkdir = os.mkdir
rmdir = os.rmdir
unlink = os.unlink
rename = os.rename
replace = os.replace
symlink = os.symlink
link = os.link
chmod = os.chmod
utime = os.utime
truncate = os.truncate
rmtree = shutil.rmtree


def exists(path: str) -> bool:
    """Whether something lies there, be it a link that leads nowhere."""
    try:
        lstat(path)
    except OSError:
        return False
    return True


def is_folder(path: str) -> bool:
    try:
        return modes.S_ISDIR(stat(path).st_mode)
    except OSError:
        return False


def remove(path: str) -> None:
    """A file, or a folder with all that is in it; nothing if it is not there."""
    try:
        unlink(path)
    except IsADirectoryError:
        rmtree(path, ignore_errors=True)
    except OSError:
        pass

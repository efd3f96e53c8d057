"""Files as checkpoints need them: synced when written, and nothing but plain files of the right size when read."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from shoal.errors import BadCheckpoint

GONE = ".gone-"  # begins the name of what is on its way out

_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "the file is too large"}


def explain(error: OSError) -> str:
    """An error of the file system in words that say what to do."""
    why = _FULL.get(error.errno or 0)
    if why is None:
        return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
    return f"{why} ({error.strerror}). Free space there, keep fewer checkpoints, or write them elsewhere"


def sync_folder(folder: Path) -> None:
    """Returns when the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[int]:
    """A file of nobody else's: what was there under this name goes on without it. Synced if all went well."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        yield descriptor
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def plain_file(path: Path) -> Iterator[tuple[FileIO, int]]:
    """A file to read, and its size. Links, pipes and devices are refused: their bytes come from elsewhere."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BadCheckpoint(f"{path.name} is missing") from None
    except OSError as error:
        raise BadCheckpoint(f"{path.name} can't be opened: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadCheckpoint(f"{path.name} is not a plain file")
        with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
            yield file, status.st_size
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Removes a folder. Under its own name it is gone at once, so that nobody finds half of it."""
    gone = folder
    if not folder.name.startswith(GONE):
        gone = folder.with_name(f"{GONE}{folder.name.lstrip('.')}-{secrets.token_hex(4)}")
        try:
            folder.rename(gone)
        except FileNotFoundError:
            return
        except OSError:
            gone = folder
    if gone.is_symlink():  # what it leads to is not ours
        gone.unlink(missing_ok=True)
    shutil.rmtree(gone, ignore_errors=True)

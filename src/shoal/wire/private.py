"""Files with secrets: new ones that only their owner may read, and strict readers of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from shoal.errors import UsageError


def write_new(path: Path, data: bytes) -> None:
    """Write a new file of mode 0600. FileExistsError if there is one: a secret is never written over."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def read(path: Path, limit: int, what: str) -> bytes:
    """What `write_new` wrote. A UsageError says why this file is not trusted; reads at most `limit` bytes.

    The open file is judged, not its name, so nobody can change it in between.
    """
    try:
        # Non-blocking, else opening a pipe would wait for somebody to write into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"can't read {what} {path}: {error.strerror}. Give the path of the file itself.") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{what} {path} is no regular file. Give the path of the file itself.")
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise UsageError(
                f"{what} {path} is readable by others: expected mode 0600 of user {os.getuid()}, found mode "
                f"{status.st_mode & 0o777:04o} of user {status.st_uid}. If nobody else has read it, `chmod 600` it; "
                "if somebody may have, start the run anew."
            )
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UsageError(f"{what} {path} is malformed: it has more than {limit:,} bytes")
    return data

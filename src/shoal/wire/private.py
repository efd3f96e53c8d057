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


def read(path: Path, limit: int, what: str, is_mounted: bool = False) -> bytes:
    """What `write_new` wrote. A UsageError says why this file is not trusted; reads at most `limit` bytes.

    The open file is judged, not its name, so nobody can change it in between. `is_mounted`: somebody else may have laid
    it there, as Kubernetes does with secrets: behind links, of the superuser, for a group. Links of other users are not
    followed.
    """
    if is_mounted:
        _check_links(path, what)
    try:
        # Non-blocking, else opening a pipe would wait for somebody to write into it.
        follow = 0 if is_mounted else os.O_NOFOLLOW
        descriptor = os.open(path, os.O_RDONLY | follow | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"can't read {what} {path}: {error.strerror}. Give the path of the file itself.") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{what} {path} is no regular file. Give the path of the file itself.")
        if not (_is_ours(status) or (is_mounted and _is_for_us(status))):
            raise UsageError(
                f"{what} {path} is readable by others: expected mode 0600 of user {os.getuid()}, found mode "
                f"{status.st_mode & 0o777:04o} of user {status.st_uid}. If nobody else has read it, `chmod 600` it; "
                "if somebody may have, start the run anew."
            )
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UsageError(f"{what} {path} is malformed: it has more than {limit:,} bytes")
    return data


def _is_ours(status: os.stat_result) -> bool:
    """Nobody but this user may read it."""
    return status.st_uid == os.getuid() and not status.st_mode & 0o077


def _is_for_us(status: os.stat_result) -> bool:
    """The superuser has laid it there, for nobody or for a group of ours; nobody else may read it, or write it."""
    group = status.st_mode & 0o070
    of_ours = status.st_gid in (os.getgid(), *os.getgroups())
    return status.st_uid == 0 != os.getuid() and not status.st_mode & 0o037 and (not group or of_ours)


def _check_links(path: Path, what: str) -> None:
    """Those on the way are of this user or of the superuser: nobody else decides which file it is."""
    left, seen = [path.absolute()], 0
    while left:
        here = left.pop()
        for part in (*reversed(here.parents), here):
            try:
                status = part.lstat()
            except OSError:
                return  # opening it says why
            if not stat.S_ISLNK(status.st_mode):
                continue
            if status.st_uid not in (0, os.getuid()):
                raise UsageError(
                    f"{what} {path} is behind a link of user {status.st_uid}, {part}, who could lead it elsewhere. "
                    "Give the path of the file itself."
                )
            if (seen := seen + 1) > 40:  # as many as the system follows
                return
            target = part.parent / os.readlink(part)
            left.append(target / here.relative_to(part) if here != part else target)
            break

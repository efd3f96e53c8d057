"""One run at a time writes into a folder of checkpoints: each would remove the other's as its own old ones.

A run locks a file in the folder. The kernel frees it when the last process that holds it is gone, however that ended.
Between hosts this is as good as the file system's locks are: NFS 4 has them; NFS with `nolock` or `local_lock`, and
Lustre without `flock`, have them within a host, or not at all. Where two runs meet after all, each leaves alone what
the manifests say is the other's (publish.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from shoal.errors import UsageError

_FILE = ".lock"
_LARGEST = 4096  # bytes
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class _Owner(msgspec.Struct, frozen=True):
    """What the file says about who has locked it."""

    run: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"run {self.run} (pid {self.pid} on {self.host})"


@contextlib.contextmanager
def claim(folder: Path, run: str, say: Callable[[str], None]) -> Iterator[int | None]:
    """As long as this lasts, no other run writes there; makes the folder if need be. UsageError if another run does.

    Gives a descriptor: a process that inherits it keeps the claim. None, and a word to the user, if the file system has
    no locks.
    """
    path = folder / _FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(path)
    except BlockingIOError:
        raise UsageError(
            f"{folder} is in use: {_owner(path)} writes its checkpoints there. Wait until it has ended, or name "
            "another folder."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise UsageError(f"can't write checkpoints to {folder}: {error.strerror}") from error
        path.unlink(missing_ok=True)
        say(f"can't lock {folder} ({error.strerror}): see to it that no other run writes checkpoints there")
        yield None
        return
    try:
        with contextlib.suppress(OSError):  # a full disk: then the others are not told whose it is
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(_Owner(run, platform.node(), os.getpid())), 0)
        yield descriptor
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # before it is let go of: who has opened it by then sees that it is not the one
        os.close(descriptor)


def _lock(path: Path) -> int:
    """The file with this name, locked."""
    while True:
        # To write: over NFS an exclusive lock needs it.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _owner(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return str(msgspec.json.decode(file.read(_LARGEST), type=_Owner))
    except (OSError, msgspec.MsgspecError):
        return "another run"

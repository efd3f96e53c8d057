"""Where runs live on this machine: one folder per run that only its owner may enter.

It holds run.json, the key, the sockets and where the coordinator listens. The launcher and the coordinator
hold a shared lock on it; when nobody does, the run is dead and the next launch sweeps its folder away.

Somebody may delete it: a user, a tidier of temporary files, a system that removes XDG_RUNTIME_DIR at logout. Then the
launcher puts back what it has written there, and the coordinator and the workers listen anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.errors import UsageError
from shoal.wire import private
from shoal.wire.addresses import needs_certificate
from shoal.wire.certificates import RunCertificate
from shoal.wire.held_folder import held, hold, is_alive

_PRIVATE = "private-"  # before the name of a link to what a worker keeps elsewhere
STATUS_PAGE = ".status"  # after a worker's id: the file that its status page lies in
_INTERRUPTED = "interrupted"


def home(environ: Mapping[str, str]) -> Path:
    """The folder of all runs of this user: made if need be, refused if others could look into it."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    return _private(Path(runtime) / "shoal" if runtime else Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}")


def _private(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"can't make {folder} for the run's key and sockets: {error.strerror}. "
            "Set XDG_RUNTIME_DIR to a folder of yours."
        ) from error
    # lstat: a link that another user laid at this name must not lead us elsewhere.
    status = folder.lstat()
    if not folder.is_dir() or folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UsageError(
            f"{folder} is not safe for a run's key: expected a folder that user {os.getuid()} owns and nobody "
            f"else may enter (mode 0700), found mode {status.st_mode & 0o777:04o} of user {status.st_uid}. "
            "Remove it, or set XDG_RUNTIME_DIR to a folder of yours."
        )
    return folder


@contextlib.contextmanager
def create(home: Path, run: str) -> Iterator[Path]:
    """A new run's folder; dead runs' folders are swept away first, this one at the end."""
    folder = home / run
    with contextlib.ExitStack() as stack:
        with _sweeping(home):
            for other in runs(home):
                if not is_alive(other):
                    remove(other)
            folder.mkdir(mode=0o700)
            stack.callback(remove, folder)
            stack.enter_context(hold(folder))
        yield folder


class FolderKeeper:
    """Keeps a run's folder as it is when this is made: what is removed of it is put back. Holds it until `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self._descriptor = held(folder)

    def restore(self) -> bool:
        """Put back what is missing; whether something was. UsageError if it can't be."""
        if self._is_whole():
            return False
        home = _private(self._folder.parent)
        try:
            with _sweeping(home):
                self._folder.mkdir(mode=0o700, exist_ok=True)
                before, self._descriptor = self._descriptor, held(self._folder)
                os.close(before)
                for name, content in self._files.items():
                    with contextlib.suppress(FileExistsError):
                        private.write_new(self._folder / name, content)
        except OSError as error:
            raise UsageError(f"can't make {self._folder}: {error.strerror}") from error
        return True

    def rewrite(self, name: str, content: bytes) -> None:
        """From now on this file has another content. Readers see all of it or nothing. UsageError if it can't be."""
        self._files[name] = content
        draft = self._folder / f".{name}"
        try:
            draft.write_bytes(content)
            os.replace(draft, self._folder / name)
        except OSError as error:
            raise UsageError(f"can't write {self._folder / name}: {error.strerror}") from error

    def close(self) -> None:
        os.close(self._descriptor)

    def _is_whole(self) -> bool:
        try:
            there = self._folder.stat()
        except OSError:
            return False
        same = os.path.samestat(there, os.fstat(self._descriptor))
        return same and all((self._folder / name).exists() for name in self._files)


def remember(folder: Path, elsewhere: str) -> None:
    """A worker keeps files in a folder elsewhere: it is removed with the run's, should the worker be killed."""
    with contextlib.suppress(OSError):
        (folder / f"{_PRIVATE}{os.path.basename(elsewhere)}").symlink_to(elsewhere)


def remove(folder: Path) -> None:
    """With all that a run has left behind. Nothing happens if it is gone."""
    for link in folder.glob(f"{_PRIVATE}*"):
        elsewhere = os.path.realpath(link)
        if os.path.basename(elsewhere) == link.name.removeprefix(_PRIVATE):  # as `remember` has made it
            shutil.rmtree(elsewhere, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def coordinator_address(folder: Path) -> str:
    """Where a run's coordinator listens unless it is told otherwise."""
    return f"unix:{folder}/coordinator.sock"


def certificate(folder: Path, address: str) -> RunCertificate | None:
    """What the run's coordinator shows at this address: made once per run, where one is needed."""
    if not needs_certificate(address):
        return None
    path = folder / "certificate"
    if not path.exists():
        RunCertificate.new().save(path)
    return RunCertificate.load(path)


def forget_coordinator(folder: Path) -> None:
    """Remove the socket of a coordinator that died; only one that takes its place may ask for it."""
    (folder / "coordinator.sock").unlink(missing_ok=True)


def mark_interrupted(folder: Path) -> None:
    """The launcher is about to send SIGINT: a KeyboardInterrupt is no error of the script."""
    with contextlib.suppress(OSError):
        (folder / _INTERRUPTED).touch()


def was_interrupted(folder: Path) -> bool:
    return (folder / _INTERRUPTED).exists()


def runs(home: Path) -> list[Path]:
    """The folders of all runs, dead or alive, oldest first."""
    return sorted(path for path in home.iterdir() if path.is_dir())


@contextlib.contextmanager
def _sweeping(home: Path) -> Iterator[None]:
    """One launcher at a time: a folder that was just made and is not yet held must not look dead."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

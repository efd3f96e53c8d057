"""Where runs live on this machine: one folder per run that only its owner may enter.

It holds run.json, the key, the sockets and where the coordinator listens. The launcher and the coordinator
hold a shared lock on it; when nobody does, the run is dead and the next launch sweeps its folder away.
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
from shoal.wire.addresses import needs_certificate
from shoal.wire.certificates import RunCertificate

SLATE = ".slate"  # after a worker's id: the file that its slate lies in


def home(environ: Mapping[str, str]) -> Path:
    """The folder of all runs of this user: made if need be, refused if others could look into it."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "shoal" if runtime else Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"
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
                    shutil.rmtree(other, ignore_errors=True)
            folder.mkdir(mode=0o700)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(hold(folder))
        yield folder


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


def runs(home: Path) -> list[Path]:
    """The folders of all runs, dead or alive, oldest first."""
    return sorted(path for path in home.iterdir() if path.is_dir())


def is_alive(folder: Path) -> bool:
    """Someone holds this run's folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """As long as this lasts, or until this process dies, the run is alive."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _sweeping(home: Path) -> Iterator[None]:
    """One launcher at a time: a folder that was just made and is not yet held must not look dead."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

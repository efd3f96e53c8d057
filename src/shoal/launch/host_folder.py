"""What a host has where a run's checkpoints go: whose folder that is, and what it holds; and what follows for a run on
several hosts.

The hosts of a run need not see one folder. The first that comes to a folder leaves its name there; whoever finds that
name sees the same folder, however it is mounted.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from shoal.checkpoint.addresses import Place, place_of
from shoal.errors import BadCheckpoint, UsageError

_MARK = ".host-"  # and the run's id
_NAME_BYTES = 255
MANIFEST_BYTES = 2 * 2**20  # that travel between hosts


class HeldCheckpoint(msgspec.Struct, frozen=True):
    """The one that a host would go on from."""

    name: str
    step: int
    run: str
    training: str
    when: str
    manifest: bytes  # as it is on disk


class HostFolder(msgspec.Struct, frozen=True):
    """As one host sees it."""

    owner: str  # the host that came to it first
    newest: HeldCheckpoint | None = None  # whole, and true to its digests
    passed_over: tuple[tuple[str, str], ...] = ()  # newer ones, and what is wrong with them
    trainings: tuple[str, ...] = ()  # of all checkpoints there: the runs that they began with


@contextlib.contextmanager
def marked(folder: Path, run: str, host: str) -> Iterator[str]:
    """Whose folder it is: this host's, whose name stays there as long as this lasts, or that of one that came before.

    UsageError if nothing can be written there.
    """
    mark = folder / f"{_MARK}{run}"
    own = folder / f"{_MARK}{run}-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own.write_text(host)
        try:
            mark.hardlink_to(own)  # with its content, or not at all
            owner = host
        except FileExistsError:
            with mark.open() as file:
                owner = file.read(_NAME_BYTES)
        finally:
            own.unlink()
    except OSError as error:
        raise UsageError(f"can't write checkpoints to {folder}: {error.strerror}") from error
    try:
        yield owner
    finally:
        if owner == host:
            mark.unlink(missing_ok=True)


def sweep_marks(folder: Path, run: str) -> None:
    """Those of runs that died. For who has locked the folder."""
    for path in folder.glob(f"{_MARK}*"):
        if not path.name.startswith(f"{_MARK}{run}"):
            with contextlib.suppress(OSError):
                path.unlink()


def look(folder: Path, resume: str | None, owner: str) -> HostFolder:
    """At what it holds. `resume`: as on the command line; what is to be gone on from is read and verified."""
    from shoal.checkpoint.read import describe, manifest_at, newest_whole  # brings numpy, which others can do without
    from shoal.checkpoint.storage.choice import storage_of

    there = [found.first_run for path in storage_of(folder).checkpoints() if (found := manifest_at(path)) is not None]
    trainings = tuple(dict.fromkeys(there))
    if resume is None:
        return HostFolder(owner, trainings=trainings)
    path, skipped = newest_whole(folder) if resume == "auto" else _named(place_of(resume))
    passed_over = tuple((place.name, why) for place, why in skipped)
    if path is None:
        return HostFolder(owner, None, passed_over, trainings)
    if not isinstance(path, Path):
        raise UsageError(
            f"--resume {resume} is in an object store, and hosts have folders of their own for new ones: name an "
            "address in the store with --checkpoint, too."
        )
    found, data = describe(path), (path / "manifest.json").read_bytes()
    if len(data) > MANIFEST_BYTES:
        raise UsageError(f"{path} has a manifest of {len(data):,} bytes, too many to be sent to hosts that lack it")
    when = found.when.isoformat()
    held = HeldCheckpoint(path.name, found.step, found.run, found.first_run, when, data)
    return HostFolder(owner, held, passed_over, trainings)


def _named(path: Place) -> tuple[Place | None, list[tuple[Place, str]]]:
    from shoal.checkpoint.read import verify

    try:
        verify(path)
    except BadCheckpoint as error:
        return None, [(path, error.why)]
    return path, []


def are_apart(folders: Mapping[str, HostFolder]) -> bool:
    """Whether hosts do not all see one folder."""
    return len({folder.owner for folder in folders.values()}) > 1


def owners(folders: Mapping[str, HostFolder]) -> tuple[str, ...]:
    """Whose folders there are."""
    return tuple(dict.fromkeys(folder.owner for folder in folders.values()))


def newest_held(folders: Mapping[str, HostFolder]) -> tuple[str, HeldCheckpoint] | None:
    """The newest that any host has, and the first host that has it; None if none has any."""
    held = [(host, folder.newest) for host, folder in folders.items() if folder.newest is not None]
    return max(held, key=lambda pair: pair[1].step, default=None)


def holders(folders: Mapping[str, HostFolder], chosen: HeldCheckpoint) -> tuple[str, ...]:
    """The hosts that have a copy of it."""
    return tuple(
        host
        for host, folder in folders.items()
        if folder.newest is not None and (folder.newest.run, folder.newest.step) == (chosen.run, chosen.step)
    )


def put_manifest(folder: Path, run: str, chosen: HeldCheckpoint) -> Path:
    """Where a host without a copy reads what a checkpoint says of itself. It goes as drafts go, with the next one."""
    from shoal.checkpoint.drafts import Draft

    path = folder / Draft(folder, run, chosen.step).hidden_name
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "manifest.json").write_bytes(chosen.manifest)
    except OSError as error:
        raise UsageError(f"can't write to {folder}: {error.strerror}") from error
    return path

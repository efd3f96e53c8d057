"""Where a run's checkpoints go, and which one it goes on from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from shoal.checkpoint.addresses import Place, place_of
from shoal.checkpoint.schedule import parse
from shoal.config import Saving
from shoal.errors import BadCheckpoint, UsageError
from shoal.launch.host_folder import HeldCheckpoint, HostFolder, holders, newest_held, owners, put_manifest
from shoal.launch.outputs import say
from shoal.launch.request import LaunchRequest


def claimed_by(folder: str, run: str) -> AbstractContextManager[int | None]:
    """As long as this lasts, this is the run's place for its checkpoints. UsageError if it can't be written to."""
    from shoal.checkpoint.storage.choice import storage_of  # brings numpy, which others can do without

    return storage_of(place_of(folder)).claimed(run, say)


def saving_of(
    request: LaunchRequest, run: str, resumed: Place | None, apart: ApartFolders | None = None
) -> Saving | None:
    """Where checkpoints go. Not among another training's: the newest of those might be taken for this one's."""
    parse(request.checkpoint_every)
    if request.keep < 1:
        raise UsageError(f"--keep {request.keep}: expected at least 1 checkpoint.")
    if request.checkpoint is None:
        return None
    from shoal.checkpoint.storage.choice import storage_of

    folder = place_of(request.checkpoint)
    if apart is not None:
        first = apart.chosen.training if apart.chosen is not None else None
        return Saving(str(folder), request.checkpoint_every, request.keep, run, first)
    if request.resume is None and storage_of(folder).checkpoints():
        raise UsageError(
            f"{folder} holds checkpoints already. Go on from them with --resume auto, or name another folder."
        )
    training = _training_of(folder, resumed) if resumed is not None else None
    return Saving(str(folder), request.checkpoint_every, request.keep, run, training)


class ApartFolders(NamedTuple):
    """Where hosts have folders of their own for checkpoints."""

    own: str  # whose folder is on this host
    folders: Mapping[str, HostFolder]  # by host
    chosen: HeldCheckpoint | None  # to go on from
    at: Place | None  # where hosts have it that have a copy
    resume: Place | None  # where this host finds it, or at least its manifest


def apart_folders(request: LaunchRequest, run: str, here: str, folders: Mapping[str, HostFolder]) -> ApartFolders:
    """What follows for a run whose hosts do not see one folder. Tells the user. UsageError if it can't be."""
    assert request.checkpoint is not None
    _check_alike(request)
    folder = place_of(request.checkpoint)
    assert isinstance(folder, Path)
    say(
        f"checkpoints: {folder} is not the same folder on all hosts, so each of them ({', '.join(owners(folders))}) "
        "writes a whole copy to its own"
    )
    if request.resume is None:
        for host, there in folders.items():
            if there.trainings:
                raise UsageError(
                    f"{folder} on {host} holds checkpoints already. Go on from them with --resume auto, or name "
                    "another folder."
                )
        return ApartFolders(folders[here].owner, folders, None, None, None)
    for host, there in folders.items():
        for name, why in there.passed_over:
            say(f"{name} on {host} is passed over: {why}")
    found = newest_held(folders)
    if found is None:
        if request.resume != "auto":
            raise UsageError(f"can't resume: no host has a whole copy of {request.resume}. Copy one there.")
        say("no host has a checkpoint yet, starting from the beginning")
        return ApartFolders(folders[here].owner, folders, None, None, None)
    _, chosen = found
    others = sorted({training for there in folders.values() for training in there.trainings} - {chosen.training})
    if others:
        raise UsageError(
            f"{folder} holds checkpoints of another training, of run {others[0]}, on one of the hosts. Name another "
            "folder with --checkpoint."
        )
    having = holders(folders, chosen)
    say(f"going on from {chosen.name}, which run {chosen.run} wrote; it is on {', '.join(having)}")
    at = folder / chosen.name if request.resume == "auto" else place_of(request.resume)
    mine = at if here in having else put_manifest(folder, run, chosen)
    return ApartFolders(folders[here].owner, folders, chosen, at, mine)


def _check_alike(request: LaunchRequest) -> None:
    """Only what all workers have alike can be written whole on each host."""
    wrong = f"--strategy {request.strategy}" if request.strategy != "allreduce" else ""
    wrong = "--servers" if request.servers else wrong
    if wrong:
        raise UsageError(
            f"{wrong}: {request.checkpoint} is not the same folder on all hosts, and no host would have a whole "
            "checkpoint. Name a folder that all hosts see, or an address in an object store, with --checkpoint."
        )


def _training_of(folder: Place, resumed: Place) -> str:
    """The run with which the training began that is gone on with. UsageError if the folder holds another's."""
    from shoal.checkpoint.read import describe, manifest_at
    from shoal.checkpoint.storage.choice import storage_of

    mine = describe(resumed).first_run
    held: dict[str, list[str]] = {}
    for path in storage_of(folder).checkpoints():
        if (there := manifest_at(path)) is not None:
            held.setdefault(there.first_run, []).append(path.name)
    if held.keys() <= {mine}:
        return mine
    if len(held) > 1:
        each = ", ".join(f"of run {first} {names[0]}" for first, names in held.items())
        raise UsageError(
            f"{folder} holds checkpoints of several trainings: {each}. Name the one to go on from with --resume PATH, "
            "and another folder with --checkpoint."
        )
    (other, names), *_ = held.items()
    raise UsageError(
        f"{folder} holds checkpoints of another training, of run {other}: {names[0]}. Name another folder with "
        "--checkpoint."
    )


def resumed_by(request: LaunchRequest) -> Place | None:
    """The checkpoint to go on from. What is torn is passed over, and named."""
    if request.resume is None:
        return None
    from shoal.checkpoint.read import describe, newest_whole, verify  # brings numpy, which others can do without

    if request.resume != "auto":
        path = place_of(request.resume)
        try:
            verify(path)
        except BadCheckpoint as error:
            raise UsageError(f"can't resume: {error}") from error
        return path
    if request.checkpoint is None:
        raise UsageError("--resume auto looks for the newest checkpoint in the folder of --checkpoint: name one.")
    found, skipped = newest_whole(place_of(request.checkpoint))
    for path, why in skipped:
        print(f"shoal: {path} is passed over: {why}", file=sys.stderr)
    start = "there is no checkpoint yet, starting from the beginning"
    if found is not None:
        there = describe(found)
        when = there.when.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        start = f"going on from {found}, which run {there.run} wrote at {when}"
    print(f"shoal: {start}", file=sys.stderr)
    return found

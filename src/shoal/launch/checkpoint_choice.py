"""Where a run's checkpoints go, and which one it goes on from."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from shoal.checkpoint.addresses import Place, place_of
from shoal.checkpoint.schedule import parse
from shoal.config import Saving
from shoal.errors import BadCheckpoint, UsageError
from shoal.launch.outputs import say
from shoal.launch.request import LaunchRequest


def claimed_by(folder: str, run: str) -> AbstractContextManager[int | None]:
    """As long as this lasts, this is the run's place for its checkpoints. UsageError if it can't be written to."""
    from shoal.checkpoint.storage.choice import storage_of  # brings numpy, which others can do without

    return storage_of(place_of(folder)).claimed(run, say)


def saving_of(request: LaunchRequest, run: str, resumed: Place | None) -> Saving | None:
    """Where checkpoints go. Not among another training's: the newest of those might be taken for this one's."""
    parse(request.checkpoint_every)
    if request.keep < 1:
        raise UsageError(f"--keep {request.keep}: expected at least 1 checkpoint.")
    if request.checkpoint is None:
        return None
    from shoal.checkpoint.storage.choice import storage_of

    folder = place_of(request.checkpoint)
    if request.resume is None and storage_of(folder).checkpoints():
        raise UsageError(
            f"{folder} holds checkpoints already. Go on from them with --resume auto, or name another folder."
        )
    training = _training_of(folder, resumed) if resumed is not None else None
    return Saving(str(folder), request.checkpoint_every, request.keep, run, training)


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

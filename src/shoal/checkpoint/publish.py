"""From a draft whose parts are all written to a checkpoint: the manifest, the rename, and the end of old ones.

Old ones are those of the same training. Another's, which should not be there, are left alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.checkpoint import files, manifest
from shoal.checkpoint.drafts import Draft, checkpoints, sweep
from shoal.checkpoint.manifest import CheckpointPart, Manifest, Tensor
from shoal.checkpoint.parts import tensors_in
from shoal.checkpoint.read import looks_whole, manifest_at
from shoal.errors import BadCheckpoint, UsageError


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """A new checkpoint is there, whole and on disk. `warning` tells what did not work afterwards, if anything."""

    path: Path
    warning: str = ""


@dataclass(frozen=True, slots=True)
class NotWritten:
    """There is no checkpoint of this step, and what this member wrote of it is gone. `why` is for the user."""

    step: int
    why: str


def publish(
    draft: Draft, parts: Sequence[CheckpointPart], header: Any, keep: int = 1
) -> PublishedCheckpoint | NotWritten:
    """Makes a draft a checkpoint and prunes to the `keep` newest. For one member, when all have written their parts.

    Until the rename, nobody takes it for a checkpoint; after it, it is whole. A UsageError if the header is no JSON.
    """
    try:
        tensors = tuple(tensor for part in parts for tensor in _tensors_of(draft.path, part))
        when = datetime.now(UTC).replace(microsecond=0)
        content = Manifest(manifest.FORMAT, draft.run, draft.step, when, header, tuple(parts), tensors, draft.training)
        data = manifest.encode(content)
        manifest.decode(data)
        _remove_all_but(draft.path, {part.name for part in parts})
        with files.new_file(draft.path / manifest.FILE) as descriptor:
            files.write_all(descriptor, memoryview(data))
        files.sync_folder(draft.path)
        _move_into_place(draft)
    except (OSError, BadCheckpoint) as error:
        draft.discard()
        return failed(draft, error)
    except BaseException:
        draft.discard()
        raise
    return PublishedCheckpoint(draft.final, _tidy(draft, keep))


def failed(draft: Draft, error: Exception) -> NotWritten:
    """Why there is no checkpoint, for the user."""
    why = files.explain(error) if isinstance(error, OSError) else str(error) or type(error).__name__
    return NotWritten(draft.step, f"no checkpoint of step {draft.step} in {draft.folder}: {why}. Training goes on.")


def _tensors_of(folder: Path, part: CheckpointPart) -> list[Tensor]:
    """What a part says that it holds. Its bytes are not read again: the digest is of what was written."""
    if Path(part.name).name != part.name:
        raise BadCheckpoint(f"{part.name!r} is not the name of a part")
    with files.plain_file(folder / part.name) as (file, size):
        if size != part.nbytes:
            raise BadCheckpoint(f"{part.name} has {size:,} bytes, its writer told {part.nbytes:,}")
        held = tensors_in(file.fileno(), part.name)
    return [Tensor(name, dtype, shape, part.name) for name, (dtype, shape) in sorted(held.items())]


def _remove_all_but(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


def _move_into_place(draft: Draft) -> None:
    """What has this step's name already stays in sight, as `.old`, until the new one is there."""
    there = manifest_at(draft.final)
    if there is not None and there.first_run != draft.first_run:
        raise BadCheckpoint(
            f"{draft.final.name} there is of another training, of run {there.run}. Give each run a folder of its own"
        )
    old = draft.final.with_name(f"{draft.final.name}.old")
    if os.path.lexists(draft.final):
        files.remove(old)
        draft.final.rename(old)
    draft.path.rename(draft.final)
    files.sync_folder(draft.folder)
    files.remove(old)


def _others(draft: Draft) -> list[Path]:
    """The training's other checkpoints that look whole, newest first."""
    found = [(path, manifest_at(path)) for path in checkpoints(draft.folder) if path != draft.final]
    mine = [path for path, there in found if there is not None and there.first_run == draft.first_run]
    return [path for path in mine if looks_whole(path)]


def _tidy(draft: Draft, keep: int) -> str:
    """Removes what is no longer needed. What fails here does not take back the checkpoint: a warning tells it."""
    try:
        for path in _others(draft)[max(keep - 1, 0) :]:
            files.remove(path)
        sweep(draft.folder, draft)
    except (OSError, UsageError) as error:
        why = files.explain(error) if isinstance(error, OSError) else str(error)
        return f"{draft.final} is written, but old checkpoints could not be removed: {why}"
    return ""

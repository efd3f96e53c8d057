"""From a draft whose parts are all written to a checkpoint: the manifest, the rename, and the end of old ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from shoal.checkpoint import files, manifest
from shoal.checkpoint.drafts import Draft, checkpoints, sweep
from shoal.checkpoint.dtypes import FROM_FILE
from shoal.checkpoint.manifest import Manifest, Part, Tensor
from shoal.checkpoint.read import looks_whole
from shoal.errors import BadCheckpoint, UsageError


@dataclass(frozen=True, slots=True)
class Published:
    """A new checkpoint is there, whole and on disk. `warning` tells what did not work afterwards, if anything."""

    path: Path
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no checkpoint of this step, and what this member wrote of it is gone. `why` is for the user."""

    step: int
    why: str


def publish(draft: Draft, parts: Sequence[Part], header: Any, keep: int = 1) -> Published | Failed:
    """Makes a draft a checkpoint and prunes to the `keep` newest. For one member, when all have written their parts.

    Until the rename, nobody takes it for a checkpoint; after it, it is whole. A UsageError if the header is no JSON.
    """
    try:
        tensors = tuple(tensor for part in parts for tensor in _tensors_of(draft.path, part))
        when = datetime.now(UTC).replace(microsecond=0)
        content = Manifest(manifest.FORMAT, draft.run, draft.step, when, header, tuple(parts), tensors)
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
    return Published(draft.final, _tidy(draft, keep))


def failed(draft: Draft, error: Exception) -> Failed:
    """Why there is no checkpoint, for the user."""
    why = files.explain(error) if isinstance(error, OSError) else str(error) or type(error).__name__
    return Failed(draft.step, f"no checkpoint of step {draft.step} in {draft.folder}: {why}. Training goes on.")


def _tensors_of(folder: Path, part: Part) -> list[Tensor]:
    """What a part says that it holds. Its bytes are not read again: the digest is of what was written."""
    if Path(part.name).name != part.name:
        raise BadCheckpoint(f"{part.name!r} is not the name of a part")
    with files.plain_file(folder / part.name) as (_, size):
        if size != part.nbytes:
            raise BadCheckpoint(f"{part.name} has {size:,} bytes, its writer told {part.nbytes:,}")
    try:
        with safe_open(folder / part.name, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            return [
                Tensor(name, FROM_FILE[tensor.get_dtype()], tuple(tensor.get_shape()), part.name)
                for name, tensor in sorted(slices.items())
            ]
    except (SafetensorError, KeyError) as error:
        raise BadCheckpoint(f"{part.name} is not a part that Shoal wrote: {error}") from error


def _remove_all_but(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()


def _move_into_place(draft: Draft) -> None:
    """What has this step's name already stays in sight, as `.old`, until the new one is there."""
    old = draft.final.with_name(f"{draft.final.name}.old")
    if draft.final.exists():
        files.remove(old)
        draft.final.rename(old)
    draft.path.rename(draft.final)
    files.sync_folder(draft.folder)
    files.remove(old)


def _tidy(draft: Draft, keep: int) -> str:
    """Removes what is no longer needed. What fails here does not take back the checkpoint: a warning tells it."""
    try:
        others = [path for path in checkpoints(draft.folder) if path != draft.final and looks_whole(path)]
        for path in others[max(keep - 1, 0) :]:
            files.remove(path)
        sweep(draft.folder, draft)
    except (OSError, UsageError) as error:
        why = files.explain(error) if isinstance(error, OSError) else str(error)
        return f"{draft.final} is written, but old checkpoints could not be removed: {why}"
    return ""

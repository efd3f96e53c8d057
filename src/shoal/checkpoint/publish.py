"""From a draft whose parts are all written to a checkpoint: the manifest, its place, and the end of old ones.

Old ones are those of the same training. Another's, which should not be there, are left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.checkpoint import files, manifest
from shoal.checkpoint.addresses import Place
from shoal.checkpoint.drafts import Draft
from shoal.checkpoint.manifest import CheckpointPart, Manifest, Tensor
from shoal.checkpoint.read import looks_whole, manifest_at
from shoal.checkpoint.storage.abstract import AbstractStorage
from shoal.checkpoint.storage.choice import storage_of
from shoal.checkpoint.tensor_names import TensorName
from shoal.errors import BadCheckpoint, UsageError

_NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """A new checkpoint is there, whole and on disk. `warning` tells what did not work afterwards, if anything."""

    path: Place
    warning: str = ""


@dataclass(frozen=True, slots=True)
class NotWritten:
    """There is no checkpoint of this step, and what this member wrote of it is gone. `why` is for the user."""

    step: int
    why: str


def publish(
    draft: Draft,
    parts: Sequence[CheckpointPart],
    header: Any,
    keep: int = 1,
    hosts: tuple[str, ...] = (),
    needed: Mapping[str, int] = _NOTHING,
) -> PublishedCheckpoint | NotWritten:
    """Makes a draft a checkpoint and prunes to the `keep` newest. For one member, when all have written their parts.

    Until it is in its place, nobody takes it for a checkpoint; then it is whole. `hosts`: whose folders get a copy
    each, this one's first. `needed`: how many tensors of each kind there must be; if there are fewer, it is no
    checkpoint, and older ones stay. A UsageError if the header is no JSON.
    """
    storage = storage_of(draft.folder)
    try:
        tensors = tuple(tensor for part in parts for tensor in _tensors_of(storage, draft, part))
        if lacking := what_lacks(needed, (tensor.name for tensor in tensors)):
            raise BadCheckpoint(f"its parts do not hold all of the model: {lacking}")
        when = datetime.now(UTC).replace(microsecond=0)
        content = Manifest(
            manifest.FORMAT,
            draft.run,
            draft.step,
            when,
            header,
            tuple(parts),
            tensors,
            draft.training,
            hosts,
            storage.folder_of_parts(draft),
        )
        data = manifest.encode(content)
        manifest.decode(data)
        storage.put_in_place(draft, data, [part.name for part in parts], _before(draft))
    except (OSError, BadCheckpoint) as error:
        storage.discard(draft)
        return failed(draft, error)
    except BaseException:
        storage.discard(draft)
        raise
    return PublishedCheckpoint(draft.final, _tidy(draft, keep))


def what_lacks(needed: Mapping[str, int], names: Iterable[str]) -> str:
    """Of which kinds there are fewer tensors among these than needed; empty if there is none. Pure."""
    found = {TensorName.of(name)[:2] for name in names}
    there = Counter(kind for kind, _ in found)
    return ", ".join(
        f"{there[kind]} of {count} tensors of the kind {kind!r}"
        for kind, count in needed.items()
        if there[kind] < count
    )


def failed(draft: Draft, error: Exception) -> NotWritten:
    """Why there is no checkpoint, for the user."""
    why = files.explain(error) if isinstance(error, OSError) else str(error) or type(error).__name__
    return NotWritten(draft.step, f"no checkpoint of step {draft.step} in {draft.folder}: {why}. Training goes on.")


def _tensors_of(storage: AbstractStorage, draft: Draft, part: CheckpointPart) -> list[Tensor]:
    """What a part says that it holds. Its bytes are not read again: the digest is of what was written."""
    if Path(part.name).name != part.name:
        raise BadCheckpoint(f"{part.name!r} is not the name of a part")
    with storage.opened_part(draft, part.name) as file:
        if file.size != part.nbytes:
            raise BadCheckpoint(f"{part.name} has {file.size:,} bytes, its writer told {part.nbytes:,}")
        held = file.tensors(part.name)
    return [Tensor(name, dtype, shape, part.name) for name, (dtype, shape) in sorted(held.items())]


def _before(draft: Draft) -> Manifest | None:
    """The checkpoint whose place it takes, if there is one. BadCheckpoint if that is of another training."""
    there = manifest_at(draft.final)
    if there is not None and there.first_run != draft.first_run:
        raise BadCheckpoint(
            f"{draft.final.name} there is of another training, of run {there.run}. Give each run a folder of its own"
        )
    return there


def _others(draft: Draft) -> list[Place]:
    """The training's other checkpoints that look whole, newest first."""
    found = [(path, manifest_at(path)) for path in storage_of(draft.folder).checkpoints() if path != draft.final]
    mine = [path for path, there in found if there is not None and there.first_run == draft.first_run]
    return [path for path in mine if looks_whole(path)]


def _tidy(draft: Draft, keep: int) -> str:
    """Removes what is no longer needed. What fails here does not take back the checkpoint: a warning tells it."""
    storage = storage_of(draft.folder)
    try:
        for path in _others(draft)[max(keep - 1, 0) :]:
            storage.remove(path)
        storage.sweep(draft)
    except (OSError, UsageError) as error:
        why = files.explain(error) if isinstance(error, OSError) else str(error)
        return f"{draft.final} is written, but old checkpoints could not be removed: {why}"
    return ""

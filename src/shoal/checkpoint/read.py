"""Reading checkpoints. Not one value is used before every digest has matched."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from shoal.checkpoint import files, manifest, pieces
from shoal.checkpoint.addresses import Place
from shoal.checkpoint.drafts import step_of
from shoal.checkpoint.dtypes import DTYPES, FROM_FILE
from shoal.checkpoint.manifest import CheckpointPart, Manifest
from shoal.checkpoint.parts import Held
from shoal.checkpoint.storage.abstract import AbstractStoredFile, StoreUnreachable
from shoal.checkpoint.storage.choice import storage_of
from shoal.checkpoint.tensor_names import piece_of
from shoal.errors import BadCheckpoint, UsageError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint in memory."""

    manifest: Manifest
    arrays: dict[str, Array]

    @property
    def header(self) -> Any:
        return self.manifest.header

    @property
    def step(self) -> int:
        return self.manifest.step


def describe(path: Place) -> Manifest:
    """What a checkpoint says of itself, true to its digest. Its parts are not looked at."""
    with _naming(path):
        return _manifest_of(path)


def verify(path: Place) -> Manifest:
    """Reads all of a checkpoint and compares it with its digests. A BadCheckpoint says what is wrong with it."""
    with _naming(path):
        found = _manifest_of(path)
        promised = _promised(found)
        for part in found.parts:
            with _opened(path, found, part, promised[part.name]) as file:
                _check_digest(part, file.digest())
        return found


def load(path: Place, wanted: Callable[[str], bool] | None = None) -> Checkpoint:
    """All of a checkpoint, verified: either every tensor as it was written, or a BadCheckpoint.

    What was written in pieces is whole. Takes as much memory as its tensors and, for a while, the largest part. Where
    only some are `wanted`, by name, parts without any of them are not read.
    """
    with _naming(path):
        found = _manifest_of(path)
        promised = _promised(found)
        arrays: dict[str, Array] = {}
        for part in found.parts:
            chosen = {name for name in promised[part.name] if wanted is None or wanted(_whole(name))}
            if chosen or wanted is None:
                held = _arrays_of(path, found, part, promised[part.name])
                arrays.update((name, held[name]) for name in chosen)
        return Checkpoint(found, pieces.join({t.name: arrays[t.name] for t in found.tensors if t.name in arrays}))


def _promised(found: Manifest) -> dict[str, Held]:
    """What each part holds, by the manifest."""
    promised: dict[str, Held] = {part.name: {} for part in found.parts}
    for tensor in found.tensors:
        promised[tensor.part][tensor.name] = (tensor.dtype, tensor.shape)
    return promised


def _whole(name: str) -> str:
    piece = piece_of(name)
    return name if piece is None else piece.whole


def newest_whole(folder: Place) -> tuple[Place | None, list[tuple[Place, str]]]:
    """The newest checkpoint in a folder that verifies, None if none does; and those skipped on the way, with why.

    A UsageError if a store can't be asked: an older one is no answer to that.
    """
    skipped: list[tuple[Place, str]] = []
    for path in storage_of(folder).checkpoints():
        try:
            verify(path)
        except BadCheckpoint as error:
            if isinstance(error.__cause__, StoreUnreachable):
                raise UsageError(f"can't tell whether {path} is whole: {error.__cause__}") from error
            skipped.append((path, error.why))
        else:
            return path, skipped
    return None, skipped


def manifest_at(path: Place) -> Manifest | None:
    """What a checkpoint says of itself; None if there is none that is sound."""
    try:
        return _manifest_of(path)
    except (BadCheckpoint, OSError):
        return None


def looks_whole(path: Place) -> bool:
    """Whether the manifest is sound and all parts have their size. Fast: reads no part."""
    try:
        found = _manifest_of(path)
        for part in found.parts:
            with storage_of(path).opened(part.name, found.folder) as file:
                _check_size(part, file.size)
    except (BadCheckpoint, OSError):
        return False
    return True


@contextlib.contextmanager
def _naming(path: Place) -> Iterator[None]:
    """Adds to a BadCheckpoint which one it tells of. What the disk refuses to give is bad too."""
    try:
        yield
    except BadCheckpoint as error:
        raise BadCheckpoint(error.why, path) from error
    except OSError as error:
        raise BadCheckpoint(f"it can't be read: {files.explain(error)}", path) from error


def _manifest_of(path: Place) -> Manifest:
    storage = storage_of(path)
    storage.look()
    with storage.opened(manifest.FILE) as file:
        if file.size > manifest.MAX_BYTES:
            raise BadCheckpoint(f"{manifest.FILE} has {file.size:,} bytes, at most {manifest.MAX_BYTES:,} are allowed")
        found = manifest.decode(file.read())
    step = step_of(path)
    if step is not None and step != found.step:
        raise BadCheckpoint(f"{manifest.FILE} is of step {found.step}, the folder's name says {step}")
    return found


@contextlib.contextmanager
def _opened(path: Place, found: Manifest, part: CheckpointPart, promised: Held) -> Iterator[AbstractStoredFile]:
    """A part to read. What can't be right by its size or its header is not read to its end."""
    with storage_of(path).opened(part.name, found.folder) as file:
        _check_size(part, file.size)
        _check_tensors(part, file.tensors(part.name), promised)
        yield file


def _arrays_of(path: Place, found: Manifest, part: CheckpointPart, promised: Held) -> dict[str, Array]:
    """A part's tensors. The bytes that were verified are the bytes that are decoded: they are read once."""
    with _opened(path, found, part, promised) as file:
        data = file.read()
    _check_digest(part, hashlib.new(manifest.DIGEST, data).hexdigest())
    try:
        held: dict[str, Any] = dict(deserialize(data))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise BadCheckpoint(f"{part.name} is not a safetensors file: {error}") from error
    described = {name: (FROM_FILE.get(tensor["dtype"], "?"), tuple(tensor["shape"])) for name, tensor in held.items()}
    _check_tensors(part, described, promised)
    return {
        name: np.frombuffer(held[name]["data"], DTYPES[dtype]).reshape(shape)
        for name, (dtype, shape) in promised.items()
    }


def _check_size(part: CheckpointPart, size: int) -> None:
    if size != part.nbytes:
        raise BadCheckpoint(f"{part.name} has {size:,} bytes, it was written with {part.nbytes:,}")


def _check_tensors(part: CheckpointPart, held: Held, promised: Held) -> None:
    if held != promised:
        raise BadCheckpoint(f"{part.name} holds other tensors than {manifest.FILE} says: it was damaged or changed")


def _check_digest(part: CheckpointPart, digest: str) -> None:
    if digest != part.digest:
        raise BadCheckpoint(f"{part.name} does not match its digest: it was damaged or changed")

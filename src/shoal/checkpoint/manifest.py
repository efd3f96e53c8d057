"""The manifest: what a checkpoint holds, and the digests that say whether it still does. Pure.

The file is one line of JSON, {"digest": …, "manifest": {…}}. The digest is of the manifest's bytes as they are written.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from datetime import datetime
from typing import Annotated, Any

import msgspec
import numpy as np

from shoal.checkpoint import pieces
from shoal.checkpoint.dtypes import DTYPES
from shoal.checkpoint.parts import MAX_HEADER
from shoal.errors import BadCheckpoint, UsageError

FILE = "manifest.json"
FORMAT = 1
MAX_BYTES = 64 * 2**20  # of a manifest; a model's config is in it
DIGEST = "sha256"  # the fastest strong one in hashlib where the processor helps: 1.2 GiB/s here, blake2b 0.7

Name = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z][0-9A-Za-z._-]{0,159}\Z")]
PartName = Annotated[str, msgspec.Meta(pattern=r"\Apart-[0-9]{3,6}\.safetensors\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class CheckpointPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a checkpoint, as the member that wrote it describes it."""

    name: PartName
    nbytes: Count
    digest: Digest


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor, and the part that it is in."""

    name: str
    dtype: str
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]
    part: PartName

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(DTYPES[self.dtype]).itemsize


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All that is known of a checkpoint without reading its parts."""

    format: int
    run: Name
    step: Count
    when: Annotated[datetime, msgspec.Meta(tz=True)]
    header: Any  # the caller's own document
    parts: Annotated[tuple[CheckpointPart, ...], msgspec.Meta(max_length=1_000_000)]
    tensors: tuple[Tensor, ...]
    training: Name | None = None  # the run that this training began with, if that is another
    # Whose folders have a copy each, where hosts do not see one folder; the one that this is in comes first.
    hosts: tuple[Annotated[str, msgspec.Meta(max_length=255)], ...] = ()
    folder: Name | None = None  # that the parts are in, beside this file; None: they are beside it themselves

    @property
    def first_run(self) -> str:
        """What all checkpoints of a training have in common, however often it was gone on with."""
        return self.training or self.run

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor; of whole ones, where there are pieces."""
        listed = pieces.wholes((tensor.name, tensor.dtype, tensor.shape) for tensor in self.tensors)
        return {name: shape for name, (_, shape) in listed.items()}


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: Digest
    manifest: msgspec.Raw


class _Version(msgspec.Struct, frozen=True):
    format: int


def part_name(number: int) -> str:
    return f"part-{number:03}.safetensors"


def encode(manifest: Manifest) -> bytes:
    """The manifest's file. A UsageError if its header is no JSON document or too large."""
    try:
        inner = msgspec.json.encode(manifest)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"a checkpoint's header must be a JSON document: {error}") from error
    data = msgspec.json.encode(_Envelope(hashlib.new(DIGEST, inner).hexdigest(), msgspec.Raw(inner))) + b"\n"
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"a checkpoint's manifest would have {len(data):,} bytes, at most {MAX_BYTES:,} are allowed: put less into "
            "its header."
        )
    return data


def decode(data: bytes) -> Manifest:
    """The manifest in a file's bytes, checked against its digest and in itself; a BadCheckpoint says what is wrong."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        inner = bytes(envelope.manifest)
        if hashlib.new(DIGEST, inner).hexdigest() != envelope.digest:
            raise BadCheckpoint(f"{FILE} does not match its digest: it was damaged or changed")
        version = msgspec.json.decode(inner, type=_Version).format
        if version != FORMAT:
            raise BadCheckpoint(f"{FILE} is of format {version}, this version of Shoal reads format {FORMAT}")
        manifest = msgspec.json.decode(inner, type=Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{FILE} is not a manifest: {error}") from error
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    """What types can't say: names are unique, and parts have the bytes that their tensors need, and a header's."""
    room = {part.name: part.nbytes for part in manifest.parts}
    if len(room) != len(manifest.parts):
        raise BadCheckpoint(f"{FILE} lists {_repeated([part.name for part in manifest.parts])} twice")
    names = [tensor.name for tensor in manifest.tensors]
    if len(set(names)) != len(names):
        raise BadCheckpoint(f"{FILE} lists the tensor {_repeated(names)!r} twice")
    for tensor in manifest.tensors:
        if tensor.dtype not in DTYPES:
            raise BadCheckpoint(f"{FILE} has a tensor {tensor.name!r} of the unknown type {tensor.dtype!r}")
        if tensor.part not in room:
            raise BadCheckpoint(f"{FILE} has a tensor {tensor.name!r} in {tensor.part}, which it does not list")
        room[tensor.part] -= tensor.nbytes
        if room[tensor.part] < 0:
            raise BadCheckpoint(f"{FILE} has more tensors in {tensor.part} than its bytes could hold")
    for part in manifest.parts:
        if room[part.name] > MAX_HEADER:
            raise BadCheckpoint(f"{FILE} gives {part.name} {part.nbytes:,} bytes, far more than its tensors need")
    try:
        pieces.wholes((tensor.name, tensor.dtype, tensor.shape) for tensor in manifest.tensors)
    except ValueError as error:
        raise BadCheckpoint(f"{FILE} is at odds with itself: {error}") from error


def _repeated(names: list[str]) -> str:
    return Counter(names).most_common(1)[0][0]

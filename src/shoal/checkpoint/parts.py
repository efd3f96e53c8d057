"""What a part says that it holds: its header, as the safetensors package reads it. The tensors are not read."""

from __future__ import annotations

from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open

from shoal.checkpoint.dtypes import FROM_FILE
from shoal.errors import BadCheckpoint

LENGTH = 8  # bytes at the beginning, that say how long the header is
MAX_HEADER = LENGTH + 100_000_000  # bytes; what the package reads at most

_METADATA = "__metadata__"  # a name that no tensor has

Held = dict[str, tuple[str, tuple[int, ...]]]  # dtype and shape of each tensor, by name


def tensors_in(descriptor: int, name: str) -> Held:
    """The tensors of an open part; a BadCheckpoint that calls it by its name if it is none."""
    try:
        # Strict: sizes must be the shapes', places follow each other without a gap, and all of the file is covered.
        with safe_open(Path(f"/proc/self/fd/{descriptor}"), framework="np") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (it is no mapping)
            return {key: (FROM_FILE[one.get_dtype()], tuple(one.get_shape())) for key, one in slices.items()}
    except KeyError as error:
        raise BadCheckpoint(f"{name} holds a tensor of the unknown type {error}") from error
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{name} is not a safetensors file: {error}") from error


class _Described(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def tensors_in_header(header: bytes, name: str) -> Held:
    """The same from the bytes of the header, of a file that is elsewhere. What they have to do with its other bytes is
    not looked at: nobody uses those before the package has.
    """
    try:
        listed = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        held = {key: msgspec.json.decode(raw, type=_Described) for key, raw in listed.items() if key != _METADATA}
        return {key: (FROM_FILE[one.dtype], one.shape) for key, one in held.items()}
    except KeyError as error:
        raise BadCheckpoint(f"{name} holds a tensor of the unknown type {error}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadCheckpoint(f"{name} is not a safetensors file: {error}") from error

"""What a part says that it holds: its header, as the safetensors package reads it. The tensors are not read."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from shoal.checkpoint.dtypes import FROM_FILE
from shoal.errors import BadCheckpoint

MAX_HEADER = 8 + 100_000_000  # bytes; what the package reads at most

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

"""The types that a checkpoint's tensors may have: numpy's names and those of safetensors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from shoal.errors import UsageError

TO_FILE = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
FROM_FILE = {code: name for name, code in TO_FILE.items()}
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in TO_FILE
}


def name_of(tensor: str, dtype: np.dtype[Any]) -> str:
    """A type's name; a UsageError if no checkpoint can hold it."""
    if dtype.name not in DTYPES:
        raise UsageError(
            f"a checkpoint can't hold the tensor {tensor!r} of type {dtype.name}; it holds {', '.join(DTYPES)}"
        )
    return dtype.name

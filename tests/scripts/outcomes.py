"""What a scene of own_steps.py came to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops


def told(values: Sequence[Any], numbers: Sequence[float]) -> dict[str, Any]:
    """Of all variables: their bits, and the sum of each, to be compared with another's; and numbers that were shown."""
    arrays = [np.asarray(ops.convert_to_numpy(value)) for value in values]
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    sums = [float(np.abs(array.astype("float64")).sum()) for array in arrays]
    return {"hash": digest.hexdigest(), "sums": sums, "numbers": list(map(float, numbers))}

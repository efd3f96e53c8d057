"""The script's calls of fit, evaluate and predict, counted: what each returned is kept for workers that come late.

A late worker runs the script from its beginning. The calls that are over for the others return to it what they returned
to them, at once; the fit that is going on lets it in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from shoal.cluster.messages import NOT_KEPT, RESULT_LIMIT
from shoal.collectives.arrays import ArraySpec
from shoal.data.structure import flatten, rebuild
from shoal.hook.run import Run


def counted(
    run: Run,
    live: Callable[[int], Any],
    write: Callable[[Any], bytes],
    read: Callable[[bytes], Any],
    waits: bool = True,
) -> Any:
    """One call of the script: done (`live`, with its number), or read from what is kept of it.

    `waits`: a late worker waits until it is over for the others. In a fit it may be let in instead.
    """
    call = run.begin_call()
    returned = None
    try:
        returned = run.replays(call, waits)
        if returned is not None:
            return read(returned)
        value = live(call)
        returned = write(value)
        return value
    finally:
        run.end_call(call, returned)


def encode_plain(value: Any) -> bytes:
    """Numbers, texts and nests of them; not as JSON, which has no infinity."""
    return msgspec.msgpack.encode(value, enc_hook=lambda odd: np.asarray(odd).tolist())


def decode_plain(kept: bytes) -> Any:
    return msgspec.msgpack.decode(kept)


def encode_predictions(predictions: Any) -> bytes:
    leaves, skeleton = flatten(predictions)
    arrays = [np.asarray(leaf) for leaf in leaves]
    if sum(array.nbytes for array in arrays) > RESULT_LIMIT:
        return NOT_KEPT
    return msgspec.msgpack.encode((skeleton, [(ArraySpec.of(array), array.tobytes()) for array in arrays]))


def decode_predictions(kept: bytes) -> Any:
    skeleton, leaves = msgspec.msgpack.decode(kept, type=tuple[Any, list[tuple[ArraySpec, bytes]]])
    arrays = [np.frombuffer(raw, np.dtype(spec.dtype)).reshape(spec.shape).copy() for spec, raw in leaves]
    return rebuild(skeleton, arrays)

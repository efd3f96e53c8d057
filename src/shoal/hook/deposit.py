"""Where a fit with parameter servers stands at the beginning of an epoch, left for workers that find nobody at its end.

It is what `Training.give` tells a newcomer, without what is on the servers: callbacks' memory, mostly.
"""

from __future__ import annotations

import msgspec
import numpy as np

from shoal.collectives.arrays import ArraySpec
from shoal.collectives.group import Result
from shoal.hook.calls import encode_plain
from shoal.hook.engine import AbstractEngine, StepShape
from shoal.hook.position import Position

_Left = tuple[list[bytes], int, list[tuple[int, ArraySpec, bytes]]]  # values, how many arrays, and some of them


def pack(given: Result, engine: AbstractEngine, shape: StepShape) -> bytes:
    """What a worker would give, without the weights and statistics that servers have."""
    first = len(engine.variables.trainable)
    served = {*shape.gradients, *(first + place for place in shape.changed)}
    left = [
        (place, ArraySpec.of(array), np.ascontiguousarray(array).tobytes())
        for place, array in enumerate(given.arrays)
        if place not in served
    ]
    return msgspec.msgpack.encode((given.values, len(given.arrays), left))


def unpack(left: bytes, engine: AbstractEngine, step: int, updates: int) -> Result:
    """As a worker would give it at the end of that epoch: with the weights that this one has pulled.

    `step`: where the epoch's end is; `updates`: how many were made in it.
    """
    values, count, arrays = msgspec.msgpack.decode(left, type=_Left)
    at, length = msgspec.msgpack.decode(values[0], type=tuple[Position, int])
    new = updates - at.step  # since it was left
    at.trained, at.step = at.trained + new, step
    whole = [*engine.state(), *[np.zeros(0)] * (count - length)]
    for place, spec, raw in arrays:
        whole[place] = np.frombuffer(raw, np.dtype(spec.dtype)).reshape(spec.shape).copy()
    variables = engine.variables
    for place, variable in enumerate(variables.optimizer, len(variables.trainable) + len(variables.states)):
        if variable is engine.model.optimizer.iterations:
            whole[place] = whole[place] + np.asarray(new, whole[place].dtype)
    return Result([encode_plain((at, length)), *values[1:]], whole)

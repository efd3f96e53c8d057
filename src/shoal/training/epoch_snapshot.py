"""Where a fit with parameter servers stands at the beginning of an epoch, left for workers that find nobody at its end.

It is what `Training.give` tells a newcomer, without what is on the servers: callbacks' memory, mostly.
"""

from __future__ import annotations

import msgspec
import numpy as np

from shoal.collectives.arrays import ArraySpec
from shoal.collectives.group import Result
from shoal.training import position
from shoal.training.engine import Engine, PartShape
from shoal.training.optimizer import TrainedOptimizer

_Left = tuple[list[bytes], int, list[tuple[int, ArraySpec, bytes]]]  # values, how many arrays, and some of them


def pack(given: Result, shape: PartShape) -> bytes:
    """What a worker would give, without the weights and statistics that servers have."""
    served = {*shape.gradients, *shape.changed}
    left = [
        (place, ArraySpec.of(array), np.ascontiguousarray(array).tobytes())
        for place, array in enumerate(given.arrays)
        if place not in served
    ]
    return msgspec.msgpack.encode((given.values, len(given.arrays), left))


def unpack(left: bytes, engine: Engine, optimizer: TrainedOptimizer, step: int, updates: int, samples: int) -> Result:
    """As a worker would give it at the end of that epoch: with the weights that this one has pulled.

    `step`: where the epoch's end is; `updates`: how many were made in it, with so many samples.
    """
    values, count, arrays = msgspec.msgpack.decode(left, type=_Left)
    at, length = position.decode(values[0])
    new = updates - at.step  # since it was left
    at.seen += samples - (at.samples if at.step else 0)
    at.trained, at.step = at.trained + new, step
    whole = [*engine.state(), *[np.zeros(0)] * (count - length)]
    for place, spec, raw in arrays:
        whole[place] = np.frombuffer(raw, np.dtype(spec.dtype)).reshape(spec.shape).copy()
    variables = engine.variables
    for place, variable in enumerate(variables.optimizer, len(variables.trainable) + len(variables.states)):
        if variable is optimizer.count:
            whole[place] = whole[place] + np.asarray(new, whole[place].dtype)
    return Result([position.encode(at, length), *values[1:]], whole)

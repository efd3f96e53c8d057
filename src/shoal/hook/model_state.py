"""A model's whole state as arrays: to start all workers from the chief's, and to notice when they drift apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from shoal.collectives.group import AbstractGroup
from shoal.errors import Diverged
from shoal.hook.engine import AbstractEngine


def share_chiefs_state(group: AbstractGroup, engine: AbstractEngine, what: str, optimizer: bool = True) -> None:
    """Gives every worker the chief's weights, states and, for training, optimizer."""
    variables = engine.variables
    shared = [*variables.trainable, *variables.states, *variables.seeds]
    if optimizer:
        shared += variables.optimizer
    # In C order: peers' bytes are written into these arrays, not into copies of them.
    arrays = [np.asarray(engine.read(variable), order="C") for variable in shared]
    _check_same_variables(group, what, shared)
    if _all_alike(group, what, arrays):
        return  # the usual case: workers that are seeded alike build alike
    arrays = [np.array(array) for array in arrays]
    group.broadcast(f"{what}: the chief's weights", [_as_bytes(array) for array in arrays])
    if group.rank != 0:
        engine.write(shared, arrays)


def _all_alike(group: AbstractGroup, what: str, arrays: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether all workers hold the same bits. Reading them costs a fifth of sending them."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(_as_bytes(array).data)
    told = group.gather(f"{what}: digests of the weights", digest.digest())
    return all(theirs == told[0] for theirs in told)


def fingerprint(engine: AbstractEngine) -> int:
    """A number that changes when any bit of the weights or states does. As fast as reading them once."""
    digest = hashlib.blake2b(digest_size=8)
    for variable in (*engine.variables.trainable, *engine.variables.states):
        data = _as_bytes(engine.read(variable))
        words = data[: data.size // 8 * 8].view(np.uint64)
        digest.update(np.add.reduce(words, dtype=np.uint64).tobytes())
        digest.update(np.bitwise_xor.reduce(words, dtype=np.uint64).tobytes())
        digest.update(data[words.nbytes :].tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True)


def _as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _check_same_variables(group: AbstractGroup, what: str, variables: Sequence[Any]) -> None:
    """By shape and type, not by name: automatic names count up with every model a script makes."""
    mine = [(tuple(v.shape), str(v.dtype)) for v in variables]
    told = group.gather(f"{what}: the model's variables", msgspec.json.encode(mine))
    for member, theirs in zip(group.members, told, strict=True):
        if theirs != told[0]:
            raise Diverged(
                f"{what}: the model of {member} has other variables than the chief's ({_count(theirs)} against "
                f"{_count(told[0])}). Every worker must build the same model: do not make it depend on the rank."
            )


def _count(encoded: bytes) -> str:
    described = msgspec.json.decode(encoded)
    return f"{len(described)} variables, {sum(int(np.prod(shape)) for shape, _ in described):,} numbers"

"""A model's whole state as arrays: to start all workers from the chief's, and to notice when they drift apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from shoal.collectives.group import WorkerGroup
from shoal.errors import Diverged
from shoal.training.engine import Engine, checksum, is_window


def share_chiefs_state(worker_group: WorkerGroup, engine: Engine, what: str, optimizer: bool = True) -> None:
    """Gives every worker the chief's weights, states and, for training, optimizer."""
    variables = engine.variables
    shared = [v for v in (*variables.trainable, *variables.states, *variables.seeds) if not is_window(v)]
    if optimizer:
        shared += variables.optimizer
    arrays = [np.asarray(engine.read(variable), order="C") for variable in shared]
    _check_same_variables(worker_group, what, shared)
    if _all_alike(worker_group, what, arrays):
        return  # the usual case: workers that are seeded alike build alike
    chiefs = worker_group.broadcast(f"{what}: the chief's weights", [_as_bytes(array) for array in arrays])
    values = [raw.view(array.dtype).reshape(array.shape) for raw, array in zip(chiefs, arrays, strict=True)]
    engine.write(shared, values)


def _all_alike(worker_group: WorkerGroup, what: str, arrays: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether all workers hold the same bits. Reading them costs a fifth of sending them."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(_as_bytes(array).data)
    return not worker_group.gather(f"{what}: digests of the weights", digest.digest()).unlike_chiefs()


def fingerprint(engine: Engine) -> int:
    """A number that changes when any bit of the weights or states does. As fast as reading them once."""
    digest = hashlib.blake2b(digest_size=8)
    variables = (*engine.variables.trainable, *engine.variables.states)
    for variable in (one for one in variables if not is_window(one)):
        digest.update(repr(checksum(engine.read(variable))).encode())
    return int.from_bytes(digest.digest(), "little", signed=True)


def _as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _check_same_variables(worker_group: WorkerGroup, what: str, variables: Sequence[Any]) -> None:
    """By shape and type, not by name: automatic names count up with every model a script makes."""
    mine = [(tuple(v.shape), str(v.dtype)) for v in variables]
    told = worker_group.gather(f"{what}: the model's variables", msgspec.json.encode(mine))
    for member, theirs in zip(told.members, told.values, strict=True):
        if theirs != told.chiefs:
            raise Diverged(
                f"{what}: the model of {member} has other variables than the chief's ({_count(theirs)} against "
                f"{_count(told.chiefs)}). Every worker must build the same model: do not make it depend on the rank."
            )


def _count(encoded: bytes) -> str:
    described = msgspec.json.decode(encoded)
    return f"{len(described)} variables, {sum(int(np.prod(shape)) for shape, _ in described):,} numbers"

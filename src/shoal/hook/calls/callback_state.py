"""What callbacks remember, as plain data: for a worker that comes late, and for checkpoints.

A callback's attributes that are numbers, texts, arrays or nests of these are its memory; everything else (functions,
open files, the model) each process has its own. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import msgspec
import numpy as np

from shoal.hook import keras_private
from shoal.hook.calls.chief import ChiefOnly
from shoal.strategies.schema import Array

_ARRAY = "\0array"  # stands for an array, by its place in the list
_TUPLE = "\0tuple"
_NUMBER = "\0number"  # a number of numpy's, with its type


class _NotPlain(Exception):
    """There is something in it that can't be written down."""


def capture(callbacks: Any) -> tuple[bytes, list[Array]]:
    """What the callbacks of a list remember now."""
    keras_private.wait_for_callbacks(callbacks)
    arrays: list[Array] = []
    memories = [(type(one).__name__, _memory(one, arrays)) for one in _members(callbacks)]
    return msgspec.json.encode(memories), arrays


def restore(callbacks: Any, captured: bytes, arrays: Sequence[Array]) -> None:
    """Gives the callbacks of this process the memory of another's, as far as they are of the same kind."""
    memories = msgspec.json.decode(captured, type=list[tuple[str, dict[str, Any]]])
    for one, (kind, memory) in zip(_members(callbacks), memories, strict=False):
        if type(one).__name__ != kind:
            continue
        if getattr(one, "monitor_op", 0) is None and "monitor_op" not in memory:
            keras_private.choose_direction(one)  # the other's is set
        for name, value in memory.items():
            setattr(one, name, _unfolded(value, arrays))


def _members(callbacks: Any) -> list[Any]:
    """In the order that is the same on all workers. What only the chief runs remembers nothing that counts."""
    return [one for one in callbacks.callbacks if not isinstance(one, ChiefOnly | keras.callbacks.ProgbarLogger)]


def _memory(callback: Any, arrays: list[Array]) -> dict[str, Any]:
    memory = {}
    for name, value in vars(callback).items():
        found: list[Array] = []
        try:
            memory[name] = _folded(value, found, len(arrays))
        except _NotPlain:
            continue
        arrays += found
    return memory


def _folded(value: Any, arrays: list[Array], first: int) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.generic | float):
        number = np.asarray(value)
        if number.dtype.kind not in "biuf":
            raise _NotPlain
        # As text: JSON knows no infinity, with which callbacks like to begin.
        return {_NUMBER: [str(number.dtype) if isinstance(value, np.generic) else "", float(number).hex()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        arrays.append(np.array(value))
        return {_ARRAY: first + len(arrays) - 1}
    if isinstance(value, list | tuple):
        items = [_folded(item, arrays, first) for item in value]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _folded(item, arrays, first) for key, item in value.items()}
    raise _NotPlain


def _unfolded(value: Any, arrays: Sequence[Array]) -> Any:
    if isinstance(value, list):
        return [_unfolded(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        return np.array(arrays[value[_ARRAY]])
    if _TUPLE in value:
        return tuple(_unfolded(item, arrays) for item in value[_TUPLE])
    if _NUMBER in value:
        dtype, text = value[_NUMBER]
        number = float.fromhex(text)
        return np.dtype(dtype).type(number) if dtype else number
    return {key: _unfolded(item, arrays) for key, item in value.items()}

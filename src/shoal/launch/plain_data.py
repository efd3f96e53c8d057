"""Values that travel between a Python process and the workers that run a function for it: plain data, never objects.

Written to files of the caller's own: numbers, texts, bytes, lists, tuples, dicts, sets, paths and numpy arrays, nested
at will. Large arrays lie beside, each in a file of its own: workers map them, and share their memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import msgspec
import numpy as np

from shoal.collectives.arrays import ArraySpec, view
from shoal.errors import UsageError

_LARGE = 1 << 20  # bytes of an array from which on it gets a file of its own
_MAKE: dict[int, Callable[[Any], Any]] = {
    1: tuple,
    2: set,
    3: frozenset,
    4: dict,  # of pairs, where keys are no texts or numbers
    5: lambda parts: complex(*parts),
    6: int,  # with more digits than 64 bits hold, as a text
    7: Path,
}
_TUPLE, _SET, _FROZENSET, _PAIRS, _COMPLEX, _LONG, _PATH = _MAKE
_ARRAY, _FILED = 8, 9
_KEYS = (str, int, float, bool, type(None), bytes)


class Travels:
    """A folder that values are written to and read from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, value: Any, what: str) -> None:
        """UsageError says what of the value, called `what` there, can't travel."""
        (self._folder / name).write_bytes(msgspec.msgpack.encode(_Packing(self._folder, name).pack(value, what)))

    def read(self, name: str, share: bool = False) -> Any:
        """`share`: large arrays are mapped, and read when they are used; what is written into them stays here.

        FileNotFoundError if nothing was written under this name.
        """

        def unpack(code: int, data: memoryview) -> Any:
            if code == _FILED:
                spec, file = msgspec.msgpack.decode(data, type=tuple[ArraySpec, str])
                mapped = np.memmap(self._folder / file, np.dtype(spec.dtype), "c", shape=spec.shape)
                return mapped.view(np.ndarray) if share else np.array(mapped)
            inner = msgspec.msgpack.decode(data, ext_hook=unpack)
            if code == _ARRAY:
                spec, raw, is_scalar = msgspec.convert(inner[0], ArraySpec), inner[1], inner[2]
                array = np.frombuffer(raw, np.dtype(spec.dtype)).reshape(spec.shape).copy()
                return array[()] if is_scalar else array
            return _MAKE[code](inner)

        return msgspec.msgpack.decode((self._folder / name).read_bytes(), ext_hook=unpack)


def check(value: Any, what: str) -> None:
    """UsageError says what of the value can't travel."""
    _Packing(None, "").pack(value, what)


class _Packing:
    """One value on its way."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._folder = folder  # None: nothing is written
        self._name = name
        self._files = 0

    def pack(self, value: Any, what: str) -> Any:
        """What msgpack can encode. `what`: how the value is called."""
        try:
            return self._pack(value, what)
        except RecursionError as error:
            raise UsageError(f"{what} holds itself, and so can't be written down") from error

    def _pack(self, value: Any, what: str) -> Any:
        match value:
            case np.ndarray() | np.generic():
                return self._array(value, what)
            case bool() | float() | str() | bytes() | None:
                return value
            case int():
                return value if -(2**63) <= value < 2**64 else _ext(_LONG, str(value))
            case complex():
                return _ext(_COMPLEX, [value.real, value.imag])
            case PurePath():
                return _ext(_PATH, str(value))
            case list():
                return self._items(value, what)
            case tuple():
                return _ext(_TUPLE, self._items(value, what))
            case set():
                return _ext(_SET, self._items(value, what))
            case frozenset():
                return _ext(_FROZENSET, self._items(value, what))
            case dict():
                return self._dict(value, what)
            case _ if (history := _history(value)) is not None:
                return self._dict(history, f"{what}.history")
        raise UsageError(f"{what} {describe(value)}, which can't travel. {WHAT_TRAVELS}")

    def _items(self, values: Any, what: str) -> list[Any]:
        return [self._pack(value, f"{what}[{index}]") for index, value in enumerate(values)]

    def _dict(self, values: dict[Any, Any], what: str) -> Any:
        if all(isinstance(key, _KEYS) and not isinstance(key, np.generic) for key in values):
            return {key: self._pack(value, f"{what}[{key!r}]") for key, value in values.items()}
        return _ext(_PAIRS, [self._pack(pair, what) for pair in values.items()])

    def _array(self, value: Any, what: str) -> msgspec.msgpack.Ext:
        array = np.asarray(value, order="C")
        try:
            spec = ArraySpec.of(array)
        except UsageError as error:
            raise UsageError(f"{what}: {error}") from error
        if array.nbytes < _LARGE:
            return _ext(_ARRAY, [spec, bytes(view(array)), not isinstance(value, np.ndarray)])
        file = f"{self._name}-{self._files}.array"
        self._files += 1
        if self._folder is not None:
            with (self._folder / file).open("wb") as out:
                out.write(view(array))
        return _ext(_FILED, [spec, file])


WHAT_TRAVELS = (
    "What can: numbers, texts, lists, tuples, dicts and sets of them, paths, numpy arrays. Make other things inside "
    "the function; return a model's weights (model.get_weights()), or save it and return the path."
)


def describe(value: Any) -> str:
    kind = type(value)
    return f"is of the type {kind.__name__}" + (f" of {kind.__module__}" if kind.__module__ != "builtins" else "")


def _history(value: Any) -> dict[Any, Any] | None:
    """Of what `fit` returned."""
    kind = type(value)
    if kind.__name__ == "History" and kind.__module__.startswith("keras."):
        return dict(value.history)
    return None


def _ext(code: int, value: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(value))

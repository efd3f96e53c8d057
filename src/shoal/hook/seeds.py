"""Random numbers per piece: dropout and its kin draw other numbers on every piece, the same wherever it runs.

A layer's seed generator holds (seed, counter). A piece gets a state derived from (seed, counter, piece); the
counter goes up by one with every step. So the numbers depend on the step and the piece, never on the worker.
"""

from __future__ import annotations

from typing import Any

import numpy as np

States = np.ndarray[tuple[int, int], np.dtype[np.uint64]]


class Seeds:
    """The states of a model's seed generators, one row (seed, counter) each."""

    def __init__(self, states: list[np.ndarray[Any, Any]]) -> None:
        self._states: States = np.array([state.astype(np.uint64) for state in states], np.uint64).reshape(-1, 2)

    def of_piece(self, piece: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The states that a piece starts from: 31-bit numbers, which fit every backend's seed type."""
        mixed = _mix(_mix(self._states[:, 0] ^ (self._states[:, 1] << np.uint64(32))) + np.uint64(piece))
        low = mixed & np.uint64(0x7FFFFFFF)
        high = (mixed >> np.uint64(33)) & np.uint64(0x7FFFFFFF)
        return np.stack([high, low], axis=1).astype(np.int64)

    def advance(self) -> None:
        """One step is committed."""
        self._states[:, 1] = (self._states[:, 1] + np.uint64(1)) & np.uint64(0x7FFFFFFF)

    def states(self) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        """As the model's variables hold them between two fits."""
        return list(self._states.astype(np.int64))


def _mix(value: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The finaliser of splitmix64: every bit of the input flips half the bits of the output."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: np.ndarray[Any, np.dtype[np.uint64]] = value ^ (value >> np.uint64(31))
    return result

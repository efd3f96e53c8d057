"""Random numbers per piece: dropout and its kin draw other numbers on every piece, the same wherever it runs.

A layer's seed generator holds (seed, counter). A piece gets a state derived from (seed, counter, piece); the
counter goes up by one with every step. So the numbers depend on the step and the piece, never on the worker.
"""

from __future__ import annotations

from typing import Any

import numpy as np

States = np.ndarray[tuple[int, int], np.dtype[np.uint64]]


class Seeds:
    """The states of a model's seed generators, one row (seed, counter) each.

    The first row is the fit's own: for random numbers that a backend draws without asking a seed generator.
    """

    def __init__(self, seed: int, states: list[np.ndarray[Any, Any]]) -> None:
        own = np.array([seed, 0], np.uint64)
        self._states: States = np.array([own, *(state.astype(np.uint64) for state in states)], np.uint64)

    @classmethod
    def of_rows(cls, rows: np.ndarray[Any, Any]) -> Seeds:
        """As `rows` gave them."""
        seeds = cls(0, [])
        seeds._states = np.array(rows, np.uint64)
        return seeds

    def rows(self) -> States:
        """All there is to know, the fit's own row too."""
        return self._states

    def of_piece(self, piece: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The states that a piece starts from: 31-bit numbers, which fit every backend's seed type."""
        mixed = self._mixed(piece)[1:]
        low = mixed & np.uint64(0x7FFFFFFF)
        high = (mixed >> np.uint64(33)) & np.uint64(0x7FFFFFFF)
        return np.stack([high, low], axis=1).astype(np.int64)

    def of_backend(self, piece: int) -> int:
        """A seed for the backend's own random numbers in a piece."""
        return int(self._mixed(piece)[0] >> np.uint64(1))

    def _mixed(self, piece: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return _mix(_mix(self._states[:, 0] ^ (self._states[:, 1] << np.uint64(32))) + np.uint64(piece))

    def after(self, steps: int) -> Seeds:
        """As they are so many steps later; or before, if it is a negative number."""
        rows = self._states.copy()
        rows[:, 1] = (rows[:, 1] + np.uint64(steps % 2**31)) & np.uint64(0x7FFFFFFF)
        return Seeds.of_rows(rows)

    def advance(self) -> None:
        """One step is committed."""
        self._states[:, 1] = (self._states[:, 1] + np.uint64(1)) & np.uint64(0x7FFFFFFF)

    def states(self) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        """As the model's variables hold them between two fits."""
        return list(self._states[1:].astype(np.int64))


def _mix(value: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The finaliser of splitmix64: every bit of the input flips half the bits of the output."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: np.ndarray[Any, np.dtype[np.uint64]] = value ^ (value >> np.uint64(31))
    return result

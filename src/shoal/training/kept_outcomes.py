"""What the calls of a script have returned, as checkpoints keep it: a run that goes on from one does not repeat them.

There is no end to the calls of a script, and each checkpoint has them all; so there is a limit. Beyond it the oldest
are forgotten, and a checkpoint says so: only a script that does not make these calls can go on from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

LIMIT = 32 << 20  # bytes: some 200,000 calls of evaluate, or 64 of the largest results that are kept
_ENTRY = 100  # bytes that an outcome costs besides its own


class KeptOutcomes(Mapping[int, bytes]):
    """By the call's number. `before`: of the calls with smaller numbers, some may be forgotten."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.before = 0
        self._limit = limit
        self._bytes = 0
        self._kept: dict[int, bytes] = {}  # in the order of the calls

    def keep(self, call: int, outcome: bytes) -> None:
        """One call more, or another outcome of one."""
        self._forget(call)
        self._kept[call] = outcome
        self._bytes += len(outcome) + _ENTRY
        while self._bytes > self._limit:
            oldest = next(iter(self._kept))
            self._forget(oldest)
            self.before = max(self.before, oldest + 1)

    def go_on_from(self, before: int) -> None:
        """From a checkpoint in which these calls are forgotten."""
        self.before = max(self.before, before)

    def __getitem__(self, call: int) -> bytes:
        return self._kept[call]

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def _forget(self, call: int) -> None:
        if call in self._kept:
            self._bytes -= len(self._kept.pop(call)) + _ENTRY

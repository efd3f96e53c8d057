"""A worker's place among those with whom it takes a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.data.columns import Array


class Rank(Protocol):
    """A worker's place among those with whom it takes a step."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def scatter(
        self, what: str, parts: Sequence[Sequence[Array]] | None, header: bytes = b""
    ) -> tuple[bytes, list[Array]]:
        """Rank 0 gives a header for all and rows for each; everyone gets the header and its own rows."""

    def gather(self, what: str, value: bytes) -> list[bytes]:
        """Small values of all, by rank."""

    def send(self, ranks: Sequence[int], name: tuple[int, ...], arrays: Sequence[Array]) -> None:
        """Arrays under a name, for ranks that receive them before the next collective call."""

    def receive(self, rank: int, name: tuple[int, ...], what: str) -> list[Array]:
        """What a rank sends under this name."""


class _Alone:
    """The place of one who shares its rows with nobody."""

    rank, size = 0, 1

    def scatter(
        self, what: str, parts: Sequence[Sequence[Array]] | None, header: bytes = b""
    ) -> tuple[bytes, list[Array]]:
        raise TypeError("a stream's rows are not taken alone")

    def gather(self, what: str, value: bytes) -> list[bytes]:
        return [value]

    def send(self, ranks: Sequence[int], name: tuple[int, ...], arrays: Sequence[Array]) -> None:
        raise TypeError("there is nobody to send to")

    def receive(self, rank: int, name: tuple[int, ...], what: str) -> list[Array]:
        raise TypeError("there is nobody to receive from")


ALONE = _Alone()

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


class _Alone:
    """The place of one who shares its rows with nobody."""

    rank, size = 0, 1

    def scatter(
        self, what: str, parts: Sequence[Sequence[Array]] | None, header: bytes = b""
    ) -> tuple[bytes, list[Array]]:
        raise TypeError("a stream's rows are not taken alone")


ALONE = _Alone()

"""Which samples it is that something happens to, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from shoal.data.order import Indices

_NAMED = 8  # samples that an error names


@contextmanager
def noting(what: Callable[[], str]) -> Iterator[None]:
    """An error that comes from the user's data says which data it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"shoal: while {what()}")
        raise


def samples(indices: Sequence[int] | Indices) -> str:
    """The first few by number; as many as fit into a line."""
    first = ", ".join(str(index) for index in indices[:_NAMED])
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return f"sample{'s' if len(indices) != 1 else ''} {first}{more}"

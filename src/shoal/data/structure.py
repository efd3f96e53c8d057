"""Nested batches as a flat list of arrays and a skeleton that can travel.

A skeleton is made of JSON words only, so that a worker can rebuild a batch that the chief read
without either of them unpickling anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shoal.errors import CannotDistribute

Skeleton = Any  # "leaf" | None | {"tuple": [...]} | {"list": [...]} | {"dict": {...}}


def flatten(structure: Any) -> tuple[list[Any], Skeleton]:
    """All leaves from left to right (dict entries sorted by key), and the skeleton that holds them."""
    leaves: list[Any] = []
    return leaves, _take_apart(structure, leaves)


def rebuild(skeleton: Skeleton, leaves: Sequence[Any]) -> Any:
    """The structure that `flatten` took apart, with other leaves."""
    supply = iter(leaves)
    return _put_together(skeleton, supply)


def _take_apart(structure: Any, leaves: list[Any]) -> Skeleton:
    if structure is None:
        return None
    if isinstance(structure, dict):
        if not all(isinstance(key, str) for key in structure):
            raise CannotDistribute(
                f"a batch is a dict with keys {list(structure)!r}; expected strings (the names of the inputs)"
            )
        return {"dict": {key: _take_apart(structure[key], leaves) for key in sorted(structure)}}
    if isinstance(structure, list):
        return {"list": [_take_apart(part, leaves) for part in structure]}
    if isinstance(structure, tuple):
        return {"tuple": [_take_apart(part, leaves) for part in structure]}
    leaves.append(structure)
    return "leaf"


def _put_together(skeleton: Skeleton, supply: Iterator[Any]) -> Any:
    if skeleton is None:
        return None
    if skeleton == "leaf":
        return next(supply)
    ((kind, parts),) = skeleton.items()
    if kind == "dict":
        return {key: _put_together(part, supply) for key, part in parts.items()}
    rebuilt = [_put_together(part, supply) for part in parts]
    return tuple(rebuilt) if kind == "tuple" else rebuilt

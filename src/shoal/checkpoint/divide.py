"""Which member writes which tensors. Pure: all members derive the same division from the same sizes."""

from __future__ import annotations

import heapq
from collections.abc import Mapping


def divide(sizes: Mapping[str, int], writers: int) -> list[list[str]]:
    """Tensors by name and bytes, as one list of names per writer, balanced by bytes. A tensor is never split.

    The largest goes first, to whoever has least: no writer has more than 4/3 of what the best division would give.
    With few tensors some lists are empty.
    """
    if writers < 1:
        raise ValueError(f"a checkpoint needs at least 1 writer, not {writers}")
    # By name where sizes are equal, by number where loads are: the order of the mapping must not matter.
    loads = [(0, writer) for writer in range(writers)]
    shares: list[list[str]] = [[] for _ in range(writers)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, writer = loads[0]
        shares[writer].append(name)
        heapq.heapreplace(loads, (load + sizes[name], writer))
    return shares

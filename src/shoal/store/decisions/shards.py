"""Which ranges of which tensors make a shard. Pure: everybody cuts the same parameters into the same shards.

What the optimizer needs says where a parameter may be cut:

    SLICES     the update is element-wise: large tensors are cut into ranges of their elements
    WHOLE      it looks at the whole tensor (LAMB, Muon, Adafactor, a norm per variable): never cut
    TOGETHER   it looks at all of these at once (global_clipnorm): they share one shard

Small tensors are not cut either: a shard's work is then a few long ranges, not many short ones. What can't be cut is
packed first, the largest first, into whichever shard has least; the rest fills the shards up to one level.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Sequence

import ml_dtypes
import msgspec
import numpy as np

from shoal.errors import UsageError

SMALL = 65536  # bytes; a tensor that is not larger is never cut
GRAIN = 1024  # elements; cuts are at multiples of it, so that no range is a splinter


class Needs(enum.StrEnum):
    """How much of a parameter its optimizer must see at once."""

    SLICES = "slices"
    WHOLE = "whole"
    TOGETHER = "together"


class Parameter(msgspec.Struct, frozen=True):
    """One tensor to be kept on servers."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    needs: Needs = Needs.SLICES

    @property
    def size(self) -> int:
        """In elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype).itemsize

    @property
    def bytes(self) -> int:
        return self.size * self.itemsize


class Range(msgspec.Struct, frozen=True):
    """The elements from `start` to `stop` of a tensor, counted as if it had one dimension."""

    parameter: str
    start: int
    stop: int


class Shard(msgspec.Struct, frozen=True):
    """What one server holds as one: ranges in the order of the parameters."""

    number: int
    ranges: tuple[Range, ...]
    bytes: int


def into_shards(parameters: Sequence[Parameter], count: int) -> tuple[Shard, ...]:
    """Cut the parameters into at most `count` shards, balanced by bytes; every element is in exactly one.

    There are fewer shards if there is not enough to put into them: none is empty.
    """
    _check(parameters, count)
    loads = [0] * count
    held: list[list[Range]] = [[] for _ in range(count)]
    for block in _blocks(parameters):
        least = loads.index(min(loads))
        loads[least] += sum(parameter.bytes for parameter in block)
        held[least] += [Range(parameter.name, 0, parameter.size) for parameter in block]
    _pour([parameter for parameter in parameters if _is_fluid(parameter)], loads, held)
    order = {parameter.name: place for place, parameter in enumerate(parameters)}
    full = [shard for shard in range(count) if held[shard]]
    for shard in full:
        held[shard].sort(key=lambda range: order[range.parameter])
    return tuple(Shard(number, tuple(held[shard]), loads[shard]) for number, shard in enumerate(full))


def _check(parameters: Sequence[Parameter], count: int) -> None:
    if not parameters:
        raise UsageError("there are no parameters to put on servers. Build the model before it is trained.")
    if count < 1:
        raise UsageError(f"cannot cut the parameters into {count} shards: expected at least 1")
    names = Counter(parameter.name for parameter in parameters)
    if twice := [name for name, times in names.items() if times > 1]:
        raise UsageError(f"two parameters have the same name: {', '.join(twice)}. Every name must be there once.")


def _is_fluid(parameter: Parameter) -> bool:
    return parameter.needs is Needs.SLICES and parameter.bytes > SMALL


def _blocks(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """What must not be cut, the largest first; equal ones in the order of the parameters."""
    blocks = [[p] for p in parameters if p.needs is not Needs.TOGETHER and not _is_fluid(p)]
    if together := [parameter for parameter in parameters if parameter.needs is Needs.TOGETHER]:
        blocks.append(together)
    return sorted(blocks, key=lambda block: -sum(parameter.bytes for parameter in block))


def _pour(parameters: Sequence[Parameter], loads: list[int], held: list[list[Range]]) -> None:
    """Fill the shards up to one level, in order, with ranges of these parameters."""
    level = _level(sum(parameter.bytes for parameter in parameters), loads)
    todo = [shard for shard, load in enumerate(loads) if load < level]
    for parameter in parameters:
        start = 0
        while start < parameter.size:
            room = max(0.0, level - loads[todo[0]]) / parameter.itemsize
            taken = parameter.size - start
            if room < taken and len(todo) > 1:
                taken = min(taken, round(room / GRAIN) * GRAIN)
            if taken:
                held[todo[0]].append(Range(parameter.name, start, start + taken))
                loads[todo[0]] += taken * parameter.itemsize
                start += taken
            if start < parameter.size:
                todo.pop(0)


def _level(amount: int, loads: Sequence[int]) -> float:
    """How high the shards stand when so many bytes are poured into them."""
    heights = sorted(loads)
    for count in range(len(heights), 0, -1):
        level = (amount + sum(heights[:count])) / count
        if level >= heights[count - 1]:
            return level
    raise AssertionError("one shard alone always has a level")

"""A training step on TensorFlow, as its graph tells: what depends on the batch, and what on which apply.

A step assigns in place, so values travel through variables as well as along the edges of the graph. An operation that
reads a variable depends on all that was written to it before, in the order in which the step made its operations; and
on the applies before it that update the variable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

_DATA = 1  # the first bit of what a value depends on: the batch, or anything else that differs from piece to piece

_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}


class PlacedApply(NamedTuple):
    """An apply, and where it stands in the step."""

    position: int  # how many operations the graph had by then
    variables: frozenset[int]  # those that it updates, by their handles' ids


def position() -> int:
    """Where a step stands that is being traced."""
    return len(tf.compat.v1.get_default_graph().get_operations())


def handle_of(variable: Any) -> int:
    return id(variable.value.handle)


class StepGraph:
    """The graph of a whole step."""

    def __init__(self, graph: Any, differs: Collection[int], applies: Sequence[PlacedApply]) -> None:
        """`differs`: the inputs, by number, that differ from piece to piece."""
        self._operations = graph.get_operations()
        self._place = {id(operation): place for place, operation in enumerate(self._operations)}
        self._handles = {id(inner): id(outer) for outer, inner in graph.captures if inner.dtype == tf.resource}
        self._applies = applies
        self._writes: dict[int, list[int]] = {}  # handle -> operations, by place
        self._depends = [0] * len(self._operations)
        own = [tensor for tensor in graph.inputs if id(tensor) not in {id(inner) for _, inner in graph.captures}]
        self._given = {self._place[id(tensor.op)] for number, tensor in enumerate(own) if number in differs}
        self._follow()

    def depends_on_data(self, tensor: Any) -> bool:
        return bool(self._bits(tensor) & _DATA)

    def part_of(self, tensor: Any) -> int:
        """The first part of the step that knows a value: the one after the last apply that it depends on."""
        return (self._bits(tensor) >> 1).bit_length()

    def looks_back(self, tensors: Sequence[Any], part: int) -> bool:
        """Whether values need variables as they were before an apply of an earlier part."""
        return any(
            handle in apply.variables and apply.position > place
            for place, handle in self._reads(tensors)
            for apply in self._applies[:part]
        )

    def written_for(self, tensors: Sequence[Any]) -> frozenset[int]:
        """The variables, by their handles' ids, that values need as the step has assigned them."""
        return frozenset(
            handle
            for place, handle in self._reads(tensors)
            if any(write < place for write in self._writes.get(handle, ()))
        )

    def _reads(self, tensors: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """All uses of variables that values depend on: the operation's place, and the handle."""
        seen: set[int] = set()
        ahead = [self._place[id(tensor.op)] for tensor in tensors]
        while ahead:
            place = ahead.pop()
            if place in seen:
                continue
            seen.add(place)
            operation = self._operations[place]
            for tensor in operation.inputs:
                handle = self._handles.get(id(tensor))
                if handle is None:
                    ahead.append(self._place[id(tensor.op)])
                    continue
                yield place, handle
                ahead += [write for write in self._writes.get(handle, ()) if write < place]

    def _bits(self, tensor: Any) -> int:
        return self._depends[self._place[id(tensor.op)]]

    def _follow(self) -> None:
        written: dict[int, int] = {}
        for place, operation in enumerate(self._operations):
            bits = _DATA if place in self._given or _draws(operation) else 0
            handles = []
            for tensor in operation.inputs:
                handle = self._handles.get(id(tensor))
                if handle is None:
                    bits |= self._bits(tensor)
                else:
                    handles.append(handle)
                    bits |= written.get(handle, 0) | self._updates_before(place, handle)
            self._depends[place] = bits
            if operation.type not in _READS:
                for handle in handles:
                    written[handle] = written.get(handle, 0) | bits
                    self._writes.setdefault(handle, []).append(place)

    def _updates_before(self, place: int, handle: int) -> int:
        bits = 0
        for number, apply in enumerate(self._applies):
            if apply.position <= place and handle in apply.variables:
                bits |= 2 << number
        return bits


def _draws(operation: Any) -> bool:
    """Whether it makes random numbers, or anything else that the graph does not tell."""
    kind = operation.type
    random = any(word in kind for word in ("Random", "Multinomial", "TruncatedNormal")) and "Stateless" not in kind
    return random or kind in ("PyFunc", "EagerPyFunc", "PyFuncStateless")

"""A model's graph, and how it is cut into stages of neighbouring layers. Pure: numbers in, stages out.

The graph's calls stand in one order, in which every call comes after those that make what it takes. A cut is a place in
that order; the calls between two cuts are a stage. What a call takes from an earlier stage is a boundary tensor: it
goes straight from the stage that makes it to every stage that takes it, however many stages lie between. What the model
is given (its inputs) never crosses: whoever computes a stage has read the rows of its pieces.

The loss is part of the last stage, which therefore takes all outputs of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import msgspec

from shoal.errors import CannotDistribute


class LayerCall(NamedTuple):
    """One call of a layer or an operation in a model's graph. Tensors are numbers."""

    layer: str  # its name; a layer that is called twice has two calls
    takes: tuple[int, ...]
    makes: tuple[int, ...]
    cost: float = 1.0  # of computing it, relative to the others


class ModelGraph(NamedTuple):
    """A model as calls of layers, in an order in which it can be computed."""

    calls: tuple[LayerCall, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    uncut: frozenset[int] = frozenset()  # tensors that can't go to another stage, such as those with a mask


class Stage(msgspec.Struct, frozen=True):
    """Some neighbouring calls of a graph, and what crosses its borders."""

    number: int
    calls: tuple[int, int]  # the first, and one past the last
    inputs: tuple[int, ...]  # of the model's own
    receives: tuple[tuple[int, int], ...]  # tensor and the stage that makes it, in the order of tensors
    sends: tuple[tuple[int, tuple[int, ...]], ...]  # tensor and the stages that take it


def in_order(calls: Sequence[LayerCall], outputs: Sequence[int]) -> list[int]:
    """An order in which a graph can be computed, with every call as late as possible: few tensors cross a cut."""
    maker = {tensor: place for place, call in enumerate(calls) for tensor in call.makes}
    depth = dict.fromkeys(range(len(calls)), -1)
    # Calls are given in some order in which they can be computed: backwards, all takers come before the maker.
    for place in reversed(range(len(calls))):
        if any(tensor in outputs for tensor in calls[place].makes):
            depth[place] = max(depth[place], 0)
        for tensor in calls[place].takes:
            if tensor in maker:
                depth[maker[tensor]] = max(depth[maker[tensor]], depth[place] + 1)
    return sorted(range(len(calls)), key=lambda place: (-depth[place], place))


def possible_cuts(graph: ModelGraph) -> list[int]:
    """The places before which the graph may be cut: nothing crosses them that can't."""
    last_use = {tensor: place for place, call in enumerate(graph.calls) for tensor in call.takes}
    last_use |= dict.fromkeys(graph.outputs, len(graph.calls))
    made = {tensor: place for place, call in enumerate(graph.calls) for tensor in call.makes}
    closed = {
        place
        for tensor in graph.uncut
        if tensor in made and tensor in last_use
        for place in range(made[tensor] + 1, last_use[tensor] + 1)
    }
    return [place for place in range(1, len(graph.calls)) if place not in closed]


def attention_cost(query: Sequence[int | None], value: Sequence[int | None], width: int) -> float:
    """What attention computes besides its kernels, of one sample: every position of the query looks at every one of the
    value, across `width` numbers: once to weigh it, once to add it. From shapes, with the batch's axis.
    """
    return float(prod(axis or 1 for axis in (*query[1:-1], *value[1:-1])) * width)


def choose_cuts(graph: ModelGraph, stages: int, speeds: Sequence[float] | None = None) -> tuple[int, ...]:
    """The cuts with which the slowest stage takes least; of equals, those with the fewest tensors that cross.

    `speeds`: of those who compute each stage, where they are unequal. CannotDistribute if there are too few places.
    """
    places = possible_cuts(graph)
    if len(places) < stages - 1:
        raise CannotDistribute(
            f"this model can be cut at {len(places)} place{'s' if len(places) != 1 else ''}, into at most "
            f"{len(places) + 1} stage{'s' if places else ''}; {stages} were asked for. Use fewer stages."
        )
    before = [0.0]
    for call in graph.calls:
        before.append(before[-1] + call.cost)
    pace = [1.0 / speed for speed in speeds] if speeds is not None else [1.0] * stages
    crossing = {place: _crossing(graph, place) for place in places}
    # best[place]: the slowest stage, what crosses, and the cuts of the stages so far, if the next one begins there.
    best: dict[int, tuple[float, int, tuple[int, ...]]] = {0: (0.0, 0, ())}
    for stage in range(stages):
        ends = places if stage < stages - 1 else [len(graph.calls)]
        found: dict[int, tuple[float, int, tuple[int, ...]]] = {}
        for end in ends:
            reached = [
                (max(slowest, (before[end] - before[start]) * pace[stage]), count + crossing.get(end, 0), (*cuts, end))
                for start, (slowest, count, cuts) in best.items()
                if start < end
            ]
            if reached:
                found[end] = min(reached)
        best = found
    return best[len(graph.calls)][2][:-1]


def cut(graph: ModelGraph, cuts: Sequence[int]) -> tuple[Stage, ...]:
    """The stages that these cuts make."""
    bounds = [0, *cuts, len(graph.calls)]
    stage_of = {
        tensor: number
        for number, (low, high) in enumerate(pairwise(bounds))
        for call in graph.calls[low:high]
        for tensor in call.makes
    }
    last = len(bounds) - 2
    taken: dict[int, set[int]] = {}  # boundary tensor -> the stages that take it
    own: list[list[int]] = [[] for _ in range(last + 1)]
    for number, (low, high) in enumerate(pairwise(bounds)):
        needed = [tensor for call in graph.calls[low:high] for tensor in call.takes]
        needed += graph.outputs if number == last else ()
        for tensor in needed:
            if tensor in graph.inputs:
                own[number].append(tensor)
            elif stage_of[tensor] != number:
                taken.setdefault(tensor, set()).add(number)
    return tuple(
        Stage(
            number,
            (low, high),
            tuple(dict.fromkeys(own[number])),
            tuple((tensor, stage_of[tensor]) for tensor in sorted(taken) if number in taken[tensor]),
            tuple((tensor, tuple(sorted(taken[tensor]))) for tensor in sorted(taken) if stage_of[tensor] == number),
        )
        for number, (low, high) in enumerate(pairwise(bounds))
    )


def costs(graph: ModelGraph, cuts: Sequence[int]) -> tuple[float, ...]:
    """What each stage costs."""
    bounds = [0, *cuts, len(graph.calls)]
    return tuple(sum(call.cost for call in graph.calls[low:high]) for low, high in pairwise(bounds))


def _crossing(graph: ModelGraph, place: int) -> int:
    """How many tensors cross a cut at this place."""
    made = {tensor for call in graph.calls[:place] for tensor in call.makes}
    taken = {tensor for call in graph.calls[place:] for tensor in call.takes} | set(graph.outputs)
    return len(made & taken)

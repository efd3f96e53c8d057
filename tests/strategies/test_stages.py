"""Graphs are cut where nothing forbids it, evenly, and what crosses a cut goes from its maker to every taker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import CannotDistribute
from shoal.strategies.stages import LayerCall, ModelGraph, choose_cuts, costs, cut, in_order, possible_cuts


def chain(*prices: float) -> ModelGraph:
    calls = tuple(LayerCall(f"l{i}", (i,), (i + 1,), price) for i, price in enumerate(prices))
    return ModelGraph(calls, (0,), (len(prices),))


@st.composite
def graphs(draw: st.DrawFn) -> ModelGraph:
    count = draw(st.integers(2, 12))
    calls = []
    for i in range(count):
        takes = draw(st.sets(st.integers(0, i), min_size=1, max_size=3))
        calls.append(LayerCall(f"l{i}", tuple(sorted(takes)), (i + 1,), draw(st.integers(1, 9))))
    taken = {tensor for call in calls for tensor in call.takes}
    outputs = tuple(tensor for tensor in range(1, count + 1) if tensor not in taken)
    order = in_order(calls, outputs)
    return ModelGraph(tuple(calls[place] for place in order), (0,), outputs)


def test_the_slowest_stage_is_as_fast_as_can_be() -> None:
    graph = chain(1, 1, 1, 9, 1, 1)
    assert choose_cuts(graph, 3) == (3, 4)
    assert costs(graph, choose_cuts(graph, 2)) == (3, 11)  # (12, 2) would be slower


def test_a_faster_worker_gets_a_larger_stage() -> None:
    graph = chain(*[1.0] * 9)
    assert costs(graph, choose_cuts(graph, 2, speeds=(2.0, 1.0))) == (6.0, 3.0)


def test_a_skip_connection_goes_straight_to_who_takes_it() -> None:
    calls = (
        LayerCall("a", (0,), (1,)),
        LayerCall("b", (1,), (2,)),
        LayerCall("c", (2,), (3,)),
        LayerCall("add", (1, 3), (4,)),
    )
    first, second, third = cut(ModelGraph(calls, (0,), (4,)), (1, 3))
    assert first.sends == ((1, (1, 2)),)
    assert second.receives == ((1, 0),)
    assert second.sends == ((3, (2,)),)
    assert third.receives == ((1, 0), (3, 1))


def test_the_models_own_inputs_do_not_cross() -> None:
    calls = (LayerCall("a", (0,), (2,)), LayerCall("join", (1, 2), (3,)))
    first, second = cut(ModelGraph(calls, (0, 1), (3,)), (1,))
    assert (first.inputs, second.inputs, second.receives) == ((0,), (1,), ((2, 0),))


def test_an_early_output_goes_to_the_last_stage_where_the_loss_is() -> None:
    calls = (LayerCall("a", (0,), (1,)), LayerCall("b", (1,), (2,)), LayerCall("c", (2,), (3,)))
    stages = cut(ModelGraph(calls, (0,), (1, 3)), (1, 2))
    assert stages[2].receives == ((1, 0), (2, 1))


def test_what_carries_a_mask_is_not_cut() -> None:
    graph = chain(1, 1, 1, 1)._replace(uncut=frozenset({1, 2}))
    assert possible_cuts(graph) == [3]
    with pytest.raises(CannotDistribute, match="at 1 place, into at most 2 stages; 3 were asked for"):
        choose_cuts(graph, 3)


@given(graphs(), st.integers(2, 4))
def test_every_tensor_arrives_from_the_stage_that_makes_it(graph: ModelGraph, count: int) -> None:
    if len(possible_cuts(graph)) < count - 1:
        return
    stages = cut(graph, choose_cuts(graph, count))
    for stage in stages:
        low, high = stage.calls
        there = set(stage.inputs) | {tensor for tensor, _ in stage.receives}
        for call in graph.calls[low:high]:
            assert set(call.takes) <= there
            there |= set(call.makes)
        for tensor, maker in stage.receives:
            assert maker < stage.number
            assert (tensor, True) in [(t, stage.number in to) for t, to in stages[maker].sends]
    assert set(graph.outputs) <= there


@given(graphs())
def test_calls_stand_after_what_they_take(graph: ModelGraph) -> None:
    there = set(graph.inputs)
    for call in graph.calls:
        assert set(call.takes) <= there
        there |= set(call.makes)

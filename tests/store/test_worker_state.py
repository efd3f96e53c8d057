"""What one worker makes of grants, losses and pauses."""

from __future__ import annotations

from shoal.store.decisions.director_messages import (
    AtRest,
    EpochOver,
    Finish,
    GoOn,
    Grant,
    Pause,
    ShardsPlaced,
    WantWork,
)
from shoal.store.decisions.placement import Placement, ShardView
from shoal.store.decisions.requests import Ask
from shoal.store.decisions.worker_state import (
    BatchWork,
    ComeBack,
    EpochEnd,
    LookUp,
    Offer,
    Rest,
    TellDirector,
    WorkerRole,
    WorkerState,
)
from shoal.store.values.messages import Lacking, Pull, Pulled, Push, Pushed, Supply, VersionAsked, VersionSeen
from shoal.store.values.operations import Batch

BATCH = Batch(0, 5)


def placed(number: int, *workers: str) -> ShardsPlaced:
    views = (ShardView(number, 0, "server-0", (), (), 1),)
    return ShardsPlaced(0, Placement(number, ("server-0",), 1, (8,), views), workers, {})


def worker(tables: frozenset[int] = frozenset()) -> WorkerState:
    state = WorkerState(WorkerRole("worker-0", 0, 1, 1, tables))
    assert state.read(placed(1, "worker-0")) == [TellDirector(WantWork(0, 0))]
    return state


def answer(state: WorkerState, view: int = 1) -> list[object]:
    """The weights come that it has asked for last."""
    (asked,) = [ask for request in state._requests for ask in request.reconnected("server-0")]
    return state.hear("server-0", Pulled(0, view, asked.message.number, 3, {"worker-1": 2}), ["w"])


def work_of(decisions: list[object]) -> BatchWork:
    (work,) = [decision.todo for decision in decisions if isinstance(decision, Offer)]
    assert isinstance(work, BatchWork)
    return work


def test_a_granted_batch_is_pulled_computed_pushed_and_finished_and_the_next_turn_is_wanted():
    state = worker()
    (ask,) = state.read(Grant(0, 0, BATCH, 7, 1))
    assert ask == Ask("server-0", Pull(0, 1, 0))
    work = work_of(answer(state))
    (push,) = state.computed(work, {0: ["g"]}, 0.5)
    assert isinstance(push.message, Push)
    assert (push.message.update.seen, push.message.update.rate, push.beside) == ({"worker-1": 2}, 0.5, ["g"])
    assert state.has_pushed
    assert state.hear("server-0", Pushed(0, 1, BATCH, 4, 2), []) == [
        TellDirector(Finish(0, BATCH, 7, 1, 2)),
        TellDirector(WantWork(0, 1)),
    ]
    assert not state.has_pushed


def test_a_grant_that_is_told_again_is_heeded_once():
    state = worker()
    state.read(Grant(0, 0, BATCH, 7, 1))
    assert state.read(Grant(0, 0, BATCH, 7, 1)) == []


def test_what_was_computed_for_a_lost_grant_does_not_count_for_the_next_one_of_the_same_batch():
    """Its weights were older than those of the new grant: with them it would be staler than anybody knows."""
    state = worker()
    state.read(Grant(0, 0, BATCH, 7, 1))
    old = work_of(answer(state))
    assert state.read(placed(2)) == [ComeBack()]
    assert not state.is_granted(old)
    state.read(placed(3, "worker-0"))
    state.read(Grant(0, 1, BATCH, 8, 3))
    assert not state.is_granted(old), "the new weights are not there yet"
    new = work_of(answer(state, 3))
    assert not state.is_granted(old)
    assert state.is_granted(new)


def test_the_end_of_an_epoch_is_seen_also_by_one_that_is_taken_for_lost():
    state = worker()
    state.read(EpochOver(0, 4))
    state.read(placed(2))
    assert answer(state, 2) == [Offer(EpochEnd(4, [["w"]]))]
    assert state.read(EpochOver(0, 4)) == [], "once"


def test_a_pause_is_over_when_this_worker_is_taken_for_lost():
    state = worker()
    assert state.pause() == [TellDirector(Pause(0, 0))]
    state.read(AtRest(0, 0, 2, 9))
    rest = Rest(0, 2, 9, [["w"]])
    assert answer(state) == [Offer(rest)]
    assert state.rests(rest)
    state.read(placed(2))
    assert not state.rests(rest)
    assert not state.is_pausing
    assert state.end_pause() == []
    state.read(placed(3, "worker-0"))
    state.pause()
    assert state.end_pause() == [TellDirector(GoOn(0, 1))]


def test_with_tables_a_grant_first_asks_which_rows_are_needed():
    state = worker(frozenset({0}))
    assert state.read(Grant(0, 0, BATCH, 7, 1)) == [Offer(LookUp(BATCH), first=True)]


def test_a_server_that_lacks_a_shard_gets_the_newest_weights():
    state = worker()
    assert state.hear("server-0", Lacking(0, 1), []) == []
    state.read(Grant(0, 0, BATCH, 7, 1))
    answer(state)
    assert state.hear("server-0", Lacking(0, 1), []) == [Ask("server-0", Supply(0, 1, 3), ["w"])]


def test_a_worker_says_which_version_it_has_seen_once_it_is_in_the_view_in_which_it_was_asked():
    state = worker()
    assert state.hear("server-0", VersionAsked(0, 1), []) == [Ask("server-0", VersionSeen(0, 1, None))]
    state.read(Grant(0, 0, BATCH, 7, 1))
    assert state.hear("server-1", VersionAsked(0, 2), []) == [], "what the lost one has sent may still come"
    answer(state)
    assert Ask("server-1", VersionSeen(0, 2, 3)) in state.read(placed(2, "worker-0"))


def test_who_came_late_supplies_what_another_worker_told_it_unless_it_has_pulled_since():
    state = worker()
    state.offer([["told"]])
    assert state.hear("server-0", Lacking(0, 1), []) == [Ask("server-0", Supply(0, 1, 0), ["told"])]
    state.newest[0] = (3, ["pulled"])
    state.offer([["told"]])
    assert state.hear("server-0", Lacking(0, 1), []) == [Ask("server-0", Supply(0, 1, 3), ["pulled"])]


def test_others_have_begun_an_epoch_when_a_batch_of_it_is_granted_or_it_is_over():
    state = worker()
    assert not state.has_begun(0)
    state.read(Grant(0, 0, BATCH, 0, 1))
    assert state.has_begun(0)
    assert not state.has_begun(1)
    state.read(EpochOver(0, 1))
    assert state.has_begun(1)

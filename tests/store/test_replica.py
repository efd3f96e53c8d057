"""One shard's replicas, scene by scene: who orders, who applies, when a worker hears of it, and who takes over."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from shoal.store.decisions.placement import ShardView
from shoal.store.decisions.replica import (
    NEAR,
    ApplyUpdate,
    Digest,
    Drop,
    Give,
    GoBack,
    Load,
    Replica,
    ReportReplica,
    TellMember,
)
from shoal.store.values.ledger import Ledger, Provenance
from shoal.store.values.messages import (
    CaughtUp,
    Differs,
    Order,
    Point,
    Pull,
    Pulled,
    Push,
    Pushed,
    ReplicaStanding,
    RequestRefused,
    StoreReason,
    Supply,
    Transfer,
)
from shoal.store.values.operations import Assignment, Batch, Tally


class Scene:
    """Some servers and their replicas of shard 0. Their states are the places that they have applied, in order."""

    def __init__(self, *servers: str, check_every: int = 1000) -> None:
        self.replicas = {id: Replica(0, id, check_every) for id in servers}
        self.states: dict[str, list[int]] = {id: [] for id in servers}
        self.heard: list[tuple[str, Any]] = []  # by workers
        self.reports: list[Any] = []
        self.dropped: list[str] = []
        self.on_its_way: deque[tuple[str, str, Any, Any]] = deque()
        self.silent: set[str] = set()  # servers whose messages stay on their way
        self.checkpoint: tuple[int, Ledger, list[int]] = (0, Ledger(), [])

    def view(self, number: int, primary: str, *backups: str, newcomers: tuple[str, ...] = (), origin: int = 1) -> Scene:
        """Everybody takes it."""
        view = ShardView(number, 0, primary, backups, newcomers, origin)
        for id, replica in self.replicas.items():
            self.perform(id, replica.take_view(view))
        return self

    def push(self, to: str, place: int, view: int = 1, worker: str = "w", **seen: int) -> Scene:
        update = Provenance(Batch(0, place), worker, seen)
        self.perform(to, self.replicas[to].handle(worker, Push(0, view, update), place))
        return self

    def pull(self, to: str, view: int = 1) -> Scene:
        self.perform(to, self.replicas[to].handle("w", Pull(0, view, 99)))
        return self

    def settle(self, *only: str) -> Scene:
        """Deliver what is on its way, and what follows from it; or only what these servers have sent."""
        while True:
            able = [s for s in self.on_its_way if s[0] not in self.silent and (not only or s[0] in only)]
            if not able:
                return self
            self.on_its_way.remove(able[0])
            sender, to, message, beside = able[0]
            self.perform(to, self.replicas[to].handle(sender, message, beside))

    def lose(self, id: str) -> Scene:
        """With all that it has sent."""
        del self.replicas[id]
        self.on_its_way = deque(said for said in self.on_its_way if id not in said[:2])
        return self

    def perform(self, id: str, decisions: list[Any]) -> None:
        for decision in decisions:
            match decision:
                case TellMember(to, message, beside):
                    self._send(id, to, message, beside)
                case Give(to, message):
                    self._send(id, to, message, list(self.states[id]))
                case ReportReplica(message):
                    self.reports.append(message)
                case ApplyUpdate(gradients=place):
                    self.states[id].append(place)
                case Load(state=state):
                    self.states[id] = list(state)
                case Digest(point):
                    self.perform(id, self.replicas[id].digested(point, hash(tuple(self.states[id]))))
                case GoBack():
                    version, ledger, state = self.checkpoint
                    self.states[id] = list(state)
                    self.perform(id, self.replicas[id].restored(version, ledger))
                case Drop():
                    self.states[id] = []
                    self.dropped.append(id)

    def _send(self, sender: str, to: str, message: Any, beside: Any) -> None:
        if to in self.replicas:
            self.on_its_way.append((sender, to, message, beside))
        elif not to.startswith("server"):
            self.heard.append((to, message))

    @property
    def acknowledged(self) -> list[int]:
        return [message.operation.place for _, message in self.heard if isinstance(message, Pushed)]

    def sent(self, kind: type) -> list[tuple[str, str]]:
        """Who has something of this kind on its way, to whom."""
        return [(sender, to) for sender, to, message, _ in self.on_its_way if isinstance(message, kind)]


def level(*servers: str, check_every: int = 1000) -> Scene:
    """The first leads, the others are its backups, and all stand at version 0."""
    primary, *others = servers
    scene = Scene(*servers, check_every=check_every).view(1, primary, newcomers=tuple(others)).settle()
    assert scene.reports == [CaughtUp(0, 1, other) for other in others]
    return scene.view(2, primary, *others).settle()


def test_a_push_is_acknowledged_when_every_backup_has_applied_it_and_the_primary_applies_last():
    scene = level("a", "b", "c").push("a", 7, view=2)
    assert scene.states == {"a": [], "b": [], "c": []}
    scene.settle("a").settle("b")
    assert scene.states == {"a": [], "b": [7], "c": [7]}
    assert scene.acknowledged == []
    scene.settle("c")
    assert scene.states == {"a": [7], "b": [7], "c": [7]}
    assert scene.heard == [("w", Pushed(0, 2, Batch(0, 7), 1, 0))]


def test_without_backups_a_push_is_applied_and_acknowledged_at_once():
    scene = level("a").push("a", 7, view=2)
    assert (scene.states["a"], scene.acknowledged) == ([7], [7])


def test_a_pull_shows_only_what_every_backup_has():
    scene = level("a", "b").push("a", 7, view=2).settle("a").pull("a", view=2)
    assert scene.states == {"a": [], "b": [7]}
    assert scene.heard == [("w", Pulled(0, 2, 99, 0, {}))]


def test_pushes_of_several_workers_get_one_order_everywhere():
    scene = level("a", "b", "c")
    for place, worker in ((3, "w"), (1, "x"), (2, "y")):
        scene.push("a", place, view=2, worker=worker)
    scene.settle()
    assert list(scene.states.values()) == [[3, 1, 2]] * 3
    assert [scene.replicas[id].point for id in "abc"] == [Point(2, 3)] * 3


def test_a_push_that_is_sent_again_is_applied_once_and_acknowledged_again():
    scene = level("a", "b").push("a", 7, view=2).push("a", 7, view=2).settle()
    assert (scene.states["a"], scene.acknowledged) == ([7], [7])
    scene.push("a", 7, view=2).settle()
    assert (scene.states["a"], scene.acknowledged) == ([7], [7, 7])


def test_an_assignment_is_applied_once_between_updates_and_survives_a_takeover():
    def assign(scene: Scene, to: str, number: int, view: int) -> None:
        update = Provenance(Assignment(number, 0), "w", {})
        scene.perform(to, scene.replicas[to].handle("w", Push(0, view, update), -number))

    scene = level("a", "b").push("a", 7, view=2)
    assign(scene, "a", 1, view=2)
    assign(scene, "a", 1, view=2)  # another worker's, or sent again
    scene.push("a", 8, view=2).settle()
    assert list(scene.states.values()) == [[7, -1, 8]] * 2
    scene.lose("a").view(3, "b")
    assign(scene, "b", 1, view=3)
    assert scene.states["b"] == [7, -1, 8]  # acknowledged, not applied
    assert scene.heard[-1][1] == Pushed(0, 3, Assignment(1, 0), 3, None)
    assign(scene, "b", 2, view=3)
    scene.push("b", 8, view=3).push("b", 9, view=3)
    assert scene.states["b"] == [7, -1, 8, -2, 9]  # which batches are in it is still known
    assert scene.replicas["b"].ledger.made == {"w": 3}


def test_a_batch_that_two_workers_computed_is_applied_once_and_acknowledged_to_both():
    scene = level("a", "b").push("a", 7, view=2, worker="w").push("a", 7, view=2, worker="x").settle()
    assert scene.states["b"] == [7]
    assert [worker for worker, _ in scene.heard] == ["w", "x"]


def test_the_staleness_of_an_update_is_what_its_weights_lacked_of_any_one_worker():
    scene = level("a")
    for place, worker in enumerate(("x", "x", "y", "w")):
        scene.push("a", place, view=2, worker=worker, x=9, y=9)
    scene.push("a", 8, view=2, worker="w", x=1)
    assert scene.heard[-1] == ("w", Pushed(0, 2, Batch(0, 8), 5, 1))
    scene.push("a", 9, view=2, worker="w")
    assert scene.heard[-1] == ("w", Pushed(0, 2, Batch(0, 9), 6, 2))


def test_what_is_said_in_an_older_view_is_refused_with_the_reason():
    scene = level("a", "b").push("a", 7, view=1)
    (_, refused), *_ = scene.heard
    assert refused.reason is StoreReason.STALE_VIEW
    assert refused.text == "shard 0 is in view 2 on a; w spoke in view 1"
    assert scene.states["a"] == []


def test_what_is_said_in_a_newer_view_waits_for_it():
    scene = level("a", "b").push("a", 7, view=3).pull("a", view=3)
    assert scene.heard == []
    scene.view(3, "a", "b").settle()
    assert scene.states == {"a": [7], "b": [7]}
    assert scene.acknowledged == [7]


def test_who_is_not_the_primary_says_so():
    (_, refused), *_ = level("a", "b").push("b", 7, view=2).heard
    assert refused.reason is StoreReason.NOT_PRIMARY
    assert "the primary of shard 0 in view 2 is a, not b" in refused.text


def test_a_refusal_is_not_answered():
    scene = level("a", "b")
    assert scene.replicas["a"].handle("b", RequestRefused(0, 9, StoreReason.STALE_VIEW, "")) == []


def test_a_backup_takes_over_at_its_version_and_the_worker_sends_again_what_was_not_acknowledged():
    scene = level("a", "b").push("a", 1, view=2).settle().push("a", 2, view=2).settle("a")
    assert (scene.acknowledged, scene.states["b"]) == ([1], [1, 2])
    scene.lose("a").view(3, "b")
    scene.push("b", 2, view=3).push("b", 3, view=3)
    assert (scene.acknowledged, scene.states["b"]) == ([1, 2, 3], [1, 2, 3])


def test_an_old_primary_that_wakes_up_can_acknowledge_nothing():
    scene = level("a", "b")
    old = scene.replicas.pop("a")
    scene.view(3, "b")
    scene.replicas["a"] = old
    scene.push("a", 7, view=2).settle()
    assert (scene.acknowledged, scene.states) == ([], {"a": [], "b": []})


def test_a_backup_that_got_further_than_the_new_primary_is_overwritten():
    scene = level("a", "b", "c").push("a", 1, view=2).settle().push("a", 2, view=2)
    to_b = next(said for said in scene.on_its_way if said[1] == "b")
    scene.on_its_way = deque([to_b])
    scene.settle("a").lose("a")
    assert scene.states["b"] == [1, 2]
    scene.view(3, "c", "b").push("c", 3, view=3).settle()
    assert scene.states == {"a": [1], "b": [1, 3], "c": [1, 3]}
    scene.push("c", 2, view=3).settle()
    assert (scene.states["b"], scene.acknowledged) == ([1, 3, 2], [1, 3, 2])


def test_the_same_version_of_another_history_is_not_mistaken_for_the_own():
    scene = level("a", "b", "c").push("a", 2, view=2)
    to_b = next(said for said in scene.on_its_way if said[1] == "b")
    scene.on_its_way = deque([to_b])
    scene.settle("a").lose("a").view(3, "c", "b")
    scene.push("c", 3, view=3)  # version 1 here; b has another one
    scene.settle()
    assert scene.states["b"] == scene.states["c"] == [3]


def test_a_new_primary_answers_nobody_before_its_backups_have_all_that_it_has():
    scene = level("a", "b", "c").push("a", 1, view=2)
    to_b = next(said for said in scene.on_its_way if said[1] == "b")
    scene.on_its_way = deque([to_b])
    scene.settle("a").lose("a").view(3, "b", "c")
    scene.push("b", 1, view=3).pull("b", view=3)
    assert scene.heard == [], "if b were lost now, c would know nothing of this update"
    scene.settle()
    assert scene.states["c"] == [1]
    assert [type(message) for _, message in scene.heard] == [Pushed, Pulled]


def test_a_primary_that_stays_one_finishes_what_it_had_ordered_before_it_answers():
    scene = level("a", "b").push("a", 1, view=2)
    scene.on_its_way.clear()
    scene.view(3, "a", "b").pull("a", view=3)
    assert scene.heard == []
    scene.settle()
    assert scene.states == {"a": [1], "b": [1]}
    assert [message.version for _, message in scene.heard] == [1, 1]
    assert Transfer not in {type(said[2]) for said in scene.on_its_way}


def test_a_primary_answers_only_with_all_that_was_ordered_before_even_if_a_newcomer_keeps_it_waiting():
    """Otherwise an update of a worker that is lost by now could be missing in some weights of this view, and come."""
    scene = level("a", "b").push("a", 1, view=2)
    scene.on_its_way.clear()
    scene.replicas["c"], scene.states["c"] = Replica(0, "c"), []
    scene.view(3, "a", "b", newcomers=("c",)).settle("c").settle("a")
    to_a = [said for said in scene.on_its_way if said[0] == "c"]
    scene.on_its_way.remove(to_a[-1])  # it has the state, but its last confirmation is lost
    scene.pull("a", view=3).settle()
    assert (scene.states["b"], scene.heard) == ([1], [])
    scene.perform("c", scene.replicas["c"].reconnected("a"))
    scene.settle()
    assert [message.version for _, message in scene.heard] == [1, 1]


def test_a_primary_that_was_deposed_forgets_what_it_had_ordered():
    scene = level("a", "b").push("a", 1, view=2)
    scene.on_its_way.clear()
    scene.view(3, "b", "a").settle().push("b", 1, view=3).settle()
    scene.view(4, "a", "b").settle().push("a", 2, view=4).settle()
    assert scene.states == {"a": [1, 2], "b": [1, 2]}


def test_a_newcomer_is_brought_up_while_training_goes_on_and_counts_before_it_may_be_promoted():
    scene = level("a", "b")
    scene.replicas["c"], scene.states["c"] = Replica(0, "c"), []
    scene.push("a", 1, view=2).settle()
    scene.view(3, "a", "b", newcomers=("c",)).settle("b")
    scene.silent.add("c")
    scene.push("a", 2, view=3).settle()
    assert scene.acknowledged == [1, 2], "nobody waits for it"
    assert scene.reports[1:] == []
    scene.silent.clear()
    scene.settle("c")
    scene.push("a", 3, view=3).settle("b")
    scene.settle()
    assert scene.reports[1:] == [CaughtUp(0, 3, "c")]
    scene.silent.add("c")
    scene.push("a", 4, view=3).settle()
    assert scene.acknowledged == [1, 2, 3], "from now on everybody does"
    assert scene.states["c"] == [1, 2, 3, 4]


def test_a_newcomer_that_is_far_behind_does_not_count_yet():
    scene = level("a")
    scene.replicas["b"], scene.states["b"] = Replica(0, "b"), []
    scene.view(3, "a", newcomers=("b",)).settle("b")
    for place in range(NEAR + 2):
        scene.push("a", place, view=3)
    assert len(scene.acknowledged) == NEAR + 2
    assert scene.reports == []
    scene.settle()
    assert scene.reports == [CaughtUp(0, 3, "b")]
    assert scene.states["b"] == scene.states["a"]


def test_who_has_been_away_for_a_moment_needs_no_transfer():
    scene = level("a", "b").push("a", 1, view=2).settle()
    scene.view(3, "a", newcomers=("b",))
    assert scene.sent(ReplicaStanding) == [("b", "a")]
    scene.settle("b")
    assert scene.sent(Transfer) == []
    assert scene.reports[1:] == [CaughtUp(0, 3, "b")]


def test_what_was_lost_with_a_connection_comes_again():
    scene = level("a", "b").push("a", 1, view=2).push("a", 2, view=2)
    scene.on_its_way.popleft()
    scene.settle()
    assert scene.states["b"] == [], "behind a gap nothing is applied"
    scene.perform("b", scene.replicas["b"].reconnected("a"))
    scene.settle()
    assert (scene.states["b"], scene.acknowledged) == ([1, 2], [1, 2])
    assert scene.replicas["a"].reconnected("b") == [], "the other one speaks"


def test_a_confirmation_that_was_lost_with_a_connection_is_made_up_for():
    scene = level("a", "b").push("a", 1, view=2).settle("a")
    scene.on_its_way.clear()
    scene.perform("b", scene.replicas["b"].reconnected("a"))
    scene.settle()
    assert (scene.states["b"], scene.acknowledged) == ([1], [1])


def test_a_transfer_that_was_not_asked_for_undoes_nothing():
    scene = level("a", "b").push("a", 1, view=2).settle()
    late = Transfer(0, 2, Point(1, 0), Ledger())
    scene.perform("b", scene.replicas["b"].handle("a", late, []))
    assert scene.states["b"] == [1]


def test_a_replica_that_differs_is_named_and_healed_from_the_primary():
    scene = level("a", "b", check_every=2)
    scene.push("a", 1, view=2).settle()
    scene.states["b"][0] = 66  # a bit has flipped
    scene.push("a", 2, view=2).push("a", 3, view=2).settle()
    (differs,) = [report for report in scene.reports if isinstance(report, Differs)]
    assert (differs.shard, differs.view, differs.server, differs.version) == (0, 2, "b", 2)
    assert scene.states == {"a": [1, 2, 3], "b": [1, 2, 3]}
    assert scene.acknowledged == [1, 2, 3]


def test_one_that_waits_to_be_healed_confirms_nothing_that_the_healing_would_undo():
    scene = level("a", "b", check_every=1)
    scene.states["b"] = [66]
    scene.push("a", 1, view=2).settle("a").settle("b").push("a", 2, view=2).settle("a")
    assert scene.states["b"] == [66, 1]
    assert scene.acknowledged == [1]
    scene.settle()
    assert scene.states == {"a": [1, 2], "b": [1, 2]}
    assert scene.acknowledged == [1, 2]


def test_one_that_waits_to_be_healed_can_still_take_over():
    scene = level("a", "b", check_every=1)
    scene.states["b"] = [66]
    scene.push("a", 1, view=2).settle("a").settle("b").settle("a")
    assert scene.sent(ReplicaStanding) == [("b", "a")]
    scene.lose("a").view(3, "b").push("b", 2, view=3)
    assert scene.states["b"] == [66, 1, 2], "what was acknowledged is in it"


def test_a_shard_without_any_up_to_date_replica_goes_back_to_its_checkpoint():
    scene = level("a").push("a", 1, view=2).push("a", 2, view=2)
    scene.lose("a")
    scene.checkpoint = (1, Ledger(0, Tally(below=0, beyond=frozenset({1})), {"w": 1}), [1])
    scene.replicas["b"], scene.states["b"] = Replica(0, "b"), []
    scene.push("b", 1, view=3).push("b", 2, view=3).view(3, "b", origin=3)
    assert (scene.states["b"], scene.acknowledged) == ([1, 2], [1, 2, 1, 2])
    assert scene.replicas["b"].point == Point(3, 2)


def test_a_state_from_before_the_shard_went_back_is_worth_nothing():
    scene = level("a", "b").push("a", 1, view=2).settle()
    scene.checkpoint = (0, Ledger(), [])
    scene.view(3, "a", newcomers=("b",), origin=3).settle()
    assert scene.states == {"a": [], "b": []}


def test_who_does_not_hold_the_shard_any_more_frees_it():
    scene = level("a", "b").push("a", 1, view=2).settle().view(3, "a")
    assert scene.dropped == ["b"]
    scene.view(4, "a")
    assert scene.dropped == ["b"], "there is nothing left to free"


def test_a_view_that_is_not_newer_is_not_heeded():
    scene = level("a", "b").view(1, "b", "a").view(2, "b", "a").push("a", 1, view=2).settle()
    assert scene.acknowledged == [1]


def test_a_message_for_another_role_is_an_error():
    scene = level("a", "b")
    with pytest.raises(TypeError, match="Pull is not for a backup"):
        scene.replicas["b"].handle("a", Pull(0, 2, 0))
    with pytest.raises(TypeError, match="Order is not for a primary"):
        scene.replicas["a"].handle("b", Order(0, 2, Point(2, 1), Provenance(Batch(0, 0), "w", {})))


def test_the_ledger_forgets_an_epoch_when_the_next_one_begins_and_still_knows_that_it_is_over():
    ledger = Ledger()
    for place in (0, 2, 1):
        ledger = ledger.after(Provenance(Batch(0, place), "w", {}))
    ledger = ledger.after(Provenance(Batch(1, 5), "x", {}))
    assert ledger == Ledger(1, Tally(0, frozenset({5})), {"w": 3, "x": 1})
    assert ledger.has(Batch(0, 1))
    assert ledger.has(Batch(1, 5))
    assert not ledger.has(Batch(1, 0))
    assert not ledger.has(Batch(2, 5))


def test_weights_that_a_worker_supplies_after_another_are_not_heeded():
    scene = Scene("a").view(1, "a").push("a", 0).settle()
    assert scene.replicas["a"].handle("w", Supply(0, 1, 0), "older weights") == []
    assert scene.states["a"] == [0]

"""The director: where every shard is, and who computes what next. Whoever takes over goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.cluster.coordinator_service import SayToUser, SendMessage, ServiceLog, Wish
from shoal.errors import BadFrame
from shoal.store.decisions.director import Director
from shoal.store.decisions.director_messages import (
    FROM_DIRECTOR,
    TO_DIRECTOR,
    AtRest,
    CheckpointKept,
    Close,
    EpochOver,
    Finish,
    GoOn,
    Grant,
    Halt,
    Left,
    Next,
    Open,
    Pause,
    Serve,
    ShardsPlaced,
    TrainingClosed,
    WantWork,
)
from shoal.store.values.messages import CaughtUp, Differs
from shoal.store.values.operations import Batch
from shoal.wire.messages import Message

LEASE = 10.0
OPEN = Open(0, sizes=(10, 20), epoch=0, batches=4, bound=None, replicas=2, ahead=1, facts=b"seed")


class Scene:
    """A director, who is there, and what everybody was told."""

    def __init__(self, workers: int = 2, servers: int = 2) -> None:
        self.director = Director(LEASE)
        self.log = ServiceLog(self.director.record())
        self.workers = [f"worker-{number}" for number in range(workers)]
        self.servers = {f"server-{number}": f"unix:{number}" for number in range(servers)}
        self.now = 0.0
        self.user: list[str] = []
        self.take()

    def take(self, expected: int | None = None) -> dict[str, list[Message]]:
        many = len(self.servers) if expected is None else expected
        return self._told(self.director.take(self.workers, self.servers, many, self.now))

    def says(self, who: str, *messages: Message) -> dict[str, list[Message]]:
        wishes: list[Wish] = []
        for message in messages:
            wishes += self.director.hear(who, TO_DIRECTOR.encode(message), self.now)
        return self._told(wishes)

    def tick(self, seconds: float) -> dict[str, list[Message]]:
        self.now += seconds
        return self._told(self.director.tick(self.now))

    def lose(self, id: str) -> dict[str, list[Message]]:
        if id in self.servers:
            del self.servers[id]
        else:
            self.workers.remove(id)
        return self.take()

    def open(self, **changed: Any) -> dict[str, list[Message]]:
        """The training begins, with all servers that are there."""
        for server in self.servers:
            self.says(server, Serve(0))
        return self.says("worker-0", msgspec.structs.replace(OPEN, **changed))

    def finish(self, who: str, place: int, number: int, epoch: int = 0, view: int = 1) -> dict[str, list[Message]]:
        return self.says(who, Finish(0, Batch(epoch, place), number, view, 0))

    def take_over(self) -> Director:
        """The coordinator dies; another knows what this one would have written down, entry after entry."""
        self.log = ServiceLog(self.log.record, (*self.log.changes, *self.director.changes()))
        self.director = Director(LEASE, self.log)
        self.take()
        return self.director

    @property
    def placement(self) -> Any:
        training = self.director._state.training
        assert training is not None
        return training.placement

    def _told(self, wishes: list[Wish]) -> dict[str, list[Message]]:
        told: dict[str, list[Message]] = {}
        for wish in wishes:
            match wish:
                case SendMessage(to, content):
                    for id in to:
                        told.setdefault(id, []).append(FROM_DIRECTOR.decode(content))
                case SayToUser(text):
                    self.user.append(text)
        return told


def grants(told: dict[str, list[Message]]) -> list[tuple[str, int, int]]:
    """Who was granted which place, as which of its turns."""
    return [
        (id, message.batch.place, message.turn)
        for id, messages in told.items()
        for message in messages
        if isinstance(message, Grant)
    ]


@pytest.fixture
def scene() -> Scene:
    return Scene()


# The beginning and the end ------------------------------------------------------------------------------


def test_nothing_is_placed_before_all_servers_that_were_started_serve(scene):
    scene.take(expected=3)
    assert scene.says("server-0", Serve(0)) == {}
    assert scene.says("worker-0", OPEN) == {}
    assert scene.says("server-1", Serve(0)) == {}, "the third is still to come"
    scene.servers["server-2"] = "unix:2"
    assert scene.take(expected=3) == {}, "its script has not come to the training"
    told = scene.says("server-2", Serve(0))
    assert set(told) == {"worker-0", "worker-1", "server-0", "server-1", "server-2"}
    for [placed] in told.values():
        assert placed == ShardsPlaced(0, scene.placement, ("worker-0", "worker-1"), scene.servers, b"seed")
    assert scene.placement.servers == ("server-0", "server-1", "server-2")


def test_a_server_that_dies_before_it_serves_is_not_waited_for(scene):
    scene.says("worker-0", OPEN)
    scene.says("server-0", Serve(0))
    assert set(scene.lose("server-1")) == {"worker-0", "worker-1", "server-0"}
    assert scene.placement.servers == ("server-0",)
    assert scene.placement.replicas == 2, "another one may come"


def test_whoever_opens_first_opens(scene):
    scene.open()
    assert scene.says("worker-1", msgspec.structs.replace(OPEN, batches=99)) == {}
    assert scene.director._state.training.book.batches == 4


def test_a_training_that_is_closed_stays_closed(scene):
    scene.open()
    assert scene.says("worker-0", Close(0)) == {"server-0": [TrainingClosed(0)], "server-1": [TrainingClosed(0)]}
    assert scene.says("worker-1", Close(0)) == scene.says("worker-1", OPEN) == {}
    assert scene.says("server-1", Serve(0)) == {"server-1": [TrainingClosed(0)]}, (
        "it has not heard it, or came too late"
    )
    assert scene.says("worker-0", WantWork(0, 0)) == {}


def test_views_of_the_next_training_have_higher_numbers(scene):
    scene.open()
    scene.lose("worker-1")
    assert scene.placement.number == 2
    scene.says("worker-0", Close(0), msgspec.structs.replace(OPEN, call=1))
    scene.says("server-0", Serve(1))
    scene.says("server-1", Serve(1))
    assert scene.placement.number == 3


def test_the_end_tells_how_stale_updates_were(scene):
    scene.open()
    scene.says("worker-0", WantWork(0, 0), Finish(0, Batch(0, 0), 0, 1, 0), Close(0))
    assert scene.user == ["1 updates with a staleness of 0.0 on average, 0 at most (bound: none)"]


def test_what_is_no_message_is_refused(scene):
    with pytest.raises(BadFrame):
        scene.director.hear("worker-0", b"\xc1", 0.0)


# Grants -------------------------------------------------------------------------------------------------


def test_who_wants_an_update_is_granted_the_next_batch(scene):
    scene.open()
    assert scene.says("worker-0", WantWork(0, 0)) == {"worker-0": [Grant(0, 0, Batch(0, 0), 0, 1)]}
    assert scene.says("worker-1", WantWork(0, 0)) == {"worker-1": [Grant(0, 0, Batch(0, 1), 0, 1)]}
    scene.finish("worker-0", place=0, number=0)
    assert scene.says("worker-0", WantWork(0, 1)) == {"worker-0": [Grant(0, 1, Batch(0, 2), 1, 1)]}


def test_who_asks_twice_is_granted_the_same_again(scene):
    scene.open(ahead=2)
    first = scene.says("worker-0", WantWork(0, 0))
    assert scene.says("worker-0", WantWork(0, 0)) == first
    scene.finish("worker-0", place=0, number=0)
    assert scene.says("worker-0", WantWork(0, 0)) == {}, "that one is finished"
    assert grants(scene.says("worker-0", WantWork(0, 1))) == [("worker-0", 1, 1)]


def test_who_wants_two_is_granted_two_when_there_are_some_again(scene):
    """At the end of an epoch all workers have asked for all that they may be at, and there is nothing."""
    scene.open(batches=2, ahead=2)
    assert grants(scene.says("worker-0", WantWork(0, 0), WantWork(0, 1))) == [("worker-0", 0, 0), ("worker-0", 1, 1)]
    scene.finish("worker-0", place=0, number=0)
    scene.says("worker-0", WantWork(0, 2))
    scene.finish("worker-0", place=1, number=1)
    scene.says("worker-0", WantWork(0, 3))
    assert grants(scene.says("worker-0", Next(0, 1, 2))) == [("worker-0", 0, 2), ("worker-0", 1, 3)]


def test_nothing_is_granted_beyond_the_bound(scene):
    scene.open(bound=1, batches=9)
    scene.says("worker-0", WantWork(0, 0))
    scene.says("worker-1", WantWork(0, 0))
    scene.finish("worker-1", place=1, number=0)
    assert scene.says("worker-1", WantWork(0, 1)) == {}, "worker-0 has none of its updates"
    assert grants(scene.finish("worker-0", place=0, number=0)) == [("worker-1", 2, 1)]


def test_a_lease_that_ends_is_given_to_somebody_else(scene):
    scene.open(batches=1)
    scene.says("worker-0", WantWork(0, 0))
    scene.says("worker-1", WantWork(0, 0))
    assert scene.tick(LEASE / 2) == {}
    assert grants(scene.tick(LEASE / 2)) == [("worker-1", 0, 0)]


def test_a_lost_workers_batch_is_given_to_somebody_else_in_a_new_view(scene):
    scene.open(batches=1, bound=1)
    scene.says("worker-0", WantWork(0, 0))
    scene.says("worker-1", WantWork(0, 0))
    told = scene.lose("worker-0")
    [placed, grant] = told["worker-1"]
    assert placed.placement.number == grant.view == 2
    assert told["worker-0"] == [placed], "it hears that it is outside, if it can"


def test_a_worker_that_comes_late_is_told_where_things_are(scene):
    scene.open()
    scene.workers.append("worker-2")
    told = scene.take()
    assert told["worker-2"] == [ShardsPlaced(0, scene.placement, tuple(scene.workers), scene.servers, b"seed")]
    assert scene.placement.number == 1, "nothing moves for it"
    assert grants(scene.says("worker-2", WantWork(0, 0))) == [("worker-2", 0, 0)]


def test_strangers_get_nothing(scene):
    scene.open()
    assert scene.says("worker-7", WantWork(0, 0)) == {}
    assert scene.says("worker-0", WantWork(1, 0)) == {}, "another training's"


# Epochs -------------------------------------------------------------------------------------------------


def test_an_epoch_is_over_when_every_batch_counts(scene):
    scene.open(batches=2)
    scene.says("worker-0", WantWork(0, 0))
    scene.says("worker-1", WantWork(0, 0))
    assert scene.finish("worker-0", place=0, number=0) == {}
    over = EpochOver(0, 0)
    assert scene.finish("worker-1", place=1, number=0) == {"worker-0": [over], "worker-1": [over]}
    assert scene.says("worker-0", WantWork(0, 1)) == {"worker-0": [over]}, "nothing of the next before all have met"
    assert grants(scene.says("worker-0", Next(0, 1, 2))) == [("worker-0", 0, 1)]
    assert scene.says("worker-1", Next(0, 1, 2)) == {}, "all say it; the first counts"


def test_a_finish_in_a_view_before_a_shard_went_back_does_not_count(scene):
    scene.open(batches=1, replicas=1)
    scene.says("worker-0", WantWork(0, 0))
    scene.lose("server-1")
    assert scene.finish("worker-0", place=0, number=0, view=1) == {}
    assert grants(scene.says("worker-0", WantWork(0, 1))) == [("worker-0", 0, 1)]
    assert scene.finish("worker-0", place=0, number=1, view=2)["worker-0"] == [EpochOver(0, 0)]
    assert any("server-1" in text for text in scene.user)


def test_a_halted_epoch_ends_with_what_is_leased(scene):
    scene.open(batches=100)
    scene.says("worker-0", WantWork(0, 0))
    scene.says("worker-1", WantWork(0, 0))
    assert scene.says("worker-0", Halt(0, 0)) == {}
    assert scene.says("worker-0", WantWork(0, 1)) == {}
    assert scene.finish("worker-0", place=0, number=0) == {}
    assert scene.finish("worker-1", place=1, number=0)["worker-0"] == [EpochOver(0, 0)]
    assert grants(scene.says("worker-1", Next(0, 1, 100))) == [("worker-0", 0, 1)]
    assert scene.says("worker-0", Halt(0, 0)) == {}, "that epoch is over"
    assert grants(scene.says("worker-1", WantWork(0, 1))) == [("worker-1", 1, 1)]


def test_a_halted_epoch_ends_with_its_last_workers_loss(scene):
    scene.open(batches=100)
    scene.says("worker-0", WantWork(0, 0))
    scene.says("worker-1", Halt(0, 0))
    assert scene.lose("worker-0")["worker-1"][-1] == EpochOver(0, 0)


def test_a_halted_epoch_ends_with_the_last_update_of_it_however_long_that_takes(scene):
    scene.open(batches=100)
    scene.says("worker-0", WantWork(0, 0))
    scene.says("worker-1", Halt(0, 0))
    assert scene.tick(LEASE) == {}
    over = scene.finish("worker-0", place=0, number=0)
    assert over == {"worker-0": [EpochOver(0, 0)], "worker-1": [EpochOver(0, 0)]}


def test_workers_are_welcome_in_the_middle_of_an_epoch(scene):
    assert not scene.director.welcomes(0), "nothing is open"
    scene.says("worker-0", msgspec.structs.replace(OPEN, batches=1))
    assert not scene.director.welcomes(0), "nothing is placed"
    scene.says("server-0", Serve(0))
    scene.says("server-1", Serve(0))
    assert scene.director.welcomes(0)
    assert not scene.director.welcomes(1)
    scene.says("worker-0", WantWork(0, 0))
    scene.finish("worker-0", place=0, number=0)
    assert not scene.director.welcomes(0), "the others meet"
    scene.says("worker-0", Next(0, 1, 1))
    assert scene.director.welcomes(0)
    scene.says("worker-0", Close(0))
    assert not scene.director.welcomes(0)


def test_nobody_is_welcome_where_all_move_together(scene):
    scene.open(bound=0)
    assert not scene.director.welcomes(0)


# Servers ------------------------------------------------------------------------------------------------


def test_a_late_server_is_brought_up_to_date(scene):
    scene.open()
    scene.lose("server-1")
    scene.servers["server-2"] = "unix:2"
    assert scene.take() == {}, "its script has not come to the training"
    assert {message.placement.number for [message] in scene.says("server-2", Serve(0)).values()} == {3}
    assert all(view.newcomers == ("server-2",) for view in scene.placement.views)
    for view in scene.placement.views:
        scene.says(view.primary, CaughtUp(view.shard, view.number, "server-2"))
    assert all({view.primary, *view.backups} == {"server-0", "server-2"} for view in scene.placement.views)
    assert scene.user[-1] == "every shard has 2 copies again"


def test_a_server_that_serves_another_training_gets_nothing_of_this(scene):
    scene.open()
    scene.servers["server-2"] = "unix:2"
    scene.take()
    assert scene.says("server-2", Serve(1)) == {}
    assert scene.placement.servers == ("server-0", "server-1")


def test_what_a_server_says_of_an_older_training_is_not_heeded(scene):
    """It may be told again, to a coordinator that took over; and there may be fewer shards by now."""
    scene.open(sizes=(10, 20, 30))
    scene.says("worker-0", Close(0), msgspec.structs.replace(OPEN, call=1, sizes=(10,)))
    scene.says("server-0", Serve(1))
    scene.says("server-1", Serve(1))
    before = scene.placement
    assert scene.says("server-0", CaughtUp(2, 1, "server-1")) == {}
    assert scene.placement == before


def test_a_copy_that_differs_is_named(scene):
    scene.open()
    assert scene.says("server-0", Differs(1, 1, "server-1", 7, (1, 2))) == {}
    assert scene.user == ["the copy of shard 1 on server-1 differed from server-0's at version 7; it is sent anew"]


# Tables: their rows stay when a training is over -----------------------------------------------------------

TABLES = {"sizes": (10, 20, 30), "tables": (1, 2)}


def opened_again(scene: Scene, call: int, after: int | None, **changed: Any) -> None:
    """The next training, with all servers that are there. It may go on with all shards of one before."""
    for server in scene.servers:
        scene.says(server, Serve(call))
    goes_on = tuple(Left(shard, after, shard) for shard in range(3)) if after is not None else ()
    about = {"goes_on": goes_on, **TABLES, **changed}
    scene.says("worker-0", msgspec.structs.replace(OPEN, call=call, **about))


def caught_up(scene: Scene) -> None:
    for view in scene.placement.views:
        for newcomer in view.newcomers:
            scene.says(view.primary, CaughtUp(view.shard, scene.placement.number, newcomer))


def kept(scene: Scene, number: int) -> list[bool]:
    """Of each shard: whether it goes on from a training before the view of this number."""
    return [view.origin < number for view in scene.placement.views]


def test_the_next_training_of_a_model_goes_on_with_the_rows_of_its_tables(scene):
    scene.open(**TABLES)
    caught_up(scene)
    before = scene.placement
    scene.says("worker-0", Close(0))
    opened_again(scene, 1, after=0)
    assert kept(scene, scene.placement.number) == [False, True, True], "dense weights come from the workers"
    for old, new in list(zip(before.views, scene.placement.views, strict=True))[1:]:
        assert (old.primary, old.backups) == (new.primary, new.backups)
    assert scene.placement.views[0].newcomers, "its backup must get what the workers have"


def test_a_training_that_was_left_with_an_error_is_over_and_the_next_one_goes_on_from_it() -> None:
    scene = Scene()
    scene.open()
    assert scene._told(scene.director.abandon(7, 1.0)) == {}  # an evaluation, meanwhile
    told = scene._told(scene.director.abandon(0, 1.0))
    assert told == {server: [TrainingClosed(0)] for server in scene.servers}
    assert scene._told(scene.director.abandon(0, 2.0)) == {}
    for server in scene.servers:
        scene.says(server, Serve(1))
    goes_on = tuple(Left(shard, 0, shard) for shard in range(2))
    scene.says("worker-0", msgspec.structs.replace(OPEN, call=1, goes_on=goes_on))
    assert not scene.user  # nothing was lost


def test_models_that_are_trained_by_turns_keep_their_rows(scene):
    scene.open(**TABLES)
    caught_up(scene)
    scene.says("worker-0", Close(0))
    opened_again(scene, 1, after=None, remembers=(0,))
    assert kept(scene, scene.placement.number) == [False] * 3, "another model"
    caught_up(scene)
    scene.says("worker-0", Close(1))
    for call, after in ((2, 0), (3, 1)):
        opened_again(scene, call, after=after, remembers=(0, 1))
        assert kept(scene, scene.placement.number) == [False, True, True]
        scene.says("worker-0", Close(call))


def test_rows_of_a_server_that_dies_between_two_trainings_are_its_backups(scene):
    scene.open(**TABLES)
    caught_up(scene)
    scene.says("worker-0", Close(0))
    scene.lose("server-0")
    scene.take_over()
    opened_again(scene, 1, after=0)
    assert kept(scene, scene.placement.number) == [False, True, True]
    assert {view.primary for view in scene.placement.views} == {"server-1"}
    assert not any("begin anew" in text for text in scene.user)


def test_rows_that_no_server_has_any_more_begin_anew_and_it_says_so(scene):
    scene.open(**TABLES)
    scene.says("worker-0", Close(0))
    scene.servers = {"server-7": "unix:7"}
    scene.take()
    opened_again(scene, 1, after=0)
    assert kept(scene, scene.placement.number) == [False] * 3
    assert [text.split(":")[0] for text in scene.user if "begin anew" in text] == [
        f"shard {shard} was lost with {server}" for shard, server in ((1, "server-1"), (2, "server-0"))
    ]
    assert [text.split(", ")[1] for text in scene.user if "newest weights" in text] == ["without its optimizer's state"]


def test_rows_that_no_server_has_any_more_are_those_of_a_checkpoint_if_there_is_one(scene):
    scene.open(**TABLES, replicas=1)
    scene.says("worker-0", CheckpointKept(0, 7))
    scene.lose("server-0")
    assert [text.split(": ")[1] for text in scene.user if "table" in text] == [
        "its rows of a table are those of step 7, from disk. With --replicas 2 nothing would have been lost"
    ]


def test_a_table_goes_on_in_another_model_with_other_shards(scene):
    scene.open(**TABLES)
    caught_up(scene)
    before = scene.placement.views[2]
    scene.says("worker-0", Close(0))
    opened_again(scene, 1, after=None, sizes=(5, 30), tables=(1,), goes_on=(Left(1, 0, 2),))
    after = scene.placement.views[1]
    assert (after.shard, after.primary, after.backups) == (1, before.primary, before.backups)
    assert kept(scene, scene.placement.number) == [False, True]


@pytest.mark.parametrize("servers", [2, 3, 4, 5])
def test_the_next_training_begins_where_the_optimizers_states_are(servers):
    """Also when servers were lost and others came: nobody begins with a shard that another has."""
    for lost in range(servers):
        scene = Scene(servers=servers)
        sizes = (10,) * 2 * servers
        scene.open(sizes=sizes)
        caught_up(scene)
        scene.lose(f"server-{lost}")
        caught_up(scene)
        scene.servers[f"server-{servers}"] = "unix:new"
        scene.take()
        scene.says(f"server-{servers}", Serve(0))
        caught_up(scene)
        before = scene.placement
        scene.says("worker-0", Close(0))
        goes_on = tuple(Left(shard, 0, shard) for shard in range(len(sizes)))
        opened_again(scene, 1, after=None, sizes=sizes, tables=(), goes_on=goes_on)
        for old, new in zip(before.views, scene.placement.views, strict=True):
            assert new.primary in (old.primary, *old.backups)
            assert (new.origin, new.backups) == (scene.placement.number, ())
        assert scene.user[-1] == "every shard has 2 copies again", "nothing was lost"


def test_a_training_that_nobody_remembers_is_forgotten(scene):
    """A script may train model after model."""
    scene.open(**TABLES)
    for call in range(1, 9):
        scene.says("worker-0", Close(call - 1))
        opened_again(scene, call, after=None, remembers=(5, call - 1))
    assert list(scene.director._state.left) == [5, 7]


def test_a_training_that_was_over_before_all_servers_came_has_moved_nothing(scene):
    scene.open(**TABLES)
    caught_up(scene)
    before = scene.placement.views
    scene.says("worker-0", Close(0))
    shards = tuple(Left(shard, 0, shard) for shard in range(3))
    scene.says("worker-0", msgspec.structs.replace(OPEN, call=1, goes_on=shards, **TABLES), Close(1))
    opened_again(scene, 2, after=1)
    assert scene.user == []
    assert [view.primary for view in scene.placement.views] == [view.primary for view in before]
    assert kept(scene, scene.placement.number) == [False, True, True]


def test_a_training_whose_chief_died_before_it_could_close_it_is_closed_by_the_next(scene):
    scene.open(**TABLES)
    caught_up(scene)
    before = scene.placement.views
    for server in scene.servers:
        scene.says(server, Serve(0))  # still there
    shards = tuple(Left(shard, 0, shard) for shard in range(3))
    told = scene.says("worker-1", msgspec.structs.replace(OPEN, call=1, goes_on=shards, **TABLES))
    assert all(told[server] == [TrainingClosed(0)] for server in scene.servers)
    for server in scene.servers:
        scene.says(server, Serve(1))
    assert [view.primary for view in scene.placement.views] == [view.primary for view in before]
    assert kept(scene, scene.placement.number) == [False, True, True]
    assert scene.says("worker-0", Close(0)) == {}, "it comes late"


def test_a_loss_at_the_beginning_of_a_training_costs_no_optimizers_state():
    """Backups have what the training before has left, also while they wait for the weights."""
    scene = Scene(servers=3)
    sizes = (10,) * 6
    scene.open(sizes=sizes)
    caught_up(scene)
    before = scene.placement
    scene.says("worker-0", Close(0))
    goes_on = tuple(Left(shard, 0, shard) for shard in range(len(sizes)))
    opened_again(scene, 1, after=None, sizes=sizes, tables=(), goes_on=goes_on)
    scene.lose("server-1")
    for old, new in zip(before.views, scene.placement.views, strict=True):
        assert new.primary in (old.primary, *old.backups)
    assert not any("--replicas 2" in text for text in scene.user), "they had been given"


def test_what_was_never_placed_is_not_lost(scene):
    scene.says("worker-0", msgspec.structs.replace(OPEN, **TABLES), Close(0))
    opened_again(scene, 1, after=0)
    assert scene.user == []


def test_a_shard_of_a_training_that_is_not_known_counts_as_lost(scene):
    scene.open(**TABLES)
    scene.says("worker-0", Close(0))
    opened_again(scene, 1, after=None, goes_on=(Left(1, 77, 1), Left(2, 0, 99), Left(1000, 0, 1), Left(-1, 0, 1)))
    assert kept(scene, scene.placement.number) == [False] * 3
    (text,) = scene.user
    assert text.startswith("shard 1 was lost with the last server: its rows of a table begin anew")


# One that takes over ------------------------------------------------------------------------------------


def test_one_that_takes_over_knows_everything(scene):
    scene.open(ahead=2, bound=2)
    scene.says("worker-0", WantWork(0, 0), WantWork(0, 1))
    scene.says("worker-1", WantWork(0, 0))
    scene.finish("worker-0", place=0, number=0)
    before = scene.director
    assert scene.take_over().record() == before.record()


def test_what_is_written_down_for_a_grant_does_not_grow_with_the_grants():
    scene = Scene(workers=2)
    scene.open(batches=100_000)
    for worker in scene.workers:
        scene.says(worker, WantWork(0, 0))
    scene.director.changes()
    first: list[int] = []
    for turn in range(1, 10_001):
        for place, worker in enumerate(scene.workers, start=2 * (turn - 1)):
            scene.finish(worker, place, number=turn - 1)
            assert grants(scene.says(worker, WantWork(0, turn))) == [(worker, place + 2, turn)]
            changes = scene.director.changes()
            assert len(changes) == 2, "a Finish and a Want"
            first = first or [len(change) for change in changes]
            assert sum(map(len, changes)) <= sum(first) + 12, "numbers get a few more bytes"


def test_one_that_takes_over_at_any_entry_knows_what_the_one_before_knew_then(scene):
    known = [(ServiceLog(scene.director.record()), scene.director.record())]
    scene.director.changes()

    def note() -> None:
        (base, _), changes = known[0], (*known[-1][0].changes, *scene.director.changes())
        known.append((ServiceLog(base.record, changes), scene.director.record()))

    scene.open(ahead=2, bound=2)
    note()
    for step in (
        lambda: scene.says("worker-0", WantWork(0, 0), WantWork(0, 1)),
        lambda: scene.says("worker-1", WantWork(0, 0), Pause(0, 0)),
        lambda: scene.finish("worker-0", place=0, number=0),
        lambda: scene.tick(LEASE + 1.0),
        lambda: scene.lose("server-1"),
        lambda: scene.says("worker-1", GoOn(0, 0)),
        lambda: scene.lose("worker-1"),
        lambda: scene.says("worker-0", Halt(0, 0)),
        lambda: scene.director.abandon(0, scene.now),
    ):
        step()
        note()
    for log, record in known:
        assert Director(LEASE, log).record() == record
    assert len(known[-1][0].changes) >= 12


def test_what_it_hears_again_changes_nothing(scene):
    said = {
        "server-0": [Serve(0)],
        "server-1": [Serve(0), CaughtUp(1, 1, "server-0")],
        "worker-0": [OPEN, WantWork(0, 0), Finish(0, Batch(0, 0), 0, 1, 0), WantWork(0, 1)],
        "worker-1": [OPEN, WantWork(0, 0)],
    }
    for who, messages in said.items():
        scene.says(who, *messages)
    before = scene.director.record()
    scene.take_over()
    for who, messages in said.items():
        told = scene.says(who, *messages)
        assert set(told) == {who}, "nobody else is bothered"
    assert scene.director.record() == before


def test_who_speaks_to_it_first_hears_where_the_shards_are(scene):
    """The one before may have died before, or in the middle of telling."""
    scene.open()
    for server in scene.servers:
        scene.says(server, Serve(0))
    scene.lose("worker-1")
    scene.take_over()
    placed = ShardsPlaced(0, scene.placement, ("worker-0",), scene.servers, b"seed")
    assert scene.says("server-0", Serve(0)) == {"server-0": [placed]}
    assert scene.says("server-0", Serve(0)) == {}, "once"
    assert scene.says("worker-0", OPEN) == {"worker-0": [placed]}
    assert scene.says("worker-1", OPEN) == {"worker-1": [placed]}, "that it is outside"


def test_a_worker_that_has_heard_nothing_yet_hears_where_the_shards_are_before_anything_else(scene):
    """It was let in, and the one before died. It has nothing to say until it knows."""
    scene.open(batches=1)
    scene.says("worker-0", WantWork(0, 0))
    scene.workers.append("worker-2")
    scene.take()
    scene.take_over()
    assert set(scene.finish("worker-0", place=0, number=0)) == {"worker-0"}
    told = scene.tick(0.1)["worker-2"]
    assert told == [ShardsPlaced(0, scene.placement, tuple(scene.workers), scene.servers, b"seed")]
    assert scene.says("worker-2", WantWork(0, 0))["worker-2"][-1] == EpochOver(0, 0)
    assert all("worker-2" not in scene.tick(1.0) for _ in range(10))


def test_who_stays_silent_is_told_less_and_less_often(scene):
    """In synchronous training a worker that came late says nothing, ever."""
    scene.open(bound=0)
    scene.take_over()
    reminders = [bool(scene.tick(0.1)) for _ in range(1000)]
    assert reminders[0]
    assert sum(reminders) < 12


def test_a_grant_that_nobody_heard_is_told_again(scene):
    scene.open(bound=1)
    granted = scene.says("worker-0", WantWork(0, 0))["worker-0"]
    scene.take_over()
    told = scene.says("worker-0", OPEN, WantWork(0, 0))["worker-0"]
    assert told[-1:] == granted
    assert scene.says("worker-0", WantWork(0, 0)) == {"worker-0": granted}


def test_the_end_of_an_epoch_that_nobody_heard_is_told_again(scene):
    scene.open(batches=1)
    scene.says("worker-0", WantWork(0, 0))
    scene.finish("worker-0", place=0, number=0)
    scene.take_over()
    assert scene.says("worker-1", WantWork(0, 0))["worker-1"][-1] == EpochOver(0, 0)


def test_a_server_that_missed_the_end_hears_of_it_whatever_it_says(scene):
    """Only its last words are said again: Serve may not be one of them."""
    scene.open()
    scene.says("worker-0", Close(0))
    scene.take_over()
    assert scene.says("server-0", CaughtUp(0, 1, "server-1")) == {"server-0": [TrainingClosed(0)]}
    assert scene.says("server-0", CaughtUp(1, 1, "server-1")) == {}


def test_views_go_on_being_numbered(scene):
    scene.open()
    scene.lose("worker-1")
    scene.take_over()
    scene.lose("server-0")
    assert scene.placement.number == 3


# Pauses and checkpoints ---------------------------------------------------------------------------------


def test_in_a_pause_everything_comes_to_rest_and_then_it_goes_on(scene):
    scene.open()
    assert grants(scene.says("worker-0", WantWork(0, 0))) == [("worker-0", 0, 0)]
    assert grants(scene.says("worker-1", WantWork(0, 0))) == [("worker-1", 1, 0)]
    assert scene.says("worker-0", Pause(0, 0)) == {}
    scene.finish("worker-1", 1, 0)
    assert scene.says("worker-1", WantWork(0, 1)) == {}, "nothing new is dealt"
    assert scene.finish("worker-0", 0, 0)["worker-0"] == [AtRest(0, 0, epoch=0, counted=2)]
    assert scene.says("worker-0", WantWork(0, 1)) == {}
    assert sorted(grants(scene.says("worker-0", GoOn(0, 0)))) == [("worker-0", 3, 1), ("worker-1", 2, 1)]
    assert scene.says("worker-0", Pause(0, 0)) == {}
    assert grants(scene.finish("worker-1", 2, 1)) == []
    assert scene.finish("worker-0", 3, 1)["worker-0"] == [EpochOver(0, 0)], "an old pause, said twice, is over"


def test_the_pause_of_one_who_is_lost_is_over(scene):
    scene.open()
    scene.says("worker-0", WantWork(0, 0), Pause(0, 0))
    scene.says("worker-1", WantWork(0, 0))
    told = scene.lose("worker-0")
    assert grants(told) == [("worker-1", 0, 0)]


def test_who_takes_over_tells_again_that_all_rests(scene):
    scene.open()
    told = scene.says("worker-1", Pause(0, 0))
    assert told["worker-1"] == [AtRest(0, 0, epoch=0, counted=0)]
    scene.take_over()
    assert AtRest(0, 0, epoch=0, counted=0) in scene.says("worker-1", WantWork(0, 0))["worker-1"]
    assert scene.says("worker-1", Pause(0, 0)) == {}
    assert grants(scene.says("worker-1", GoOn(0, 0))) == [("worker-1", 0, 0)]


def test_a_training_may_begin_in_the_middle_of_an_epoch(scene):
    scene.open(epoch=2, done=3)
    assert scene.says("worker-0", WantWork(0, 0))["worker-0"][-1].batch == Batch(2, 3)
    assert scene.finish("worker-0", 3, 0, epoch=2)["worker-1"] == [EpochOver(0, 2)]


def test_what_a_lost_shard_goes_on_with_is_said(scene):
    scene = Scene(servers=1)
    scene.open(replicas=1)
    scene.says("worker-0", CheckpointKept(0, 400), CheckpointKept(0, 300))
    del scene.servers["server-0"]
    scene.servers["server-1"] = "unix:1"
    scene.take()
    scene.says("server-1", Serve(0))
    assert any("with its optimizer's state of step 400, from disk" in text for text in scene.user)


def test_a_training_that_was_over_before_it_began_is_closed_for_the_servers(scene):
    scene.says("server-0", Serve(0))
    assert scene.says("worker-0", Close(0)) == {"server-0": [TrainingClosed(0)], "server-1": [TrainingClosed(0)]}
    assert scene.says("server-1", Serve(0)) == {"server-1": [TrainingClosed(0)]}
    assert scene.says("worker-1", Close(0)) == {}

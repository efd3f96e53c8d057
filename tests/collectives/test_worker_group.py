"""What workers do together they end together, whoever is lost or comes meanwhile."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal.clock import Deadline
from shoal.cluster.announcements import Announcements
from shoal.collectives import arrays as packed
from shoal.collectives import messenger
from shoal.collectives.group import AbstractGroup, Alone, PeerGroup, Result, WorkerGroup
from shoal.collectives.layout import VectorLayout
from shoal.collectives.messages import Bulk
from shoal.collectives.tree import Node, cover
from shoal.config import Deadlines
from shoal.errors import PeerClosed, PeerTimeout, RunEnded, ViewChanged

from .crew import DEAD, PATIENT, Crew, Dies, Mate, dying, gathering
from .harness import evenly
from .test_group import node_sum

each_transport = pytest.mark.parametrize("transport", ["shm", "tcp"])
THREE = [b"worker-0", b"worker-1", b"worker-2"]


@pytest.fixture
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Crew]]:
    with contextlib.ExitStack() as stack:

        def crew(workers: int, **settings: Any) -> Crew:
            made = Crew(tmp_path_factory.mktemp("c"), workers, **settings)
            stack.callback(made.close)
            return made

        yield crew


def values_of(results: dict[int, Any]) -> dict[int, Any]:
    return {number: end.values if isinstance(end, Result) else end for number, end in results.items()}


class Keeper:
    """What a worker knows: an array and a word. `taken` counts how often it was told it by another."""

    def __init__(self, word: bytes = b"", numbers: Any = None) -> None:
        self.word = word
        self.numbers = np.zeros(0) if numbers is None else numbers
        self.taken = 0

    def give(self) -> Result:
        return Result([self.word], [self.numbers])

    def take(self, given: Result) -> None:
        (self.word,), (self.numbers,) = given
        self.taken += 1


# A run without losses -------------------------------------------------------------------------------------


@each_transport
def test_who_waits_for_the_chief_ends_what_the_next_chief_was_torn_out_of(crew: Callable[..., Crew], transport: str):
    """A worker has committed an act and waits for the chief to save. The next chief has not, and needs this worker."""

    def dies(mate: Mate) -> None:
        mate.gather("first")
        mate.worker_group.commit(dying)

    def is_torn(mate: Mate) -> list[bytes]:
        mate.gather("first")
        last = mate.gather("second").values  # which nobody else comes to
        chiefs = Announcements(mate.coordinator_link, PATIENT, mate.worker_group.attend_newest)
        assert chiefs.wait("save", "model") is None
        chiefs.announce("save", "model")
        return last

    def has_it(mate: Mate) -> list[bytes]:
        mate.gather("first")
        last = mate.worker_group.commit(lambda group: Result([b"the result"], [])).values
        assert (
            Announcements(mate.coordinator_link, PATIENT, mate.worker_group.attend_newest).wait("save", "model") == b""
        )
        return last

    made = crew(3, transport=transport)
    results = made.play({0: dies, 1: is_torn, 2: has_it})
    assert results == {0: DEAD, 1: [b"the result"], 2: [b"the result"]}


@each_transport
def test_everyone_gets_the_same_results_in_the_same_order(transport: str, crew: Callable[..., Crew]) -> None:
    def scene(mate: Mate) -> list[list[bytes]]:
        assert not mate.worker_group.has_acted
        results = [mate.gather(f"value {i}", f"{mate.id} {i}".encode()).values for i in range(5)]
        assert mate.worker_group.has_acted
        assert mate.worker_group.view == 1
        return results

    results = crew(3, transport=transport).play_alike(scene)
    assert results[0] == [[f"worker-{n} {i}".encode() for n in range(3)] for i in range(5)]
    assert results[0] == results[1] == results[2]


def test_who_said_something_else_than_the_chief_is_named(crew: Callable[..., Crew]) -> None:
    def scene(mate: Mate) -> list[str]:
        told = mate.worker_group.gather("the data", lambda group: b"odd" if group.rank == 1 else b"same")
        assert (told.members, told.chiefs) == (("worker-0", "worker-1", "worker-2"), b"same")
        return told.unlike_chiefs()

    assert crew(3).play_alike(scene) == {number: ["worker-1"] for number in range(3)}


def test_a_broadcast_gives_new_arrays_and_leaves_the_given_ones_alone(crew: Callable[..., Crew]) -> None:
    def scene(mate: Mate) -> None:
        mine = [np.full(5, mate.coordinator_link.member.number), np.array(7.0 + mate.coordinator_link.member.number)]
        numbers, scalar = mate.worker_group.broadcast("weights", mine)
        assert numbers.tolist() == [0] * 5
        assert scalar == 7.0
        assert mine[0].tolist() == [mate.coordinator_link.member.number] * 5

    assert crew(2).play_alike(scene) == {0: None, 1: None}


def test_a_worker_without_a_run_is_a_worker_group_of_one() -> None:
    worker_group = WorkerGroup("worker-0", None, lambda view, wakeup: Alone("worker-0"), 0.0, lasting=False)
    assert not worker_group.is_late
    assert worker_group.gather("a value", b"x") == (("worker-0",), [b"x"])
    assert worker_group.broadcast("weights", [np.arange(3)])[0].tolist() == [0, 1, 2]
    assert worker_group.commit(gathering("a value", b"y"), Keeper()).values == [b"y"]
    worker_group.close()


# A worker is lost -----------------------------------------------------------------------------------------


@each_transport
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_one_lost_before_an_exchange_is_not_waited_for(lost: int, transport: str, crew: Callable[..., Crew]) -> None:
    def scene(mate: Mate) -> Result:
        mate.gather("the first")
        if mate.coordinator_link.member.number == lost:
            raise Dies
        return mate.gather("the second")

    results = values_of(crew(3, transport=transport).play_alike(scene))
    assert results.pop(lost) == DEAD
    assert list(results.values()) == [[value for i, value in enumerate(THREE) if i != lost]] * 2


@each_transport
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_what_one_lost_in_the_middle_had_begun_is_done_again_by_the_others(
    lost: int, transport: str, crew: Callable[..., Crew]
) -> None:
    begun: list[str] = []

    def scene(mate: Mate) -> Result:
        def act(group: AbstractGroup) -> Result:
            begun.append(mate.id)
            group.gather("the first half", b"")
            if mate.coordinator_link.member.number == lost:
                raise Dies
            return Result(group.gather("the second half", mate.id.encode()), [])

        return mate.worker_group.commit(act)

    results = values_of(crew(3, transport=transport).play_alike(scene))
    assert results.pop(lost) == DEAD
    assert list(results.values()) == [[value for i, value in enumerate(THREE) if i != lost]] * 2
    assert sorted(begun) == sorted([f"worker-{n}" for n in range(3)] + [f"worker-{n}" for n in results])


@pytest.mark.parametrize("hosts", ["abab", "abbb"])
@pytest.mark.parametrize("lost", [0, 3])
@pytest.mark.parametrize("doing", ["summing", "reducing"])
def test_one_lost_while_hosts_sum_up_leaves_the_same_bits(
    hosts: str, lost: int, doing: str, crew: Callable[..., Crew]
) -> None:
    """In the middle of what it adds up for its host, or of what it owns; the next view has other hosts."""
    layout = VectorLayout(5000)

    def act(mate: Mate, step: int) -> Callable[[AbstractGroup], Result]:
        def add_up(group: AbstractGroup) -> Result:
            exchange = group.open(layout, 3)
            held = evenly(8, group.size)
            for slot, node in enumerate(cover(8, held[group.rank])):
                exchange.slot(slot).f32[:] = node_sum(step, node, layout.f32)
            if step == 1 and mate.id == f"worker-{lost}":
                die_while(exchange, doing)
            try:
                return Result([exchange.reduce(f"step {step}", 8, held, b"").total.f32.tobytes()], [])
            finally:
                exchange.close()

        return add_up

    def scene(mate: Mate) -> list[bytes]:
        return [mate.worker_group.commit(act(mate, step)).values[0] for step in range(3)]

    expected = [node_sum(step, Node(0, 8), layout.f32).tobytes() for step in range(3)]
    results = crew(4, hosts=hosts).play_alike(scene)
    assert results == {number: DEAD if number == lost else expected for number in range(4)}


def die_while(exchange: Any, doing: str) -> None:
    """Its worker is killed where it sums up for its host, or where it adds up what it owns."""
    add = exchange._adder.add

    def dies(*arguments: Any) -> None:
        raise Dies

    def dies_at_total(program: Any, inputs: Any, result: Any, part: Any) -> None:
        if result is exchange._total:
            raise Dies
        add(program, inputs, result, part)

    if doing == "summing":
        exchange._sum = dies
    else:
        exchange._adder.add = dies_at_total


def test_one_lost_before_anybody_had_met_is_not_waited_for(crew: Callable[..., Crew]) -> None:
    results = crew(3).play({0: Mate.gather, 1: Mate.gather, 2: lambda mate: mate.worker_group.commit(dying)})
    assert values_of(results) == {0: THREE[:2], 1: THREE[:2], 2: DEAD}


def test_the_last_survivor_goes_on_alone(crew: Callable[..., Crew]) -> None:
    def dies(mate: Mate) -> Result:
        mate.gather("together")
        raise Dies

    def survives(mate: Mate) -> list[list[bytes]]:
        mate.gather("together")
        return [mate.gather(f"alone {i}").values for i in range(3)]

    assert crew(3).play({0: dies, 1: dies, 2: survives})[2] == [[b"worker-2"]] * 3


def all_have_come(workers: int = 3) -> threading.Barrier:
    """One that dies waits here for the others: else its death could tear them out of an act that they are to end."""
    return threading.Barrier(workers, timeout=20.0)


def torn(mate: Mate, what: str, counted: list[str], everyone: threading.Barrier) -> Result:
    """Come to an act, and be torn out of it by a new view when the others have its result already."""

    def act(group: AbstractGroup) -> Result:
        counted.append(mate.id)
        group.gather(what, mate.id.encode())
        everyone.wait()
        mate.wait_view(2)
        raise ViewChanged(2)

    return mate.worker_group.commit(act)


@each_transport
@pytest.mark.parametrize("behind", [0, 1])
def test_who_missed_the_end_of_an_act_gets_its_result_from_one_who_has_it(
    behind: int, transport: str, crew: Callable[..., Crew]
) -> None:
    counted: list[str] = []
    everyone = all_have_come()

    def ahead(mate: Mate) -> list[Any]:
        def act(group: AbstractGroup) -> Result:
            return Result(group.gather("the act", mate.id.encode()), [np.arange(100_000.0), np.array(3, np.int8)])

        first = mate.worker_group.commit(act)
        everyone.wait()
        return [first, mate.gather("the next").values]

    def missed(mate: Mate) -> list[Any]:
        return [torn(mate, "the act", counted, everyone), mate.gather("the next").values]

    def dies(mate: Mate) -> Result:
        mate.gather("the act")
        everyone.wait()
        raise Dies

    results = crew(3, transport=transport).play({behind: missed, 1 - behind: ahead, 2: dies})
    assert counted == [f"worker-{behind}"]  # it was not done again
    for first, after in (results[0], results[1]):
        assert first.values == THREE  # what the lost one had said is in it
        assert first.arrays[0].tolist() == [*range(100_000)]
        assert (first.arrays[1].dtype, first.arrays[1].tolist()) == (np.int8, 3)
        assert after == THREE[:2]


def test_what_nobody_has_is_done_again_by_all(crew: Callable[..., Crew]) -> None:
    counted: list[str] = []
    everyone = all_have_come()

    def missed(mate: Mate) -> Result:
        def act(group: AbstractGroup) -> Result:
            counted.append(mate.id)
            values = group.gather("the act", mate.id.encode())
            if group.size == 3:
                everyone.wait()
                mate.wait_view(2)
                raise ViewChanged(2)
            return Result(values, [])

        return mate.worker_group.commit(act)

    def dies(mate: Mate) -> Result:
        mate.gather("the act")
        everyone.wait()
        raise Dies

    results = values_of(crew(3).play({0: missed, 1: missed, 2: dies}))
    assert results == {0: THREE[:2], 1: THREE[:2], 2: DEAD}
    assert sorted(counted) == ["worker-0"] * 2 + ["worker-1"] * 2


def test_a_result_that_is_lost_with_the_only_one_who_had_it_is_made_again(crew: Callable[..., Crew]) -> None:
    """worker-0 alone has committed; it dies before it could pass the result on."""

    everyone = all_have_come(4)

    def ahead(mate: Mate) -> Result:
        mate.gather("the act")
        everyone.wait()
        mate.wait_view(2)
        raise Dies

    def missed(mate: Mate) -> Result:
        def act(group: AbstractGroup) -> Result:
            values = group.gather("the act", mate.id.encode())
            if group.size == 4:
                everyone.wait()
            if group.size > 2:
                mate.wait_view(2)
                raise ViewChanged(2)
            return Result(values, [])

        return mate.worker_group.commit(act)

    def dies(mate: Mate) -> Result:
        mate.gather("the act")
        everyone.wait()
        raise Dies

    results = values_of(crew(4).play({0: ahead, 1: missed, 2: missed, 3: dies}))
    assert results == {0: DEAD, 1: THREE[1:], 2: THREE[1:], 3: DEAD}


@each_transport
def test_a_chief_lost_in_a_broadcast_leaves_no_mixture(transport: str, crew: Callable[..., Crew]) -> None:
    """Both others have got a part of its bytes: what counts is the next chief's, whole."""
    count = 4_000_000

    def chief(mate: Mate) -> Result:
        def act(group: AbstractGroup) -> Result:
            assert isinstance(group, PeerGroup)
            mine = [np.full(count, 100.0)]
            room = group._meeting
            room.hold("weights", _specs(mine))
            for connection in room._connections.values():
                sends = iter([connection._send_some])  # one: what the system takes at once
                connection._send_some = lambda parts, sends=sends: next(sends, lambda parts: 0)(parts)
                connection.post(Bulk(1, room.number), [packed.view(mine[0])])
                assert connection.pending
            raise Dies

        return mate.worker_group.commit(act)

    def other(mate: Mate) -> list[float]:
        mine = [np.full(count, float(mate.coordinator_link.member.number))]
        (got,) = mate.worker_group.broadcast("weights", mine)
        assert (mine[0] == mate.coordinator_link.member.number).all()
        return [float(number) for number in np.unique(got)]

    assert crew(3, transport=transport).play({0: chief, 1: other, 2: other}) == {0: DEAD, 1: [1.0], 2: [1.0]}


@each_transport
def test_what_one_has_of_a_lost_chiefs_broadcast_all_have(transport: str, crew: Callable[..., Crew]) -> None:
    """worker-1 has got all of its bytes, worker-2 none: the lost chief's count, on both."""

    def chief(mate: Mate) -> Result:
        def act(group: AbstractGroup) -> Result:
            assert isinstance(group, PeerGroup)
            mine = [np.full(50_000, 100.0)]
            group._meeting.hold("weights", _specs(mine))
            group._meeting.ship("weights", {1: [packed.view(mine[0])]}, {})
            has_it.wait(10)
            raise Dies

        return mate.worker_group.commit(act)

    def other(mate: Mate) -> list[list[float]]:
        number = float(mate.coordinator_link.member.number)
        (got,) = mate.worker_group.broadcast("weights", [np.full(50_000, number)])
        if number == 1:
            has_it.set()
        (after,) = mate.worker_group.broadcast("the next", [np.full(3, number)])
        return [np.unique(got).tolist(), after.tolist()]

    has_it = threading.Event()
    results = crew(3, transport=transport).play({0: chief, 1: other, 2: other})
    assert results[1] == results[2] == [[100.0], [1.0, 1.0, 1.0]]


def _specs(arrays: list[Any]) -> bytes:
    return msgspec.msgpack.encode(packed.specs(arrays))


@pytest.mark.parametrize("seed", range(12))
def test_survivors_agree_on_everything_whoever_dies_whenever(seed: int, crew: Callable[..., Crew]) -> None:
    """Four workers, ten acts; up to three of them die before, in or after an act, at random."""
    chance = random.Random(seed)
    deaths = {number: (chance.randrange(10), chance.randrange(3)) for number in chance.sample(range(4), 3)}

    def scene(mate: Mate) -> list[list[bytes]]:
        number = mate.coordinator_link.member.number
        results = []
        for i in range(10):

            def act(group: AbstractGroup, i: int = i) -> Result:
                first = group.gather(f"act {i}", f"{mate.id} {i}".encode())
                if deaths.get(number) == (i, 1):
                    raise Dies
                told, _ = group.scatter(f"act {i}", [[np.zeros(9)]] * group.size if group.rank == 0 else None, b"!")
                return Result([*first, told], [])

            if deaths.get(number) == (i, 0):
                raise Dies
            results.append(mate.worker_group.commit(act).values)
            if deaths.get(number) == (i, 2):
                raise Dies
        return results

    results = crew(4).play_alike(scene)
    assert {number for number, end in results.items() if end == DEAD} == deaths.keys()
    (survivor,) = (end for number, end in results.items() if number not in deaths)
    for i, (*told, mark) in enumerate(survivor):
        assert mark == b"!"
        members = [int(value.split()[0].removeprefix(b"worker-")) for value in told]
        assert told == [f"worker-{number} {i}".encode() for number in members]
        assert members == sorted(members)
        # Whoever met the others in the next act has ended this one with them. With one that died in between, the
        # result may be lost: if nobody else had it yet, the others have done it again.
        present = {number for number in range(4) if deaths.get(number, (11, 0)) >= (i + 1, 1)}
        gone = {number for number in range(4) if deaths.get(number, (10, 0)) < (i, 0)}
        assert present <= set(members)
        assert not gone & set(members)


# One that can't be reached, and a run that ends with its first loss ----------------------------------------


def test_one_that_lives_but_does_not_come_is_lost_after_its_deadline(crew: Callable[..., Crew]) -> None:
    def hangs(mate: Mate) -> str:
        with pytest.raises(RunEnded) as ended:
            mate.coordinator_link.wait_end()
        mate.die()
        return str(ended.value)

    hasty = crew(3, deadlines=Deadlines(silence=2.0, stall=0.3, connect=5.0, orphaned=5.0, start=20.0))
    results = hasty.play({0: _patiently, 1: _patiently, 2: hangs})
    assert results[0] == results[1] == THREE[:2]
    assert "the coordinator is gone" in results[2]  # it was cut off
    for mate in (hasty.mates[0], hasty.mates[1]):
        mate.coordinator_link.done()
    assert hasty.run.end().ok
    (told,) = [text for text in hasty.run.told if "going on with" in text]
    assert "worker-2 (pid 102) did not come within 0.3 s (deadline 0.3 s) to" in told


def _patiently(mate: Mate) -> list[bytes]:
    """What it waits for is the next view, which takes a moment longer than these hasty exchanges."""
    mate.worker_group._patience = 10.0
    return mate.gather().values


def test_in_a_run_that_ends_with_its_first_loss_errors_are_raised_as_they_come(
    crew: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messenger, "GRACE", 0.0)  # the control plane would know more after a moment

    def closes(mate: Mate) -> None:
        mate.gather("the first")
        mate.worker_group.close()

    def waits(mate: Mate) -> Result:
        mate.gather("the first")
        return mate.gather("the second")

    results = crew(2, least=None).play({0: waits, 1: closes})
    assert isinstance(results[0], PeerClosed)
    assert results[0].peer == "worker-1"


def test_one_that_is_not_in_the_view_any_more_takes_no_further_part(crew: Callable[..., Crew]) -> None:
    def leaves(mate: Mate) -> Result:
        mate.gather("together")
        mate.coordinator_link.leave()
        mate.wait_view(2)
        return mate.gather("alone")

    def stays(mate: Mate) -> Result:
        mate.gather("together")
        mate.wait_view(2)
        return mate.gather("alone")

    results = crew(2).play({0: stays, 1: leaves})
    assert results[0].values == [b"worker-0"]
    assert isinstance(results[1], RunEnded)
    assert "view 2 is without worker-1" in str(results[1])


# A newcomer -----------------------------------------------------------------------------------------------


def offered(mate: Mate, newcomer: str = "") -> tuple[str, ...]:
    """Whom this worker could let in; waits until there is somebody. None if another worker has let them in already.

    `newcomer` may be in this worker's group by now: let in as it committed what came before.
    """
    deadline, link, group = Deadline.after(10.0), mate.coordinator_link, mate.worker_group
    view = link.view
    while not link.candidates and all(worker.id in group.members for worker in view.workers):
        if newcomer in group.members:
            break
        if view.number > group.view and len(view.workers) >= len(group.members):
            break  # one that had been in the view before was let in again
        link.wait_change(view.number, (), deadline.left())
        assert not deadline.passed()
        view = link.view
    return tuple(candidate.id for candidate in link.candidates)


def with_one_lost(crew: Crew) -> None:
    """worker-2 dies after the first act, which leaves a place free; the others know."""
    everyone = all_have_come()

    def scene(mate: Mate) -> None:
        mate.gather("the first")
        everyone.wait()
        if mate.id == "worker-2":
            raise Dies
        mate.wait_view(2)

    assert crew.play_alike(scene) == {0: None, 1: None, 2: DEAD}


@each_transport
def test_a_newcomer_is_told_everything_and_takes_part_from_the_next_act_on(
    transport: str, crew: Callable[..., Crew]
) -> None:
    among = crew(3, transport=transport)
    with_one_lost(among)
    among.come_late(3)

    def member(mate: Mate) -> list[list[bytes]]:
        keeper = Keeper(b"all we know", np.arange(200_000.0))
        first = mate.worker_group.commit(gathering("the second", mate.id.encode()), keeper, offered(mate))
        assert keeper.taken == 0
        return [first.values, mate.gather("the third").values]

    def newcomer(mate: Mate) -> list[list[bytes]]:
        keeper = Keeper()
        assert mate.worker_group.is_late
        assert mate.worker_group.enter(keeper, call=0) is None
        assert not mate.worker_group.is_late
        assert (keeper.taken, keeper.word, keeper.numbers.tolist()) == (1, b"all we know", [*range(200_000)])
        return [mate.gather("the second").values, mate.gather("the third").values]

    results = among.play({0: member, 1: member, 3: newcomer})
    assert results == dict.fromkeys((0, 1, 3), [[b"worker-0", b"worker-1", b"worker-3"]] * 2)


def test_a_newcomer_can_be_told_by_the_only_one_who_is_left_and_tell_the_next(crew: Callable[..., Crew]) -> None:
    among = crew(2)

    def alone(mate: Mate) -> None:
        mate.gather("the first")
        if mate.id == "worker-1":
            raise Dies
        mate.wait_view(2)

    def chief(mate: Mate) -> list[bytes]:
        keeper = Keeper(b"from the first")
        return mate.worker_group.commit(gathering("the second", mate.id.encode()), keeper, offered(mate)).values

    def newcomer(mate: Mate) -> list[bytes]:
        keepers[mate.id] = Keeper()
        assert mate.worker_group.enter(keepers[mate.id], call=0) is None
        return mate.gather("the second").values

    def heir(mate: Mate) -> list[bytes]:
        mate.wait_view(4)
        return mate.worker_group.commit(gathering("the third", b"heir"), keepers[mate.id], offered(mate)).values

    def late(mate: Mate) -> list[bytes]:
        keepers[mate.id] = Keeper()
        assert mate.worker_group.enter(keepers[mate.id], call=0) is None
        return mate.gather("the third", b"late").values

    keepers: dict[str, Keeper] = {}
    among.play_alike(alone)
    among.come_late(2)
    assert among.play({0: chief, 2: newcomer}) == {0: [b"worker-0", b"worker-2"], 2: [b"worker-0", b"worker-2"]}
    among.mates.pop(0).die()
    among.come_late(3)
    assert among.play({2: heir, 3: late}) == {2: [b"heir", b"late"], 3: [b"heir", b"late"]}
    assert keepers["worker-3"].word == b"from the first"


def test_a_newcomer_and_one_that_is_behind_get_what_each_lacks_in_one_view(crew: Callable[..., Crew]) -> None:
    """worker-1 is torn out of the second act by the view that brings the newcomer; worker-0 has its result."""
    among = crew(3)
    with_one_lost(among)
    among.come_late(3)

    def ahead(mate: Mate) -> list[list[bytes]]:
        second = mate.gather("the second").values
        third = mate.worker_group.commit(gathering("the third", mate.id.encode()), Keeper(b"all"), offered(mate))
        return [second, third.values]

    def behind(mate: Mate) -> list[list[bytes]]:
        def act(group: AbstractGroup) -> Result:
            group.gather("the second", mate.id.encode())
            mate.wait_view(3)
            raise ViewChanged(3)

        return [mate.worker_group.commit(act).values, mate.gather("the third").values]

    def newcomer(mate: Mate) -> list[list[bytes]]:
        keeper = Keeper()
        assert mate.worker_group.enter(keeper, call=0) is None
        assert keeper.word == b"all"
        return [[], mate.gather("the third").values]

    results = among.play({0: ahead, 1: behind, 3: newcomer})
    assert results[0][0] == results[1][0] == THREE[:2]
    assert results[0][1] == results[1][1] == results[3][1] == [b"worker-0", b"worker-1", b"worker-3"]


def test_a_newcomer_that_nobody_can_tell_anything_waits_for_another_view(crew: Callable[..., Crew]) -> None:
    """It comes in while the others are in the middle of something; they end that without it, and then let it in."""
    among = crew(3)
    with_one_lost(among)
    among.come_late(3)
    views: list[int] = []

    def member(mate: Mate) -> list[list[bytes]]:
        admit = offered(mate)

        def act(group: AbstractGroup) -> Result:
            views.append(mate.worker_group.view)
            if mate.worker_group.view == 2:
                mate.coordinator_link.admit(2, admit)  # too early, in the middle of an act
                mate.wait_view(3)
                raise ViewChanged(3)
            return Result(group.gather("the second", mate.id.encode()), [])

        second = mate.worker_group.commit(act).values
        admit = offered(mate, "worker-3")
        third = mate.worker_group.commit(gathering("the third", mate.id.encode()), Keeper(b"all"), admit).values
        return [second, third]

    def newcomer(mate: Mate) -> list[list[bytes]]:
        keeper = Keeper()
        assert mate.worker_group.enter(keeper, call=0) is None
        assert (keeper.word, keeper.taken) == (b"all", 1)
        return [[], mate.gather("the third").values]

    results = among.play({0: member, 1: member, 3: newcomer})
    assert results[0][0] == results[1][0] == THREE[:2]
    assert results[0][1] == results[1][1] == results[3][1] == [b"worker-0", b"worker-1", b"worker-3"]
    assert set(views) == {2, 4}  # in view 3 it was declined


def test_a_newcomer_that_dies_on_its_way_in_is_not_waited_for(crew: Callable[..., Crew]) -> None:
    among = crew(3)
    with_one_lost(among)
    among.come_late(3)

    def member(mate: Mate) -> list[bytes]:
        admit = offered(mate)
        return mate.worker_group.commit(gathering("the second", mate.id.encode()), Keeper(b"all"), admit).values

    class Fatal(Keeper):
        def take(self, given: Result) -> None:
            raise Dies

    results = among.play({0: member, 1: member, 3: lambda mate: mate.worker_group.enter(Fatal(), call=0)})
    assert results == {0: THREE[:2], 1: THREE[:2], 3: DEAD}


def test_who_waits_outside_until_the_call_is_over_gets_what_it_returned(crew: Callable[..., Crew]) -> None:
    among = crew(2)
    among.come_late(2)

    def member(mate: Mate) -> None:
        mate.gather("all of it")
        mate.coordinator_link.finished(4, b"history")

    def newcomer(mate: Mate) -> bytes | None:
        returned = mate.worker_group.enter(Keeper(), call=4)
        assert mate.worker_group.is_late
        return returned

    assert among.play({0: member, 1: member, 2: newcomer}) == {0: None, 1: None, 2: b"history"}


def test_with_too_few_workers_no_step_begins_until_another_has_come(crew: Callable[..., Crew]) -> None:
    among = crew(2, least=2)

    def alone(mate: Mate) -> None:
        mate.gather("the first")
        if mate.id == "worker-1":
            raise Dies
        mate.wait_view(2)

    def member(mate: Mate) -> list[bytes]:
        return mate.worker_group.commit(gathering("the second", mate.id.encode()), Keeper(b"all")).values

    def newcomer(mate: Mate) -> list[bytes]:
        assert among.mates[0].waiting.wait(10)
        assert mate.worker_group.enter(Keeper(), call=0) is None
        return mate.gather("the second").values

    among.play_alike(alone)
    assert not among.mates[0].coordinator_link.view.enough
    among.come_late(2)
    assert among.play({0: member, 2: newcomer}) == {0: [b"worker-0", b"worker-2"], 2: [b"worker-0", b"worker-2"]}
    assert among.mates[0].waits[0] == "for more workers: too few with 1"


# One whose script is over ---------------------------------------------------------------------------------


def finish(mate: Mate) -> None:
    """As a session ends: done, and there for those who still need the last result."""
    mate.coordinator_link.done()
    while not mate.coordinator_link.wait_end(after=mate.worker_group.view):
        mate.worker_group.attend()


def test_one_whose_script_is_over_still_gives_the_last_result(crew: Callable[..., Crew]) -> None:
    counted: list[str] = []
    everyone = all_have_come()

    def finished(mate: Mate) -> list[bytes]:
        last = mate.gather("the last").values
        everyone.wait()
        finish(mate)
        return last

    def behind(mate: Mate) -> list[bytes]:
        last = torn(mate, "the last", counted, everyone).values
        finish(mate)
        return last

    def dies(mate: Mate) -> None:
        mate.gather("the last")
        everyone.wait()
        raise Dies

    among = crew(3)
    assert among.play({0: behind, 1: finished, 2: dies}) == {0: THREE, 1: THREE, 2: DEAD}
    assert counted == ["worker-0"]
    assert among.run.end().ok


def test_all_who_are_done_meet_again_after_a_late_loss_and_the_run_ends_well(crew: Callable[..., Crew]) -> None:
    def finished(mate: Mate) -> None:
        mate.gather("the last")
        finish(mate)

    def dies(mate: Mate) -> None:
        mate.gather("the last")
        mate.coordinator_link.done()
        raise Dies

    among = crew(3)
    assert among.play({0: finished, 1: dies, 2: finished}) == {0: None, 1: DEAD, 2: None}
    assert among.run.end().ok


def test_a_run_that_ends_well_while_one_complains_is_no_error_for_it(
    crew: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    """worker-1 has left the data plane, is done a moment later, and so the run is over."""
    monkeypatch.setattr(messenger, "GRACE", 0.0)

    def finished(mate: Mate) -> None:
        mate.gather("the last")
        everyone.wait()
        mate.coordinator_link.done()
        mate.wait_view(2)

        def complain(view: int, about: tuple[str, ...], why: str, late: bool) -> None:
            complained.set()  # and nobody answers it before the run ends

        monkeypatch.setattr(mate.coordinator_link, "complain", complain)
        mate.worker_group.attend()
        assert mate.coordinator_link.wait_end()

    def leaves(mate: Mate) -> None:
        mate.gather("the last")
        everyone.wait()
        mate.wait_view(2)
        with contextlib.suppress(PeerTimeout):
            group = mate._form(*mate.coordinator_link.stand())
            group.close()
        assert complained.wait(10)
        mate.coordinator_link.done()
        assert mate.coordinator_link.wait_end()

    def dies(mate: Mate) -> None:
        mate.gather("the last")
        everyone.wait()
        raise Dies

    complained, everyone = threading.Event(), all_have_come()
    assert crew(3).play({0: finished, 1: leaves, 2: dies}) == {0: None, 1: None, 2: DEAD}

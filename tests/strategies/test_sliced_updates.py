"""Workers that share an update, as threads: whoever dies or sleeps in the middle of it, every unit is updated once.

The product's own `SlicedUpdates` and `SlicedState` over real shared memory. Made up are the model, an optimizer that is
not to be applied twice, and the views: when somebody is lost, those who are left meet in a new group.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from shoal.collectives.abstract import AbstractGroup, Result
from shoal.strategies import slicing
from shoal.strategies.balance import Balance
from shoal.strategies.schema import Array, Combine, Entry, Schema
from shoal.training import sliced_state
from shoal.training.sliced import SlicedUpdates
from shoal.training.updates import PartTotals
from shoal.wire.memory import SharedBlock

SHAPES = [(50,), (7, 9), (3,), (100,)]
KINDS = [0, 1, 1, 0]
STEPS = 8
WAIT = 20.0  # seconds; only a broken scene takes so long


class Torn(Exception):
    """The view has changed."""


class Dies(BaseException):
    """Of a worker."""


class Meeting:
    """A view."""

    def __init__(self, members: tuple[str, ...]) -> None:
        self.members = members
        self.said: dict[tuple[int, str], bytes] = {}
        self.is_torn = False
        self.changed = threading.Condition()

    def say(self, number: int, me: str, value: bytes) -> list[bytes]:
        """To a round that all come to, or none: what all have come to counts for all."""
        with self.changed:
            self.said[number, me] = value
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.is_torn or self._is_whole(number), WAIT), "nobody comes"
            if not self._is_whole(number):
                raise Torn
            return [self.said[number, member] for member in self.members]

    def tear(self) -> None:
        with self.changed:
            self.is_torn = True
            self.changed.notify_all()

    def _is_whole(self, number: int) -> bool:
        return all((number, member) in self.said for member in self.members)


class ThreadGroup(AbstractGroup):
    def __init__(self, meeting: Meeting, me: str) -> None:
        self._meeting = meeting
        self._me = me
        self._round = 0

    @property
    def rank(self) -> int:
        return self.members.index(self._me)

    @property
    def members(self) -> tuple[str, ...]:
        return self._meeting.members

    @property
    def neighbours(self) -> tuple[int, ...]:
        return tuple(range(len(self.members)))

    def gather(self, what: str, value: bytes) -> list[bytes]:
        self._round += 1
        return self._meeting.say(self._round, self._me, value)

    def hand_block(self, what: str, giver: int, block: SharedBlock | None, nbytes: int) -> SharedBlock:
        fd = self.gather(what, b"" if block is None else str(block.fd).encode())[giver]
        return block or SharedBlock.open(os.dup(int(fd)), nbytes, writable=True)


ThreadGroup.__abstractmethods__ = frozenset()  # a sliced update asks for nothing else


class Variable:
    path = "v"

    def __init__(self, value: Array) -> None:
        self.value = value
        self.shape = value.shape


class Worker:
    """One worker: what `SlicedUpdates` is given, as far as it asks."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene = scene
        self.name = name
        self.weights = [Variable(np.full(shape, 1.0, np.float32)) for shape in SHAPES]
        self.kept = [[Variable(np.full(shape, 2.0, np.float32)) for shape in SHAPES] for _ in range(2)]
        self.once = {"count": Variable(np.zeros((1,), np.float32))}
        self.kinds = KINDS
        self.harm: Callable[[Sequence[Array]], None] | None = None
        self._group: ThreadGroup | None = None
        self._count = np.zeros(1, np.float32)
        entries = [Entry("v", Combine.SUM, "float32", shape) for shape in SHAPES]
        shape: Any = type("Shape", (), {"gradients": range(len(SHAPES)), "changed": (), "schema": Schema(entries)})
        self.variables: Any = type("Variables", (), {"weights": self.weights})
        given: Any = self
        self.updates = SlicedUpdates(given, given, shape, given, given, given)
        self.worker_group = self

    # Run and worker group

    def record(self, *about: object) -> None:
        pass

    def commit(self, act: Callable[[AbstractGroup], Result]) -> Result:
        while True:
            meeting = self.scene.meeting
            if self.name not in meeting.members:
                raise Dies
            if self._group is None or self._group._meeting is not meeting:
                self._group = ThreadGroup(meeting, self.name)
            try:
                return act(self._group)
            except Torn:
                continue

    # Callbacks, engine

    def look_after_batches(self) -> bool:
        return False

    def read(self, variable: Variable) -> Array:
        return variable.value

    def write(self, variables: Sequence[Variable], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.value = np.array(value)

    def adopt(self, variables: Sequence[Variable], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.value = value

    def finish(self) -> None:
        pass

    # The optimizer

    def begin(self, values: Sequence[Array]) -> None:
        self._count = values[0]

    def update(
        self, kind: int, weights: Array, kept: Sequence[Array], gradient: Array, new: Array, new_kept: Sequence[Array]
    ) -> None:
        harm, self.harm = self.harm, None
        if harm is not None:
            harm([new, *new_kept])
        for number, (into, old) in enumerate(zip(new_kept, kept, strict=True)):
            into[:] = old * np.float32(0.5 + number) + gradient
        new[:] = weights * np.float32(0.9 if kind == 0 else 1.0) - new_kept[0] / (1 + np.abs(new_kept[1])) - self._count

    def end(self) -> list[Array]:
        return [self._count + np.float32(1)]

    def forget(self) -> None:
        pass


class Scene:
    """A few steps; `train` gives what everybody has in the end."""

    def __init__(self, names: Sequence[str]) -> None:
        self.meeting = Meeting(tuple(names))
        self.workers = {name: Worker(self, name) for name in names}
        self.harms: dict[tuple[str, int], Callable[[Worker, Sequence[Array]], None]] = {}
        self.most = 0  # steps that somebody has done
        self.progress = threading.Condition()
        self.ended: dict[str, list[bytes]] = {}
        self._lock = threading.Lock()

    def lose(self, name: str) -> None:
        with self._lock:
            before = self.meeting
            self.meeting = Meeting(tuple(member for member in before.members if member != name))
            before.tear()

    def train(self, steps: int) -> dict[str, list[bytes]]:
        threads = [threading.Thread(target=self._work, args=(worker, steps)) for worker in self.workers.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        return self.ended

    def _work(self, worker: Worker, steps: int) -> None:
        try:
            for step in range(steps):
                harm = self.harms.get((worker.name, step))
                if harm is not None:
                    worker.harm = lambda into, harm=harm: harm(worker, into)  # type: ignore[misc]
                worker.commit(lambda group: Result(group.gather("the sum", b""), []))  # nobody is a step ahead
                gradients = np.random.default_rng(step).normal(size=256).astype(np.float32)
                worker.updates.apply(0, step, 0, PartTotals([], [], gradients, Balance.start()))
                with self.progress:
                    self.most = max(self.most, step + 1)
                    self.progress.notify_all()
                if step % 3 == 2:  # an epoch is over, and a callback changes something, the same on all workers
                    worker.updates.show()
                    worker.kept[0][0].value = worker.kept[0][0].value + np.float32(step)
                    worker.weights[3].value = worker.weights[3].value * np.float32(0.5)
            worker.updates.finish(is_trained=True)
            state = [*worker.weights, *worker.kept[0], *worker.kept[1], *worker.once.values()]
            self.ended[worker.name] = [variable.value.tobytes() for variable in state]
        except Dies:
            pass
        finally:
            worker.updates._is_own = True  # who is lost shows nothing
            worker.updates.close()


def dies(worker: Worker, into: Sequence[Array]) -> None:
    """In the middle of writing a unit."""
    for array in into:
        array[: array.size // 2] = np.float32(7e7)
    worker.scene.lose(worker.name)
    raise Dies


def sleeps(worker: Worker, into: Sequence[Array]) -> None:
    """And wakes up when the others have done a step without it, to write on where it was."""
    scene, seen = worker.scene, worker.scene.most
    scene.lose(worker.name)
    with scene.progress:
        scene.progress.wait_for(lambda: scene.most >= min(seen + 2, STEPS), WAIT)


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicing, "UNIT", 32)
    monkeypatch.setattr(slicing, "SIZES", (16, 32))


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slicing, "UNIT", 32)
        patch.setattr(slicing, "SIZES", (16, 32))
        return Scene(["a"]).train(STEPS)["a"]


@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_workers_comes_to_the_same_numbers(count: int, expected: list[bytes]) -> None:
    assert Scene("abc"[:count]).train(STEPS) == dict.fromkeys("abc"[:count], expected)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("harm", [dies, sleeps])
def test_who_is_lost_in_the_middle_of_a_unit_changes_nothing(harm: Any, seed: int, expected: list[bytes]) -> None:
    chance = random.Random(seed)
    scene = Scene("abc")
    victims = chance.sample("abc", chance.randint(1, 2))
    for victim in victims:
        scene.harms[victim, chance.randrange(8)] = harm
    ended = scene.train(STEPS)
    assert set("abc") - set(victims) <= ended.keys()
    assert all(state == expected for state in ended.values())


def no_stamp(state: sliced_state.SlicedState, number: int) -> bool:
    return False


def in_place(state: sliced_state.SlicedState, number: int) -> list[Array]:
    return state.kept(number)


@pytest.mark.parametrize(("name", "wrong"), [("has_had_update", no_stamp), ("next_kept", in_place)])
def test_the_scenes_see_a_unit_that_is_updated_twice_or_in_place(
    name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch, expected: list[bytes]
) -> None:
    monkeypatch.setattr(sliced_state.SlicedState, name, wrong)
    found = []
    for seed in range(12):
        scene = Scene("abc")
        scene.harms["abc"[seed % 3], seed % 8] = dies
        found.append(all(ended == expected for ended in scene.train(STEPS).values()))
    assert not all(found)

"""No update is ever staler than the bound, nobody waits without need, and somebody can always go on.

`Shards` is the brute-force model: lists of applied updates, in which staleness is counted by its definition.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import pytest

from shoal.errors import UsageError
from shoal.store.decisions.staleness import StalenessClock

SHARDS = 2
Name = tuple[str, int]  # a worker and the number of its update


def staleness(worker: str, weights: list[Name], applied: list[Name]) -> int:
    """By definition: the most updates of one other worker that were applied and are not in the weights."""
    missed = Counter(other for other, number in applied if other != worker and (other, number) not in weights)
    return max(missed.values(), default=0)


@dataclass
class Going:
    """An update between its beginning and its end."""

    name: Name
    weights: dict[int, list[Name]] = field(default_factory=dict)
    applied: set[int] = field(default_factory=set)


class Shards:
    """Workers that pull, compute and push when they please, if the clock lets them."""

    def __init__(self, seed: int, bound: int | None, workers: int, ahead: int) -> None:
        self.random = random.Random(f"{seed} {bound} {workers}")
        self.bound = bound
        self.ahead = ahead
        self.clock = StalenessClock(bound)
        self.workers = [f"worker-{number}" for number in range(workers)]
        for worker in self.workers:
            self.clock.join(worker)
        self.weight = {worker: self.random.choice((1, 1, 5, 50)) for worker in self.workers}  # how fast it is
        self.histories: list[list[Name]] = [[] for _ in range(SHARDS)]
        self.going: dict[str, list[Going]] = {worker: [] for worker in self.workers}
        self.largest = 0
        self.waited = 0
        self.log: list[tuple[str, Name]] = []

    def play(self, moves: int) -> Shards:
        for _ in range(moves):
            if self.random.random() < 0.02:
                self.lose(self.random.choice(self.workers))
            self.move(self.random.choices(self.workers, [self.weight[worker] for worker in self.workers])[0])
            self.somebody_can_go_on()
        return self

    def move(self, worker: str) -> None:
        """One of the things that this worker could do now, whichever."""
        updates = self.going[worker]
        if len(updates) < self.ahead and self.random.random() < 0.5:
            self.try_to_begin(worker)
        elif updates:
            self.proceed(worker, self.random.choice(updates))

    def try_to_begin(self, worker: str) -> None:
        waits = self.clock.waits_for(worker)
        if not waits:
            name = (worker, self.clock.begin(worker))
            self.going[worker].append(Going(name))
            self.log.append(("begin", name))
        elif waits != (worker,):
            self.waited += 1
            self.had_to_wait(worker, waits[0])

    def proceed(self, worker: str, update: Going) -> None:
        for shard in self.random.sample(range(SHARDS), SHARDS):
            if shard not in update.weights:
                update.weights[shard] = list(self.histories[shard])
                return
        if waiting := [shard for shard in range(SHARDS) if shard not in update.applied]:
            self.apply(update, self.random.choice(waiting))
            return
        self.going[worker].remove(update)
        self.clock.finish(worker, update.name[1], 0)
        self.log.append(("finish", update.name))

    def apply(self, update: Going, shard: int) -> None:
        worker = update.name[0]
        reached = staleness(worker, update.weights[shard], self.histories[shard])
        assert self.bound is None or reached <= self.bound
        self.largest = max(self.largest, reached)
        self.histories[shard].append(update.name)
        update.applied.add(shard)

    def lose(self, worker: str) -> None:
        """Some of what it had sent is applied, the rest never is. Another incarnation comes in its place."""
        for update in self.going[worker]:
            for shard in update.weights.keys() - update.applied:
                if len(update.weights) == SHARDS and self.random.random() < 0.5:
                    self.apply(update, shard)
        self.going[worker].clear()
        self.clock.lose(worker)
        self.log.append(("lose", (worker, 0)))
        self.clock.join(worker)

    def somebody_can_go_on(self) -> None:
        unfinished = any(self.going.values())
        assert unfinished or not any(self.clock.waits_for(worker) for worker in self.workers)

    def had_to_wait(self, worker: str, blocker: str) -> None:
        """Another course of the same beginnings and ends, in which one more update would have broken the bound.

        In it, weights are pulled at the beginning of an update, and it is applied at its end.
        """
        applied: list[Name] = []
        weights: dict[Name, list[Name]] = {}
        begun: list[Name] = []
        for what, name in self.log:
            if what == "begin":
                weights[name] = list(applied)
                begun.append(name)
            elif what == "finish":
                applied.append(name)
                begun.remove(name)
            else:  # all that it had sent arrives with its last breath
                applied += [other for other in begun if other[0] == name[0]]
                begun = [other for other in begun if other[0] != name[0]]
        applied += [name for name in begun if name[0] == worker] + [(worker, -1)]
        assert self.bound is not None
        assert any(staleness(blocker, weights[name], applied) > self.bound for name in begun if name[0] == blocker)


@pytest.mark.parametrize("bound", [0, 1, 2, 4, None])
@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_no_update_is_staler_than_the_bound_whatever_the_others_do(bound, ahead):
    runs = [Shards(seed, bound, workers=2 + seed % 4, ahead=ahead).play(400) for seed in range(12)]
    assert bound is None or max(run.largest for run in runs) == bound, "the bound is reached"
    assert bound is None or sum(run.waited for run in runs), "somebody had to wait"


def test_without_a_bound_nobody_ever_waits():
    run = Shards(1, None, workers=3, ahead=4).play(2000)
    assert run.waited == 0
    assert run.largest > 5


def test_a_slow_worker_holds_the_others_back_by_the_bound_and_no_sooner():
    clock = StalenessClock(2)
    clock.join("slow")
    clock.join("fast")
    slow = clock.begin("slow")
    for _ in range(2):
        clock.finish("fast", clock.begin("fast"), 0)
    assert clock.waits_for("fast") == ("slow",)
    clock.finish("slow", slow, 2)
    assert clock.waits_for("fast") == ()
    assert clock.stalest == 2
    assert clock.observed == {0: 2, 2: 1}


def test_a_lost_worker_blocks_nobody_and_may_come_back():
    clock = StalenessClock(1)
    for worker in ("a", "b"):
        clock.join(worker)
    lost = clock.begin("a")
    clock.finish("b", clock.begin("b"), 0)
    assert clock.waits_for("b") == ("a",)
    clock.lose("a")
    assert clock.waits_for("b") == ()
    clock.finish("a", lost, 9)  # its last word comes too late
    assert clock.stalest == 0
    clock.join("a")
    assert clock.begin("a") == 1


def test_with_a_bound_of_zero_the_workers_take_turns():
    clock = StalenessClock(0)
    for worker in ("a", "b"):
        clock.join(worker)
    first = clock.begin("a")
    assert clock.waits_for("b") == ("a",)
    clock.finish("a", first, 0)
    clock.begin("b")
    assert clock.waits_for("a") == ("b",)


def test_working_ahead_counts_towards_the_bound():
    clock = StalenessClock(2)
    for worker in ("a", "b"):
        clock.join(worker)
    clock.begin("a")
    clock.begin("a")
    assert clock.waits_for("a") == ("a",), "its own unfinished updates, not somebody else's"
    assert clock.waits_for("b") == ()


def test_beginning_against_the_clock_is_an_error_that_says_whom_to_wait_for():
    clock = StalenessClock(0)
    for worker in ("a", "b"):
        clock.join(worker)
    clock.begin("a")
    with pytest.raises(RuntimeError, match="b began an update while it has to wait for a"):
        clock.begin("b")


def test_a_bound_below_zero_is_named():
    with pytest.raises(UsageError, match="a staleness of -1"):
        StalenessClock(-1)


def test_a_clock_is_written_down_and_goes_on_where_it_was():
    clock = Shards(3, 2, workers=3, ahead=2).play(200).clock
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(clock), type=StalenessClock)
    assert again == clock

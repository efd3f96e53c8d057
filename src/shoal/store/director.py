"""The director: where every shard is, and who computes what next. Pure; it lives in the coordinator's process.

It hears letters from workers and servers, and from the coordinator who is there. One training at a time is open:

    waiting for servers ── all who were started serve ──▶ open, view after view ── Close ──▶ closed
                                                            ▲    │
                                                            └────┘ somebody is lost or comes, one has caught up

What it knows is one Struct, written down before anybody is told what follows from it. So a director that takes over
knows everything that anybody was ever told; what it was told in vain, it is told again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from shoal.cluster.department import Say, Send, Wish
from shoal.store.leases import LeaseBook
from shoal.store.letters import (
    FROM_DIRECTOR,
    TO_DIRECTOR,
    Close,
    Closed,
    EpochOver,
    Finish,
    Grant,
    Halt,
    Next,
    Open,
    Placed,
    Serve,
    Want,
)
from shoal.store.messages import CaughtUp, Differs
from shoal.store.placement import Placement, Setback, setbacks
from shoal.store.staleness import StalenessClock
from shoal.wire.messages import Message


class Training(msgspec.Struct):
    """One training with parameter servers."""

    opened: Open
    book: LeaseBook
    clock: StalenessClock
    placement: Placement | None = None  # None: the servers are not all there yet
    workers: list[str] = []
    turns: dict[str, int] = {}  # of every worker: how many updates it was granted
    waiting: list[str] = []  # workers that want one more, in the order in which they asked
    granted: dict[str, list[Grant]] = {}  # what each worker is at
    is_short: bool = False  # a server was lost, and copies are missing since


class State(msgspec.Struct):
    """All that a director knows."""

    training: Training | None = None
    serving: dict[str, int] = {}  # server -> the call that its script has come to
    closed: int = -1  # the last call that was closed
    view: int = 0  # the last number given to a view; no training uses one again


class Director:
    """The parameter servers' part of the coordinator."""

    def __init__(self, lease: float, written: bytes | None = None) -> None:
        """`lease`: seconds after which a batch is given to somebody else. `written`: what `record` once gave."""
        self._lease = lease
        self._state = State() if written is None else msgspec.msgpack.decode(written, type=State)
        self._workers: tuple[str, ...] = ()
        self._servers: dict[str, str] = {}  # those who are there, and their addresses
        self._expected = 0
        self._now = 0.0

    def record(self) -> bytes:
        """What must not be forgotten."""
        return msgspec.msgpack.encode(self._state)

    def welcomes(self, call: int) -> bool:
        """Whether a worker may come into this training at any moment: in the middle of an epoch it may."""
        training = self._state.training
        return (
            training is not None
            and training.placement is not None
            and training.opened.call == call
            and training.opened.bound != 0
            and not training.book.is_over
        )

    # What it is told --------------------------------------------------------------------------------

    def take(self, workers: Collection[str], servers: Mapping[str, str], expected: int, now: float) -> list[Wish]:
        """Who is there: the view's workers, the servers and their addresses, and how many servers may be there soon."""
        if (tuple(workers), servers, expected) == (self._workers, self._servers, self._expected):
            return []
        self._workers, self._servers, self._expected = tuple(workers), dict(servers), expected
        self._now = now
        training = self._state.training
        if training is None:
            return []
        if training.placement is None:
            return self._place(training)
        lost = [worker for worker in training.workers if worker not in workers]
        came = [worker for worker in workers if worker not in training.workers]
        for worker in lost:
            self._lose(training, worker)
        for worker in came:
            training.clock.join(worker)
        training.workers = list(workers)
        if lost or self._present(training) != list(training.placement.servers):
            return [*self._next_view(training, training.placement, lost), *self._deal(training)]
        return [*self._publish(training, training.placement), *self._deal(training)] if came else []

    def hear(self, sender: str, content: bytes, now: float) -> list[Wish]:
        """A letter from a worker or a server. BadFrame if it is none."""
        self._now = now
        message = TO_DIRECTOR.decode(content)
        state, training = self._state, self._state.training
        match message:
            case Serve(call):
                return self._serve(sender, call)
            case Open(call) if call > state.closed and (training is None or training.opened.call < call):
                return self._open(message)
            case Close(call) if training is not None and call == training.opened.call:
                state.training, state.closed = None, call
                return [*_observed(training.clock), _send(self._servers, Closed(call))]
            case CaughtUp(shard, view, server) if training is not None and training.placement is not None:
                return self._caught_up(training, training.placement.caught_up(view, shard, server))
            case Differs(shard, _, server, version):
                text = f"the copy of shard {shard} on {server} differed from {sender}'s at version {version}"
                return [Say(f"{text}; it is sent anew")]
            case Want() | Finish() | Halt() | Next() if training is not None and message.call == training.opened.call:
                if training.placement is not None and sender in training.workers:
                    return [*self._of_worker(training, sender, message), *self._deal(training)]
        return []

    def tick(self, now: float) -> list[Wish]:
        """Time has passed."""
        self._now = now
        training = self._state.training
        if training is None or training.placement is None or not training.book.expire(now):
            return []
        return self._deal(training)

    # Trainings --------------------------------------------------------------------------------------

    def _open(self, opened: Open) -> list[Wish]:
        book = LeaseBook(opened.batches, opened.epoch, opened.ahead)
        self._state.training = Training(opened, book, StalenessClock(opened.bound))
        return self._place(self._state.training)

    def _serve(self, server: str, call: int) -> list[Wish]:
        state, training = self._state, self._state.training
        if call <= state.closed:
            return [_send((server,), Closed(call))]
        if state.serving.get(server) == call:
            return []
        state.serving[server] = call
        if training is None:
            return []
        if training.placement is None:
            return self._place(training)
        if self._present(training) == list(training.placement.servers):
            return []
        return self._next_view(training, training.placement)

    def _present(self, training: Training) -> list[str]:
        """The servers that are there and have come to this training; first those that hold something."""
        held = training.placement.servers if training.placement is not None else ()
        here = [id for id in self._servers if self._state.serving.get(id) == training.opened.call]
        return [*(id for id in held if id in here), *(id for id in here if id not in held)]

    def _place(self, training: Training) -> list[Wish]:
        """The first view of a training, once every server that may come is there."""
        servers = self._present(training)
        if not servers or len(servers) < self._expected:
            return []
        training.workers = list(self._workers)
        for worker in training.workers:
            training.clock.join(worker)
        self._state.view += 1
        replicas = min(training.opened.replicas, len(servers))
        placement = Placement.first(self._state.view, servers, replicas, training.opened.sizes)
        training.placement = msgspec.structs.replace(placement, replicas=training.opened.replicas)
        return self._publish(training, training.placement)

    def _next_view(self, training: Training, before: Placement, lost: Sequence[str] = ()) -> list[Wish]:
        self._state.view += 1
        servers = self._present(training)
        training.is_short |= not set(before.servers) <= set(servers)
        training.placement = before.next(self._state.view, servers)
        said = [Say(_setback(setback)) for setback in setbacks(before, training.placement)]
        return [*said, *self._publish(training, training.placement, lost)]

    def _publish(self, training: Training, placement: Placement, lost: Sequence[str] = ()) -> list[Wish]:
        """To all: servers that hold nothing any more, and workers that are outside now, must hear that too."""
        opened, workers = training.opened, tuple(training.workers)
        placed = Placed(opened.call, placement, workers, self._servers, opened.facts)
        return [_send((*self._servers, *training.workers, *lost), placed)]

    def _caught_up(self, training: Training, placement: Placement) -> list[Wish]:
        training.placement = placement
        if not placement.is_settled:
            return self._next_view(training, placement)
        copies = min(len(view.backups) + 1 for view in placement.views)
        if not training.is_short or copies < placement.replicas:
            return []
        training.is_short = False
        return [Say(f"every shard has {copies} copies again")]

    # Workers ----------------------------------------------------------------------------------------

    def _of_worker(self, training: Training, worker: str, message: Want | Finish | Halt | Next) -> list[Wish]:
        book = training.book
        match message:
            case Want(turn=turn):
                return self._want(training, worker, turn)
            case Finish(batch=batch, number=number):
                self._finish(training, worker, message)
                training.granted[worker] = [
                    grant
                    for grant in training.granted.get(worker, [])
                    if (grant.batch, grant.number) != (batch, number)
                ]
            case Halt(epoch=epoch) if epoch == book.epoch and not book.halted and not book.is_over:
                book.halt()
            case Next(epoch=epoch, batches=batches) if epoch == book.epoch + 1:
                book.next_epoch(batches)
                return []
            case _:
                return []
        return [_send(training.workers, EpochOver(training.opened.call, book.epoch))] if book.is_over else []

    def _want(self, training: Training, worker: str, turn: int) -> list[Wish]:
        if worker not in training.waiting and turn >= training.turns.get(worker, 0):
            training.waiting.append(worker)
        again = [_send((worker,), grant) for grant in training.granted.get(worker, []) if grant.turn == turn]
        book = training.book
        over = [_send((worker,), EpochOver(training.opened.call, book.epoch))] if book.is_over else []
        return [*again, *over]

    def _finish(self, training: Training, worker: str, finish: Finish) -> None:
        assert training.placement is not None
        training.clock.finish(worker, finish.number, finish.staleness)
        if training.placement.keeps(finish.view):
            training.book.acknowledge(finish.batch)
        else:
            training.book.give_back(worker, finish.batch)

    def _lose(self, training: Training, worker: str) -> None:
        training.book.lost(worker)
        training.clock.lose(worker)
        training.granted.pop(worker, None)
        if worker in training.waiting:
            training.waiting.remove(worker)

    def _deal(self, training: Training) -> list[Wish]:
        """Grant what may be granted, in the order in which workers asked."""
        decisions: list[Wish] = []
        assert training.placement is not None
        for worker in list(training.waiting):
            if training.clock.waits_for(worker):
                continue
            lease = training.book.take(worker, self._now + self._lease)
            if lease is None:
                continue
            training.waiting.remove(worker)
            turn = training.turns.get(worker, 0)
            training.turns[worker] = turn + 1
            number = training.clock.begin(worker)
            grant = Grant(training.opened.call, turn, lease.batch, number, training.placement.number)
            training.granted.setdefault(worker, []).append(grant)
            decisions.append(_send((worker,), grant))
        return decisions


def _observed(clock: StalenessClock) -> list[Wish]:
    """How stale the updates were, in a line."""
    total = sum(clock.observed.values())
    if not total:
        return []
    mean = sum(staleness * count for staleness, count in clock.observed.items()) / total
    bound = "none" if clock.bound is None else clock.bound
    return [Say(f"{total} updates with a staleness of {mean:.1f} on average, {clock.stalest} at most (bound: {bound})")]


def _setback(setback: Setback) -> str:
    who = " and ".join(setback.lost) or "the last server"
    return (
        f"shard {setback.shard} was lost with {who}: it goes on from the newest weights that a worker has, without its "
        "optimizer's state. With --replicas 2 nothing would have been lost"
    )


def _send(to: Sequence[str] | Mapping[str, str], message: Message) -> Send:
    return Send(tuple(to), FROM_DIRECTOR.encode(message))

"""The director: where every shard is, and who computes what next. Pure; it lives in the coordinator's process.

It hears workers and servers, and from the coordinator who is there. One training at a time is open:

    waiting for servers ── all who were started serve ──▶ open, view after view ── Close ──▶ closed
                                                            ▲    │
                                                            └────┘ somebody is lost or comes, one has caught up

What it knows is one Struct, and what it is told makes the next of the one before, always alike. So what is written
down, before anybody is told what follows from it, is the Struct as it was at one moment and what was heard since; a
director that takes over hears that again. It knows everything that anybody was ever told; what it was told in vain, it
is told again. What the one before told in
vain it tells again: to each the shards' places, when it first hears from it; and what answers a Want, when that is
said again. A worker that says nothing, because it knows no places yet, is told them now and then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import msgspec

from shoal.cluster.coordinator_service import SayToUser, SendMessage, ServiceLog, Wish
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
    Next,
    Open,
    Pause,
    Serve,
    ShardsPlaced,
    TrainingClosed,
    WantWork,
)
from shoal.store.decisions.leases import LeaseBook
from shoal.store.decisions.placement import Placement, Setback, ShardView, setbacks
from shoal.store.decisions.staleness import StalenessClock
from shoal.store.values.messages import CaughtUp, Differs
from shoal.wire.messages import Message

REMIND = 0.1  # seconds after which one that says nothing is told again where the shards are; then twice as many, …


class Pausing(msgspec.Struct):
    """A worker has asked for a pause."""

    number: int
    is_told: bool = False  # that everything is at rest


class Training(msgspec.Struct):
    """One training with parameter servers."""

    opened: Open
    book: LeaseBook
    clock: StalenessClock
    placement: Placement | None = None  # None: the servers are not all there yet
    workers: list[str] = []
    turns: dict[str, int] = {}  # of every worker: the first that it was not granted yet
    waiting: list[tuple[str, int]] = []  # who wants one more, as which of its turns; in the order in which they asked
    granted: dict[str, list[Grant]] = {}  # what each worker is at
    is_short: bool = False  # a server was lost, and copies are missing since; the user was told
    is_together: bool = False  # a host was lost, and copies of a shard share one since; the user was told
    pauses: dict[str, Pausing] = {}  # of workers that write a checkpoint
    paused: dict[str, int] = {}  # of every worker: the first pause that it has not ended yet
    kept: int | None = None  # the step of the last checkpoint of this training


class State(msgspec.Struct):
    """All that a director knows."""

    training: Training | None = None
    serving: dict[str, int] = {}  # server -> the call that its script has come to
    closed: int = -1  # the last call that was closed
    left: dict[int, tuple[ShardView, ...]] = {}  # by call: where its shards were when it was closed
    view: int = 0  # the last number given to a view; no training uses one again
    # Who is there: the view's workers, the servers and their addresses, and how many servers may be there soon.
    workers: tuple[str, ...] = ()
    servers: dict[str, str] = {}
    expected: int = 0
    hosts: dict[str, str] = {}  # of the servers
    most_hosts: int = 1  # that ever had servers at the same time: copies can be on so many


class _Took(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    """Something has happened that changes what the director knows: `take`. The other three are as short."""

    workers: tuple[str, ...]
    servers: dict[str, str]
    expected: int
    now: float
    hosts: dict[str, str] = {}


class _Heard(msgspec.Struct, frozen=True, array_like=True, tag="hear"):
    sender: str
    content: bytes
    now: float


class _Expired(msgspec.Struct, frozen=True, array_like=True, tag="tick"):
    now: float


class _AbandonedCall(msgspec.Struct, frozen=True, array_like=True, tag="abandon"):
    call: int
    now: float


_Happened = _Took | _Heard | _Expired | _AbandonedCall
_HAPPENED = msgspec.msgpack.Decoder(_Happened)


class Director:
    """The parameter servers' part of the coordinator."""

    def __init__(self, lease: float, written: ServiceLog | None = None) -> None:
        """`lease`: seconds after which a batch is given to somebody else. `written`: by the one before this."""
        self._lease = lease
        self._state = State() if written is None else msgspec.msgpack.decode(written.record, type=State)
        self._now = 0.0
        self._happened: list[_Happened] = []  # since `changes` was last asked
        # Of one that takes over: who has spoken to it, and when the others are told again where the shards are.
        self._met: set[str] | None = None if written is None else set()
        self._remind_at = 0.0
        self._pause = REMIND
        if written is not None:
            self._hear_again(written.changes)

    def record(self) -> bytes:
        """What must not be forgotten: all of it."""
        return msgspec.msgpack.encode(self._state)

    def changes(self) -> list[bytes]:
        """What has happened since this was last asked: a few bytes for each grant, however long the training is."""
        happened, self._happened = self._happened, []
        return [msgspec.msgpack.encode(event) for event in happened]

    def _hear_again(self, changes: Sequence[bytes]) -> None:
        """Come to know what the one before knew. What it had to say then, it has said, or is said again when asked."""
        for change in changes:
            match _HAPPENED.decode(change):
                case _Took(workers, servers, expected, now, hosts):
                    self.take(workers, servers, expected, now, hosts)
                case _Heard(sender, content, now):
                    self.hear(sender, content, now)
                case _Expired(now):
                    self.tick(now)
                case _AbandonedCall(call, now):
                    self.abandon(call, now)
        self._happened = []
        self._met, self._remind_at, self._pause = set(), 0.0, REMIND

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

    def take(
        self,
        workers: Collection[str],
        servers: Mapping[str, str],
        expected: int,
        now: float,
        hosts: Mapping[str, str] = MappingProxyType({}),
    ) -> list[Wish]:
        """Who is there: the view's workers, the servers and their addresses, and how many servers may be there soon.

        `hosts`: of the servers; one that is not named is on a host of its own.
        """
        state = self._state
        if (tuple(workers), servers, expected) == (state.workers, state.servers, state.expected):
            return []
        state.workers, state.servers, state.expected = tuple(workers), dict(servers), expected
        state.hosts = dict(hosts)
        state.most_hosts = max(state.most_hosts, len({hosts.get(id, id) for id in servers}))
        wishes = self._take(state.workers, now)
        self._happened.append(_Took(state.workers, state.servers, expected, now, state.hosts))
        return wishes

    def _take(self, workers: Sequence[str], now: float) -> list[Wish]:
        self._now = now
        training = self._state.training
        if training is None:
            return []
        if training.placement is None:
            return self._place(training)
        lost = [worker for worker in training.workers if worker not in workers]
        came = [worker for worker in workers if worker not in training.workers]
        was_over = training.book.is_over
        for worker in lost:
            self._lose(training, worker)
        for worker in came:
            training.clock.join(worker)
        training.workers = list(workers)
        over = [] if was_over else self._over(training)  # halted, and only the lost ones were still at something
        if lost or self._present(training) != list(training.placement.servers):
            return [*self._next_view(training, training.placement, lost), *over, *self._deal(training)]
        return [*self._publish(training, training.placement), *self._deal(training)] if came else []

    def hear(self, sender: str, content: bytes, now: float) -> list[Wish]:
        """A worker or a server has said something. BadFrame if it is no message to the director."""
        self._now = now
        message = TO_DIRECTOR.decode(content)
        reminder = self._remind([sender]) if self._is_strange(sender) else []
        if self._met is not None:
            self._met.add(sender)
        wishes = [*reminder, *self._heed(sender, message)]
        self._happened.append(_Heard(sender, content, now))
        return wishes

    def _heed(self, sender: str, message: Message) -> list[Wish]:
        state, training = self._state, self._state.training
        match message:
            case Serve(call):
                return self._serve(sender, call)
            case Open(call) if call > state.closed and (training is None or training.opened.call < call):
                return self._open(message)
            case Close(call) if call > state.closed and (training is None or call == training.opened.call):
                return self._close(call)
            case CaughtUp(shard, view, server) if training is not None and training.placement is not None:
                if view != training.placement.number:
                    return []  # perhaps of a training before this one, which had more shards
                return self._caught_up(training, training.placement.caught_up(view, shard, server))
            case Differs(shard, _, server, version):
                text = f"the copy of shard {shard} on {server} differed from {sender}'s at version {version}"
                return [SayToUser(f"{text}; it is sent anew")]
            case WantWork() | Finish() | Halt() | Next() if (
                training is not None and message.call == training.opened.call
            ):
                if training.placement is not None and sender in training.workers:
                    return [*self._of_worker(training, sender, message), *self._deal(training)]
            case Pause() | GoOn() | CheckpointKept() if training is not None and message.call == training.opened.call:
                if training.placement is not None and sender in training.workers:
                    self._of_saver(training, sender, message)
                    return self._deal(training)
        return []

    def tick(self, now: float) -> list[Wish]:
        """Time has passed."""
        self._now = now
        training = self._state.training
        if training is None or training.placement is None:
            return []
        reminder: list[Wish] = []
        strange = [worker for worker in training.workers if self._is_strange(worker)]
        if strange and now >= self._remind_at:
            self._remind_at, self._pause = now + self._pause, 2 * self._pause
            reminder = self._remind(strange)
        if not training.book.expire(now):
            return reminder
        self._happened.append(_Expired(now))
        return [*reminder, *self._over(training), *self._deal(training)]

    def _is_strange(self, member: str) -> bool:
        """Whether this one may have missed something that the director before has told, or tried to."""
        return self._met is not None and member not in self._met

    def _remind(self, members: Sequence[str]) -> list[Wish]:
        """Where the shards are; and servers whose training is closed, that it is."""
        state, training = self._state, self._state.training
        calls = {id: state.serving[id] for id in members if id in state.serving}
        reminders: list[Wish] = [
            _send((id,), TrainingClosed(call)) for id, call in calls.items() if call <= state.closed
        ]
        if training is not None and training.placement is not None:
            reminders.append(_send(members, self._placed(training, training.placement)))
            told = [id for id in members if id in training.pauses and training.pauses[id].is_told]
            reminders += [self._at_rest(training, id) for id in told]
        return reminders

    # Trainings --------------------------------------------------------------------------------------

    def abandon(self, call: int, now: float) -> list[Wish]:
        """The workers have left this call with an error. What it has trained so far stays, for later ones."""
        self._now = now
        training = self._state.training
        if call <= self._state.closed or (training is not None and training.opened.call != call):
            return []
        self._happened.append(_AbandonedCall(call, now))
        return self._close(call)

    def _close(self, call: int) -> list[Wish]:
        state, training = self._state, self._state.training
        state.training, state.closed = None, call
        if training is not None:
            state.left[call] = self._leaves(training)
        observed = _observed(training.clock) if training is not None else []
        return [*observed, _send(self._state.servers, TrainingClosed(call))]

    def _open(self, opened: Open) -> list[Wish]:
        # Whoever was to close the one before has died: it is over all the same, and its servers wait to hear it.
        before = self._state.training
        closed = self._close(before.opened.call) if before is not None else []
        needed = {*opened.remembers, *(left.call for left in opened.goes_on)}
        self._state.left = {call: views for call, views in self._state.left.items() if call in needed}
        book = LeaseBook.begun(opened.batches, opened.epoch, opened.ahead, min(opened.done, opened.batches))
        self._state.training = Training(opened, book, StalenessClock(opened.bound), kept=opened.kept)
        return [*closed, *self._place(self._state.training)]

    def _serve(self, server: str, call: int) -> list[Wish]:
        state, training = self._state, self._state.training
        if call <= state.closed:
            return [_send((server,), TrainingClosed(call))]
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
        here = [id for id in self._state.servers if self._state.serving.get(id) == training.opened.call]
        return [*(id for id in held if id in here), *(id for id in here if id not in held)]

    def _place(self, training: Training) -> list[Wish]:
        """The first view of a training, once every server that may come is there."""
        servers = self._present(training)
        if not servers or len(servers) < self._state.expected:
            return []
        training.workers = list(self._state.workers)
        for worker in training.workers:
            training.clock.join(worker)
        self._state.view += 1
        number, opened = self._state.view, training.opened
        places = self._places(opened)
        replicas = min(opened.replicas, len(servers))
        placement = Placement.first(number, servers, replicas, opened.sizes, places, self._state.hosts)
        lost = setbacks(places, placement)
        placement = placement.renewed(set(range(len(opened.sizes))) - set(opened.tables))
        training.placement = msgspec.structs.replace(placement, replicas=opened.replicas)
        return [*self._say_setbacks(training, lost), *self._publish(training, training.placement)]

    def _leaves(self, training: Training) -> tuple[ShardView, ...]:
        """Where its shards are now. One that was never placed, because nothing was to be trained, has moved nothing."""
        if training.placement is not None:
            return training.placement.views
        return self._places(training.opened)

    def _places(self, opened: Open) -> tuple[ShardView, ...]:
        """Where shards that go on were when their trainings were closed; nowhere, if that is not known any more."""
        return tuple(
            msgspec.structs.replace(view, shard=left.shard)
            for left in opened.goes_on
            if 0 <= left.shard < len(opened.sizes)
            for view in self._state.left.get(left.call, (ShardView(0, left.before, None, (), (), 0),))
            if view.shard == left.before
        )

    def _say_setbacks(self, training: Training, found: Sequence[Setback]) -> list[Wish]:
        opened = training.opened
        return [SayToUser(_setback(one, one.shard in opened.tables, training.kept, opened.replicas)) for one in found]

    def _next_view(self, training: Training, before: Placement, lost: Sequence[str] = ()) -> list[Wish]:
        self._state.view += 1
        placement = training.placement = before.next(self._state.view, self._present(training), self._state.hosts)
        said = self._say_setbacks(training, setbacks(before.views, placement))
        short = _short(placement)
        if short and not training.is_short:
            training.is_short = True
            few = f"{len(short)} of {len(placement.views)} shards have fewer than {placement.replicas} copies"
            said.append(SayToUser(f"{few} until another server has caught up"))
        said += self._say_together(training, placement)
        return [*said, *self._publish(training, placement, lost)]

    def _publish(self, training: Training, placement: Placement, lost: Sequence[str] = ()) -> list[Wish]:
        """To all: servers that hold nothing any more, and workers that are outside now, must hear that too."""
        return [_send((*self._state.servers, *training.workers, *lost), self._placed(training, placement))]

    def _placed(self, training: Training, placement: Placement) -> ShardsPlaced:
        opened = training.opened
        return ShardsPlaced(opened.call, placement, tuple(training.workers), self._state.servers, opened.facts)

    def _caught_up(self, training: Training, placement: Placement) -> list[Wish]:
        training.placement = placement
        news = [] if placement.is_settled else self._next_view(training, placement)
        now = training.placement
        if training.is_short and not _short(now):
            training.is_short = False
            news = [SayToUser(f"every shard has {placement.replicas} copies again"), *news]
        return [*news, *self._say_together(training, now)]

    def _say_together(self, training: Training, placement: Placement) -> list[Wish]:
        """That one host's death could take all copies of a shard, or that none can any more."""
        found = placement.together(min(placement.replicas, self._state.most_hosts))
        if bool(found) == training.is_together:
            return []
        training.is_together = bool(found)
        if not found:
            return [SayToUser("the copies of every shard are on different hosts again")]
        return [
            SayToUser(
                f"{len(found)} of {len(placement.views)} "
                "shards have copies on the same host, since too few hosts have servers: they move when one more comes"
            )
        ]

    # Workers ----------------------------------------------------------------------------------------

    def _of_worker(self, training: Training, worker: str, message: WantWork | Finish | Halt | Next) -> list[Wish]:
        book = training.book
        match message:
            case WantWork(turn=turn):
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
        return self._over(training)

    def _over(self, training: Training) -> list[Wish]:
        """If the epoch is over: that it is, to all who know where the shards are; the others hear it when they want."""
        if not training.book.is_over:
            return []
        workers = [worker for worker in training.workers if not self._is_strange(worker)]
        return [_send(workers, EpochOver(training.opened.call, training.book.epoch))]

    def _want(self, training: Training, worker: str, turn: int) -> list[Wish]:
        if (worker, turn) not in training.waiting and turn >= training.turns.get(worker, 0):
            training.waiting.append((worker, turn))
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
        training.pauses.pop(worker, None)
        training.book.paused = bool(training.pauses)
        training.waiting = [(other, turn) for other, turn in training.waiting if other != worker]

    def _of_saver(self, training: Training, worker: str, message: Pause | GoOn | CheckpointKept) -> None:
        match message:
            case Pause(number=number) if number >= training.paused.get(worker, 0):
                training.pauses.setdefault(worker, Pausing(number))
            case GoOn(number=number):
                training.paused[worker] = max(number + 1, training.paused.get(worker, 0))
                if worker in training.pauses and training.pauses[worker].number <= number:
                    del training.pauses[worker]
            case CheckpointKept(step=step):
                training.kept = max(step, training.kept or 0)
        training.book.paused = bool(training.pauses)

    def _at_rest(self, training: Training, worker: str) -> SendMessage:
        book, pause = training.book, training.pauses[worker]
        pause.is_told = True
        return _send((worker,), AtRest(training.opened.call, pause.number, book.epoch, len(book.counted)))

    def _deal(self, training: Training) -> list[Wish]:
        """Grant what may be granted, in the order in which workers asked; and tell who waits for it that all rests."""
        decisions: list[Wish] = []
        assert training.placement is not None
        for worker, turn in list(training.waiting):
            if training.clock.waits_for(worker):
                continue
            lease = training.book.lease_next(worker, self._now + self._lease)
            if lease is None:
                continue
            training.waiting.remove((worker, turn))
            training.turns[worker] = turn + 1
            number = training.clock.begin(worker)
            grant = Grant(training.opened.call, turn, lease.batch, number, training.placement.number)
            training.granted.setdefault(worker, []).append(grant)
            decisions.append(_send((worker,), grant))
        if training.book.rests:
            decisions += [self._at_rest(training, id) for id, pause in training.pauses.items() if not pause.is_told]
        return decisions


def _short(placement: Placement) -> list[int]:
    """The shards that one more loss could take."""
    return [view.shard for view in placement.views if len(view.backups) + 1 < placement.replicas]


def _observed(clock: StalenessClock) -> list[Wish]:
    """How stale the updates were, in a line."""
    total = sum(clock.observed.values())
    if not total:
        return []
    mean = sum(staleness * count for staleness, count in clock.observed.items()) / total
    bound = "none" if clock.bound is None else clock.bound
    return [
        SayToUser(
            f"{total} updates with a staleness of {mean:.1f} on average, {clock.stalest} at most (bound: {bound})"
        )
    ]


def _setback(setback: Setback, is_table: bool, kept: int | None, replicas: int) -> str:
    who = " and ".join(setback.lost) or "the last server"
    if is_table:
        rest = "its rows of a table " + ("begin anew" if kept is None else f"are those of step {kept}, from disk")
    else:
        state = "without its optimizer's state"
        if kept is not None:
            state = f"with its optimizer's state of step {kept}, from disk"
        rest = f"it goes on from the newest weights that a worker has, {state}"
    hint = ". With --replicas 2 nothing would have been lost" if replicas == 1 else ""
    return f"shard {setback.shard} was lost with {who}: {rest}{hint}"


def _send(to: Sequence[str] | Mapping[str, str], message: Message) -> SendMessage:
    return SendMessage(tuple(to), FROM_DIRECTOR.encode(message))

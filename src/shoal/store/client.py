"""A worker's part in one training with parameter servers: a thread that pulls and pushes while the worker computes.

The thread owns the connections and the updates that are going on. The worker's own thread takes what is ready to be
computed (`next`) and gives back gradients (`push`). With two updates granted at a time, the weights of the second
arrive while the first is computed: that is what a staleness of one buys.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np

from shoal.cluster.member import Seat
from shoal.errors import PeerTimeout
from shoal.store.batches import AVERAGES, END, REST, Batch
from shoal.store.codec import AbstractCodec, Encoder
from shoal.store.delivery import Delivery
from shoal.store.letters import (
    FROM_DIRECTOR,
    TO_DIRECTOR,
    AtRest,
    Close,
    EpochOver,
    Finish,
    GoOn,
    Grant,
    Halt,
    Kept,
    Next,
    Open,
    Pause,
    Placed,
    Want,
)
from shoal.store.links import Heard, Linked, Links
from shoal.store.look import Look, Question
from shoal.store.messages import Lacking, List, Listed, Pull, Pulled, Push, Pushed, Supply
from shoal.store.placement import Placement
from shoal.store.saves import AskToSave, Copied, Gathering, NotSaved, Saved
from shoal.store.tensors import AnyShapes, Array, RowShapes, Shapes
from shoal.store.update import Ask, Compute, Decision, Keep, Over, Update
from shoal.wire.keys import RunKey
from shoal.wire.messages import Message

_LOOK_AGAIN = 1.0  # seconds
_NO_IDS = np.empty(0, np.int64)
_NO_ROWS: Mapping[int, Array] = {}

Weights = list[Sequence[Array]]  # of every shard
Questions = Mapping[int, tuple[Pull | List, Sequence[Array]]]  # by shard; the arrays go beside


@dataclass(frozen=True, slots=True)
class Work:
    """An update to be computed: its batch, and the weights to compute it from."""

    batch: Batch
    weights: Weights


@dataclass(frozen=True, slots=True)
class LookUp:
    """An update that is going to be computed: say (`look_up`) which rows of tables its batch needs."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Every batch of the epoch is counted; these are the weights with all of them."""

    epoch: int
    weights: Weights


@dataclass(frozen=True, slots=True)
class Rest:
    """A pause that this worker asked for: these are the weights with exactly the first so many batches of the epoch."""

    number: int
    epoch: int
    counted: int
    weights: Weights


@dataclass(slots=True)
class _Slot:
    """An update that is going on."""

    update: Update
    numbers: list[int]  # more than one if its lease ended and this worker was granted it again
    asked: Mapping[int, Array] = field(default_factory=dict)  # by shard: ids of rows
    weights: dict[int, Sequence[Array]] = field(default_factory=dict)
    gradients: Sequence[Sequence[Array]] = ()


class Client:
    """One worker among the servers, from the beginning of a training to its end."""

    def __init__(
        self,
        me: str,
        call: int,
        seat: Seat,
        key: RunKey,
        shapes: Sequence[AnyShapes],
        initial: Weights | None,
        ahead: int,
        codec: AbstractCodec | None = None,
        patience: float = math.inf,
    ) -> None:
        """`initial`: for a server that has nothing to begin with; None if this worker has come late, and does not know.

        `ahead`: updates that go on at a time; 0 in synchronous training. `patience`: seconds for which servers that are
        there may leave a question unanswered.
        """
        self._tables = tuple(shard for shard, kind in enumerate(shapes) if isinstance(kind, RowShapes))
        self._me = me
        self._call = call
        self._seat = seat
        self._shapes = shapes
        # By shard: a version, and the weights then.
        self._newest: list[tuple[int, Sequence[Array]] | None] = [None] * len(shapes)
        if initial is not None:
            self._newest[: len(initial)] = [(0, weights) for weights in initial]  # tables come behind the others
        self._ahead = ahead
        self._encoder = Encoder(codec, shapes) if codec is not None else None
        self._placement: Placement | None = None
        self._here = False
        self._turn = 0
        self._slots: dict[Batch, _Slot] = {}
        self._granted: dict[Batch, list[tuple[int, int]]] = {}  # number and view, until its rows are known
        self._looks = 0  # how often rows were looked at beside training
        self._look: Look | None = None  # that is going on
        self.facts = b""  # with which the training was opened
        self._delivery: tuple[Delivery, Mapping[int, Sequence[Array]]] | None = None
        self._ended = -1  # the last epoch whose end was heard of
        self._pauses = 0  # that this worker has ended, or that ended with its being here
        self._pausing = False
        self._rest: AtRest | None = None
        self._questions = itertools.count()
        self._gathering: Gathering | None = None  # of a checkpoint
        self.observed: Counter[int] = Counter()  # staleness -> how many updates of this worker had it
        self._patience = patience
        self._heard = time.monotonic()  # something of a server, or of a new view
        self._letters: deque[bytes] = deque()
        self._todo: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()  # guards what follows
        self._ready: deque[Work | EpochEnd | LookUp | Rest] = deque()
        self._over: BaseException | None = None
        self._closing = False
        self._links = Links(me, key, self._land)
        self._thread = threading.Thread(target=self._run, name="shoal-store", daemon=True)
        self._thread.start()
        seat.read_with(self)

    # The worker's thread ----------------------------------------------------------------------------

    def next(self, waits: Callable[[str], None] = lambda for_what: None) -> Work | EpochEnd | LookUp | Rest:
        """What is to be done next. `waits` is told, when it takes long, what for. Raises what ended the run."""
        since = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._over is not None, _LOOK_AGAIN)
                if self._over is not None:
                    raise self._over
                if self._ready:
                    return self._ready.popleft()
            if self._slots:
                self._refuse_to_wait_longer(since)
            if time.monotonic() - since > _LOOK_AGAIN:
                waits(self._missing())

    def look_up(self, batch: Batch, asked: Mapping[int, Array]) -> None:
        """For an update of which a LookUp spoke: pull the weights, and these rows, by shard."""

        def begin() -> None:
            for number, view in self._granted.pop(batch, []):
                self._begin(batch, number, view, asked)

        self._do(begin)

    def look(self, epoch: int, asked: Mapping[int, Array], least: int = 0) -> dict[int, Array]:
        """These rows, by shard, as they are now, in this view or a later one."""
        self._looks += 1
        batch = Batch(epoch, REST - self._looks)
        questions = {shard: (Pull(shard, 0, batch, ids.size), [ids]) for shard, ids in asked.items()}
        answers = self._answers(questions, least)
        return {shard: arrays[0] for shard, (_, arrays) in answers.items()}

    def listed(self, shard: int) -> Iterator[tuple[Array, Array]]:
        """Ids and values of all rows of a part of a table that were ever updated, some at a time."""
        start, total = 0, 1
        while start < total:
            answer, (ids, rows) = self._answers({shard: (List(shard, 0, start), [])})[shard]
            assert isinstance(answer, Listed)
            yield ids, rows
            start, total = start + ids.size, answer.total

    def _answers(self, questions: Questions, least: int = 0) -> Mapping[int, tuple[Pulled | Listed, Sequence[Array]]]:
        look = Look(questions, least)

        def begin() -> None:
            self._look = look
            if self._placement is not None:
                self._inquire(look.take_views(self._placement.views))

        self._do(begin)
        self._await(lambda: look.is_over)
        return look.answers

    def push(self, batch: Batch, gradients: Sequence[Sequence[Array]], rate: float | None) -> None:
        """The gradients of an update, by shard; they are sent in the background and must stay as they are."""

        def computed() -> None:
            slot = self._slots.get(batch)
            if slot is not None:
                slot.gradients = [self._encoded(*parcel) for parcel in enumerate(gradients)]
                self._act(slot, slot.update.computed(rate))

        self._do(computed)

    def deliver(self, batch: Batch, parcels: Mapping[int, Sequence[Array]], rate: float | None) -> None:
        """For synchronous training: push an update to these shards; returns when they have applied it."""
        delivery = Delivery(batch, self._me, parcels, rate)

        def begin() -> None:
            before = self._delivery  # perhaps of the same, to other shards
            known = before[1] if before is not None and before[0].batch == batch else {}
            new = {shard: self._encoded(shard, parcel) for shard, parcel in parcels.items() if shard not in known}
            encoded = {**known, **new}
            self._delivery = (delivery, encoded)
            if self._placement is not None:
                self._ask(encoded, delivery.take_views(self._placement.views))

        self._do(begin)
        self._await(lambda: delivery.is_over)

    @property
    def view(self) -> int:
        """The newest view that was heard of."""
        return self._placement.number if self._placement is not None else 0

    def pull(self, epoch: int, view: int, place: int = END) -> Weights:
        """For synchronous training: the weights as they are in this view, or a later one."""
        self._do(partial(self._begin, Batch(epoch, place), None, view))
        self._await(lambda: bool(self._ready))
        with self._changed:
            end = self._ready.popleft()
        assert isinstance(end, EpochEnd)
        return end.weights

    def pull_averages(self, epoch: int) -> Weights:
        """After the last update: the weights as the optimizer leaves them to the model. Nothing else may go on."""
        return self.pull(epoch, self.view, AVERAGES)

    def _await(self, is_so: Callable[[], bool]) -> None:
        since = time.monotonic()
        with self._changed:
            while not self._changed.wait_for(lambda: is_so() or self._over is not None, _LOOK_AGAIN):
                self._refuse_to_wait_longer(since)
            if not is_so() and self._over is not None:
                raise self._over

    def _refuse_to_wait_longer(self, since: float) -> None:
        """Raises if servers that are there have been silent for too long."""
        silent = time.monotonic() - max(since, self._heard)
        servers = self._primaries()
        if servers is not None and silent > self._patience:
            raise PeerTimeout(
                servers,
                f"no answer of {' or '.join(servers)} for {silent:.0f} s, although they are in the run. `shoal status` "
                "shows what they are doing. If an update takes them so long, start the run with a larger --timeout.",
            )

    def _primaries(self) -> tuple[str, ...] | None:
        """Of whom answers come; None if that is not known, or a shard has no server."""
        views = self._placement.views if self._placement is not None else ()
        found = sorted({view.primary for view in views if view.primary is not None})
        return tuple(found) if views and all(view.primary is not None for view in views) else None

    def open(self, opened: Open) -> None:
        """For the chief: the training begins."""
        self._write(opened)

    def halt(self, epoch: int) -> None:
        """Let this epoch end with what is going on now."""
        self._write(Halt(self._call, epoch))

    def go_on(self, epoch: int, batches: int) -> None:
        """For the chief: everybody is done with the epoch before this one."""
        self._write(Next(self._call, epoch, batches))

    def finish(self) -> None:
        """For the chief: the training is over."""
        self._write(Close(self._call))

    @property
    def is_pausing(self) -> bool:
        """Whether this worker has asked for a pause, and not ended it."""
        return self._pausing

    def pause(self) -> None:
        """Let everything come to rest: `next` gives a Rest when it has. At the end of an epoch, in the next one."""
        with self._changed:
            self._pausing = True
            self._write(Pause(self._call, self._pauses))

    def end_pause(self) -> None:
        with self._changed:
            if self._pausing:
                self._write(GoOn(self._call, self._pauses))
                self._forget_pause()

    def save(self, what: bytes, first: int, rest: Rest | None = None) -> Gathering:
        """Have all servers write their shards, as parts from `first` on; returns when they have copied, or it failed.

        In asynchronous training, in the pause of this `rest`. `saved` tells what becomes of it.
        """
        gathering = Gathering(what, first, self._questions)

        def begin() -> None:
            self._gathering = gathering
            if rest is not None and (self._rest is None or self._rest.number != rest.number):
                gathering.fail("this worker was taken for lost")
            if self._placement is not None:
                self._ask_to_save(gathering.take_views(self._placement.views, self._placement.servers))

        self._do(begin)
        self._await(lambda: gathering.is_copied or gathering.is_over)
        return gathering

    def saved(self, gathering: Gathering, seconds: float = 0.0) -> list[bytes] | str | None:
        """What all servers have told of what they wrote, or why it failed; None if that is open after so long."""
        with self._changed:
            self._changed.wait_for(lambda: gathering.is_over or self._over is not None, seconds)
            return gathering.why or gathering.told

    def kept(self, step: int) -> None:
        """A checkpoint of this step is there."""
        self._write(Kept(self._call, step))

    def drained(self, seconds: float) -> bool:
        """Wait until all that was computed is acknowledged; asks for nothing more. What was not is another's then."""

        stopped = threading.Event()

        def stop() -> None:
            self._ahead = 0
            stopped.set()

        self._do(stop)
        until = time.monotonic() + seconds
        stopped.wait(seconds)  # the last push is on its way by then
        while (is_open := self._has_pushed()) and time.monotonic() < until and self._over is None:
            time.sleep(0.005)
        return not is_open

    def _has_pushed(self) -> bool:
        return any(slot.gradients for slot in list(self._slots.values()))

    def close(self) -> None:
        self._seat.read_with(None)
        with self._changed:
            self._closing = True
        self._links.poke()
        self._thread.join()
        self._links.close()

    def _do(self, what: Callable[[], None]) -> None:
        self._todo.append(what)
        self._links.poke()

    def _write(self, message: Message) -> None:
        self._seat.write(TO_DIRECTOR.encode(message))

    def _missing(self) -> str:
        placement = self._placement
        if placement is None:
            return "the servers to come"
        if not self._here:
            return "being let in"
        primaries = self._primaries()
        if primaries is None:
            return "a server to take the place of the lost ones"
        if not self._slots:
            return "its turn, so that no update is too stale, or for the end of the epoch"
        return f"answers of {', '.join(primaries)}"

    # The seat's thread ------------------------------------------------------------------------------

    def read(self, content: bytes) -> None:
        self._letters.append(content)
        self._links.poke()

    def over(self, why: BaseException) -> None:
        with self._changed:
            self._over = self._over or why
            self._changed.notify_all()
        self._links.poke()

    # The store's thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                for event in self._links.wait(_LOOK_AGAIN):
                    match event:
                        case Heard(peer, message, arrays):
                            self._heard = time.monotonic()
                            self._hear(peer, message, arrays)
                        case Linked(peer):
                            for slot in list(self._slots.values()):
                                self._act(slot, slot.update.reconnected(peer))
                            if self._delivery is not None:
                                delivery, parcels = self._delivery
                                self._ask(parcels, delivery.reconnected(peer))
                            if self._look is not None:
                                self._inquire(self._look.reconnected(peer))
                            if self._gathering is not None:
                                self._ask_to_save(self._gathering.reconnected(peer))
                while self._letters:
                    self._read(self._letters.popleft())
                while self._todo:
                    self._todo.popleft()()
        except BaseException as error:
            self.over(error)

    def _land(self, peer: str, message: Message) -> Shapes:
        if isinstance(message, Pulled | Listed) and 0 <= message.shard < len(self._shapes):
            shapes = self._shapes[message.shard]
            return shapes.pulled(message.rows) if isinstance(message, Pulled) else shapes.pushed(message.rows)
        return ()

    def _read(self, content: bytes) -> None:
        match FROM_DIRECTOR.decode(content):
            case Placed(call, placement, workers, addresses, facts) if call == self._call:
                self.facts = facts
                self._take(placement, self._me in workers, addresses)
            case Grant(call, _, batch, number, view) if call == self._call and self._here:
                if self._tables and batch not in self._slots:
                    self._ask_for_rows(batch, number, view)
                else:
                    self._begin(batch, number, view)
            case EpochOver(call, epoch) if call == self._call and epoch > self._ended:
                self._ended = epoch
                assert self._placement is not None
                self._begin(Batch(epoch, END), None, self._placement.number)
            case AtRest(call, number, epoch) as rest if call == self._call and self._here:
                if self._pausing and number == self._pauses and self._rest is None:
                    self._rest = rest
                    assert self._placement is not None
                    self._begin(Batch(epoch, REST), None, self._placement.number)

    def _take(self, placement: Placement, here: bool, addresses: dict[str, str]) -> None:
        self._placement, self._heard = placement, time.monotonic()
        primaries = {view.primary for view in placement.views if view.primary is not None}
        self._links.dial({id: addresses[id] for id in sorted(primaries) if id in addresses})
        if not here:
            self._here = False
            self._slots = {batch: slot for batch, slot in self._slots.items() if batch.place in (END, AVERAGES)}
            self._granted = {}
            with self._changed:
                if self._pausing:
                    self._forget_pause()  # as the director has
            if self._gathering is not None:
                self._gathering.fail("this worker was taken for lost")
            if self._ahead:
                self._seat.ready(self._call)  # it may come back
        elif not self._here:
            self._here = True
            for _ in range(self._ahead):
                self._want()
        for slot in list(self._slots.values()):
            self._act(slot, slot.update.take_views(placement.views))
        if self._delivery is not None:
            delivery, parcels = self._delivery
            self._ask(parcels, delivery.take_views(placement.views))
        if self._look is not None:
            self._inquire(self._look.take_views(placement.views))
        if self._gathering is not None:
            self._ask_to_save(self._gathering.take_views(placement.views, placement.servers))

    def _inquire(self, questions: Sequence[Question]) -> None:
        for question in questions:
            self._links.post(question.server, question.message, question.beside)

    def _ask_for_rows(self, batch: Batch, number: int, view: int) -> None:
        numbers = self._granted.setdefault(batch, [])
        if number not in [known for known, _ in numbers]:
            numbers.append((number, view))
        if len(numbers) == 1:
            with self._changed:
                self._ready.appendleft(LookUp(batch))  # before anything is computed: rows come meanwhile
                self._changed.notify_all()

    def _ask_to_save(self, asks: Sequence[AskToSave]) -> None:
        for ask in asks:
            self._links.post(ask.server, ask.message)
        with self._changed:
            self._changed.notify_all()  # it may have failed

    def _hear_of_save(self, answer: Copied | Saved | NotSaved) -> None:
        if self._gathering is not None:
            with self._changed:
                self._gathering.handle(answer)
                self._changed.notify_all()

    def _forget_pause(self) -> None:
        self._pausing, self._rest = False, None
        self._pauses += 1

    def _ask(self, parcels: Mapping[int, Sequence[Array]], asks: Sequence[Ask]) -> None:
        for ask in asks:
            parcel = parcels[ask.message.shard]
            rows = parcel[0].size if ask.message.shard in self._tables else 0
            self._links.post(ask.server, msgspec.structs.replace(ask.message, rows=rows), parcel)

    def _encoded(self, shard: int, arrays: Sequence[Array]) -> Sequence[Array]:
        return arrays if self._encoder is None else self._encoder.encode(shard, arrays)

    def _want(self) -> None:
        self._write(Want(self._call, self._turn))
        self._turn += 1

    def _begin(
        self,
        batch: Batch,
        number: int | None,
        view: int,
        asked: Mapping[int, Array] = _NO_ROWS,
    ) -> None:
        numbers = [] if number is None else [number]
        if batch in self._slots:
            self._slots[batch].numbers += [n for n in numbers if n not in self._slots[batch].numbers]
            return
        update = Update(batch, self._me, view, len(self._shapes))
        slot = self._slots[batch] = _Slot(update, numbers, asked)
        if self._placement is not None:
            self._act(slot, slot.update.take_views(self._placement.views))

    def _hear(self, peer: str, message: Message, arrays: Sequence[Array]) -> None:
        match message:
            case Copied() | Saved() | NotSaved():
                self._hear_of_save(message)
            case Pulled() | Pushed() if message.batch in self._slots:
                slot = self._slots[message.batch]
                self._act(slot, slot.update.handle(message), message, arrays)
            case Pushed() if self._delivery is not None and self._delivery[0].batch == message.batch:
                with self._changed:
                    self._delivery[0].handle(message)
                    self._changed.notify_all()
            case Pulled() | Listed() if self._look is not None:
                with self._changed:
                    self._look.handle(message, arrays)
                    self._changed.notify_all()
            case Lacking(shard, view) if (newest := self._newest[shard]) is not None:
                version, weights = newest
                self._links.post(peer, Supply(shard, view, version), weights)

    def _act(
        self,
        slot: _Slot,
        decisions: Sequence[Decision],
        message: Pulled | Pushed | None = None,
        arrays: Sequence[Array] = (),
    ) -> None:
        for decision in decisions:
            match decision:
                case Ask(server, asked):
                    self._links.post(server, *self._with_rows(slot, asked))
                case Keep(shard):
                    assert isinstance(message, Pulled)
                    slot.weights[shard] = arrays
                    if shard not in self._tables:
                        self._newest[shard] = (message.version, arrays)
                case Compute():
                    self._offer(slot)
                case Over(view, _, staleness):
                    del self._slots[slot.update.batch]
                    if staleness is not None:
                        self.observed[staleness] += 1
                    for number in slot.numbers:
                        self._write(Finish(self._call, slot.update.batch, number, view, staleness))
                        if self._ahead:
                            self._want()

    def _with_rows(self, slot: _Slot, asked: Pull | Push) -> tuple[Pull | Push, Sequence[Array]]:
        """What is asked, and what goes beside it."""
        shard = asked.shard
        if isinstance(asked, Push):
            beside = slot.gradients[shard]
        else:
            beside = [slot.asked.get(shard, _NO_IDS)] if shard in self._tables else ()
        rows = beside[0].size if shard in self._tables else 0
        return msgspec.structs.replace(asked, rows=rows), beside

    def _offer(self, slot: _Slot) -> None:
        batch = slot.update.batch
        weights = [slot.weights[shard] for shard in range(len(self._shapes))]
        with self._changed:
            if batch.place in (END, AVERAGES):
                del self._slots[batch]
                self._ready.append(EpochEnd(batch.epoch, weights))
            elif batch.place == REST:
                del self._slots[batch]
                if self._rest is not None:
                    self._ready.append(Rest(self._rest.number, batch.epoch, self._rest.counted, weights))
            else:
                self._ready.append(Work(batch, weights))
            self._changed.notify_all()

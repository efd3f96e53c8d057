"""A worker's part in one training with parameter servers: a thread that pulls and pushes while the worker computes.

The thread owns the connections. It tells the worker's state (decisions/worker_state.py) what comes in, and carries out
what that decides; all that is asked of servers is a request (decisions/requests.py), whichever it is.
The worker's own thread takes what is ready to be computed (`next`) and gives back gradients (`push`). With two updates
granted at a time, the weights of the second arrive while the first is computed: that is what a staleness of one buys.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.cluster.view import View
from shoal.codecs.codec import AS_THEY_ARE, AbstractCodec
from shoal.errors import CallOver, PeerTimeout
from shoal.observe.counters import Traffic
from shoal.store.decisions.delivery import Delivery
from shoal.store.decisions.director_messages import (
    FROM_DIRECTOR,
    TO_DIRECTOR,
    CheckpointKept,
    Close,
    Halt,
    Next,
    Open,
    ShardsPlaced,
)
from shoal.store.decisions.requests import AbstractRequest, Ask
from shoal.store.decisions.row_reads import RowRead
from shoal.store.decisions.saves import Gathering
from shoal.store.decisions.weights_read import ReadPurpose
from shoal.store.decisions.worker_state import (
    BatchWork,
    ComeBack,
    Offer,
    Rest,
    TellDirector,
    Todo,
    Weights,
    WorkerDecision,
    WorkerRole,
    WorkerState,
)
from shoal.store.links import Heard, Linked, Links
from shoal.store.values.encoding import Encoder
from shoal.store.values.ledger import Provenance
from shoal.store.values.messages import Lacking, List, Listed, Pull, Pulled, PullKind
from shoal.store.values.operations import Batch, Operation
from shoal.store.values.tensors import AnyShapes, Array, RowShapes, Shapes
from shoal.wire.keys import RunKey
from shoal.wire.messages import Message

_LOOK_AGAIN = 1.0  # seconds

AnyRequest = TypeVar("AnyRequest", bound=AbstractRequest)


class Client:
    """One worker among the servers, from the beginning of a training to its end."""

    def __init__(
        self,
        me: str,
        call: int,
        coordinator_link: CoordinatorLink,
        key: RunKey,
        shapes: Sequence[AnyShapes],
        initial: Weights | None,
        ahead: int,
        codec: AbstractCodec = AS_THEY_ARE,
        patience: float = math.inf,
        traffic: Traffic | None = None,
        observed: Counter[int] | None = None,
    ) -> None:
        """`initial`: for a server that has nothing to begin with; None if this worker has come late, and does not know.

        `ahead`: updates that go on at a time; 0 in synchronous training. `patience`: seconds for which servers that are
        there may leave a question unanswered. `observed`: staleness -> how many updates had it; is added to.
        """
        tables = frozenset(shard for shard, kind in enumerate(shapes) if isinstance(kind, RowShapes))
        self._me = me
        self._call = call
        self._coordinator_link = coordinator_link
        self._shapes = shapes
        self._encoder = Encoder(codec, shapes)
        self._in_hand: dict[Batch, BatchWork] = {}  # that the worker computes
        self._delivery: Delivery | None = None  # the last of `deliver`
        self._gathering: Gathering | None = None  # the last checkpoint's
        self._patience = patience
        self._heard = time.monotonic()  # something of a server, or of a new view
        self._unread: deque[bytes] = deque()
        self._todo: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()  # guards what follows
        self._state = WorkerState(WorkerRole(me, call, len(shapes), ahead, tables), observed)
        for shard, weights in enumerate(initial or ()):  # tables come behind the others
            self._state.newest[shard] = (0, weights)
        self._ready: deque[Todo] = deque()
        self._over: BaseException | None = None
        self._closing = False
        self._links = Links(me, key, self._land, traffic=traffic)
        self._thread = threading.Thread(target=self._run, name="shoal-store", daemon=True)
        self._thread.start()
        coordinator_link.read_with(self)

    # The worker's thread: updates -------------------------------------------------------------------

    def next(self, waits: Callable[[str], None] = lambda for_what: None) -> Todo:
        """What is to be done next. `waits` is told, when it takes long, what for. Raises what ended the run."""
        since = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._over is not None, _LOOK_AGAIN)
                if self._over is not None:
                    raise self._over
                if self._ready:
                    todo = self._ready.popleft()
                    if isinstance(todo, BatchWork):
                        self._in_hand[todo.batch] = todo
                    return todo
                missing = self._missing()
                if self._state.awaits_answers:
                    self._refuse_to_wait_longer(since)
            if time.monotonic() - since > _LOOK_AGAIN:
                waits(missing)

    def look_up(self, batch: Batch, asked: Mapping[int, Array]) -> None:
        """For an update of which a LookUp spoke: pull the weights, and these rows, by shard of a table."""
        self._do(lambda: self._perform(lambda: self._state.look_up(batch, asked)))

    def push(self, batch: Batch, gradients: Sequence[Sequence[Array]], rate: float | None) -> None:
        """The gradients of an update, by shard; they are sent in the background and must stay as they are."""
        work = self._in_hand.pop(batch)

        def computed() -> None:
            if self._state.is_granted(work):
                sent = {shard: self._encoder.encode(shard, arrays) for shard, arrays in enumerate(gradients)}
                self._perform(lambda: self._state.computed(work, sent, rate))

        self._do(computed)

    def drained(self, seconds: float) -> bool:
        """Wait until all that was computed is acknowledged; asks for nothing more. What was not is another's then."""
        stopped = threading.Event()

        def stop() -> None:
            self._state.want_no_more()
            stopped.set()

        self._do(stop)
        until = time.monotonic() + seconds
        stopped.wait(seconds)  # the last push is on its way by then
        with self._changed:
            left = max(0.0, until - time.monotonic())
            self._changed.wait_for(lambda: not self._state.has_pushed or self._over is not None, left)
            return not self._state.has_pushed

    def has_begun(self, epoch: int) -> bool:
        """Whether this worker was told to compute something of this epoch: others have gone on to it."""
        with self._changed:
            return self._state.has_begun(epoch)

    @property
    def observed(self) -> Counter[int]:
        """Staleness -> how many updates of this worker had it."""
        return self._state.observed

    # The worker's thread: requests ------------------------------------------------------------------

    def deliver(self, operation: Operation, parcels: Mapping[int, Sequence[Array]], rate: float | None) -> None:
        """For synchronous training, and for weights that are assigned: push it to these shards; returns when they have
        applied it.
        """
        update = Provenance(operation, self._me, {}, rate)

        def make() -> Delivery:
            encoded = self._encoder.encode_once(operation, parcels)
            parcel = self._state.parcel
            delivery = Delivery(operation, {shard: parcel(shard, update, sent) for shard, sent in encoded.items()})
            # It is kept when it is over: what a shard has acknowledged it may lose, before all others have too.
            self._perform(partial(self._state.begin, delivery, self._delivery))
            self._delivery = delivery
            return delivery

        self._wait_for(make)

    def look(self, asked: Mapping[int, Array], least: int = 0) -> dict[int, Array]:
        """These rows, by shard, as they are now, in this view or a later one."""
        number = next(self._state.numbers)
        questions = {shard: (Pull(shard, 0, number, rows=ids.size), [ids]) for shard, ids in asked.items()}
        answers = self._answered(RowRead(questions, least)).answers
        return {shard: arrays[0] for shard, (_, arrays) in answers.items()}

    def listed(self, shard: int) -> Iterator[tuple[Array, Array]]:
        """Ids and values of all rows of a part of a table that were ever updated, some at a time."""
        start, total = 0, 1
        while start < total:
            answer, (ids, rows) = self._answered(RowRead({shard: (List(shard, 0, start), [])})).answers[shard]
            assert isinstance(answer, Listed)
            yield ids, rows
            start, total = start + ids.size, answer.total

    def pull(self, view: int) -> Weights:
        """The weights as they are in this view, or a later one."""
        return self._answered(self._state.weights_read(ReadPurpose(view))).weights

    def pull_averages(self) -> Weights:
        """After the last update: the weights as the optimizer leaves them to the model."""
        return self._answered(self._state.weights_read(ReadPurpose(self.view, PullKind.AVERAGES))).weights

    def offer(self, weights: Weights) -> None:
        """For one who came late to synchronous training, and has the weights from another worker: servers that have
        lost a shard, or never had it, may ask for it.
        """
        self._do(lambda: self._state.offer(weights))

    def save(self, what: bytes, first: int, rest: Rest | None = None) -> Gathering:
        """Have all servers write their shards, as parts from `first` on; returns when they have copied, or it failed.

        In asynchronous training, in the pause of this `rest`. `saved` tells what becomes of it.
        """

        def make() -> Gathering:
            gathering = Gathering(what, first, self._state.numbers)
            if rest is not None and not self._state.rests(rest):
                gathering.fail("this worker was taken for lost")
            self._perform(partial(self._state.begin, gathering, self._gathering))
            self._gathering = gathering
            return gathering

        return self._wait_for(make, lambda gathering: gathering.is_copied or gathering.is_over)

    def saved(self, gathering: Gathering, seconds: float = 0.0) -> list[bytes] | str | None:
        """What all servers have told of what they wrote, or why it failed; None if that is open after so long."""
        with self._changed:
            self._changed.wait_for(lambda: gathering.is_over or self._over is not None, seconds)
            return gathering.why or gathering.told

    def _answered(self, request: AnyRequest) -> AnyRequest:
        """The request, when it is over; then it is let go."""

        def make() -> AnyRequest:
            self._perform(lambda: self._state.begin(request))
            return request

        try:
            return self._wait_for(make)
        finally:
            self._do(lambda: self._state.drop(request))

    def _wait_for(
        self, make: Callable[[], AnyRequest], is_enough: Callable[[AnyRequest], bool] = lambda request: request.is_over
    ) -> AnyRequest:
        """Has the store's thread begin a request, and returns it when it has come so far."""
        made: list[AnyRequest] = []

        def begin() -> None:
            request = make()
            with self._changed:
                made.append(request)
                self._changed.notify_all()

        def has_come() -> bool:
            return bool(made) and is_enough(made[0])

        self._do(begin)
        since = time.monotonic()
        with self._changed:
            while not self._changed.wait_for(lambda: has_come() or self._over is not None, _LOOK_AGAIN):
                self._refuse_to_wait_longer(since)
            if self._over is not None and not has_come():
                raise self._over
            return made[0]

    def _refuse_to_wait_longer(self, since: float) -> None:
        """Raises if servers that are there have been silent for too long."""
        silent = time.monotonic() - max(since, self._heard)
        servers = self._state.primaries()
        if servers is not None and silent > self._patience:
            raise PeerTimeout(
                servers,
                f"no answer of {' or '.join(servers)} for {silent:.0f} s, although they are in the run. `shoal status` "
                "shows what they are doing. If an update takes them so long, start the run with a larger --timeout.",
            )

    def _missing(self) -> str:
        state = self._state
        if state.placement is None:
            return "the servers to come"
        if not state.is_here:
            return "being let in"
        primaries = state.primaries()
        if primaries is None:
            return "a server to take the place of the lost ones"
        if not state.awaits_answers:
            return "its turn, so that no update is too stale, or for the end of the epoch"
        return f"answers of {', '.join(primaries)}"

    # The worker's thread: what the director is told -------------------------------------------------

    @property
    def view(self) -> int:
        """The newest view that was heard of."""
        return self._state.view

    @property
    def facts(self) -> bytes:
        """With which the training was opened."""
        return self._state.facts

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

    def kept(self, step: int) -> None:
        """A checkpoint of this step is there."""
        self._write(CheckpointKept(self._call, step))

    @property
    def is_pausing(self) -> bool:
        """Whether this worker has asked for a pause, and not ended it."""
        return self._state.is_pausing

    def pause(self) -> None:
        """Let everything come to rest: `next` gives a Rest when it has. At the end of an epoch, in the next one."""
        number = self._state.pauses
        self._perform(self._state.pause)
        if self._state.pauses > number:  # taken for lost meanwhile: the director has forgotten the pause, or is to
            self._perform(lambda: [self._state.gone_on(number)])

    def end_pause(self) -> None:
        self._perform(self._state.end_pause)

    def close(self) -> None:
        self._coordinator_link.read_with(None)
        with self._changed:
            self._closing = True
        self._links.poke()
        self._thread.join()
        self._links.close()

    def _do(self, what: Callable[[], None]) -> None:
        self._todo.append(what)
        self._links.poke()

    # The thread of the link to the coordinator ------------------------------------------------------

    def read(self, content: bytes) -> None:
        self._unread.append(content)
        self._links.poke()

    def take(self, view: View) -> None:
        if view.call > self._call:  # the others have left this training with an error
            self._do(partial(self.over, CallOver()))

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
                        case Heard():
                            if not isinstance(event.message, Lacking):  # which is a question
                                self._heard = time.monotonic()
                            self._perform(partial(self._state.hear, event.peer, event.message, event.arrays))
                        case Linked(peer):
                            self._perform(partial(self._state.reconnected, peer))
                while self._unread:
                    self._read(FROM_DIRECTOR.decode(self._unread.popleft()))
                while self._todo:
                    self._todo.popleft()()
        except BaseException as error:
            self.over(error)

    def _land(self, peer: str, message: Message) -> Shapes:
        if isinstance(message, Pulled | Listed) and 0 <= message.shard < len(self._shapes):
            shapes = self._shapes[message.shard]
            return shapes.pulled(message.rows) if isinstance(message, Pulled) else shapes.pushed(message.rows)
        return ()

    def _read(self, message: Message) -> None:
        if isinstance(message, ShardsPlaced) and message.call == self._call:
            self._heard = time.monotonic()
            primaries = {view.primary for view in message.placement.views if view.primary is not None}
            self._links.dial({id: message.addresses[id] for id in sorted(primaries) if id in message.addresses})
        self._perform(lambda: self._state.read(message))

    def _perform(self, decide: Callable[[], Sequence[WorkerDecision]]) -> None:
        """Carries out what the state decides. Of the worker's own thread, only what it says to the director."""
        with self._changed:
            decisions = decide()
            for decision in decisions:
                if isinstance(decision, Offer):
                    (self._ready.appendleft if decision.first else self._ready.append)(decision.todo)
            self._changed.notify_all()
        for decision in decisions:
            match decision:
                case Ask(server, message, beside):
                    self._links.post(server, message, beside)
                case TellDirector(message):
                    self._write(message)
                case ComeBack():
                    self._coordinator_link.ready(self._call)

    def _write(self, message: Message) -> None:
        self._coordinator_link.write(TO_DIRECTOR.encode(message))

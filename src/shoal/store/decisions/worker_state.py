"""One worker's part in a training with parameter servers: its turns, updates and pauses, and all that it asks. Pure.

The director's messages, servers' answers and the worker's own words come in, decisions come out. The shell (client.py)
carries them out in order.

    Grant ──▶ WeightsRead ··over··▶ BatchWork ──computed──▶ Delivery ··over··▶ Finish, and WantWork again
    EpochOver ──▶ WeightsRead ··over··▶ EpochEnd
    AtRest ──▶ WeightsRead ··over··▶ Rest

- With tables, a Grant first becomes a LookUp: the rows that a batch needs are known only from the batch.
- A worker that is not in a view does not speak in it: it gives up its updates and its pause, and comes back as a
  newcomer. What it computes for an update that it has given up counts for nothing, also when it is granted it again.
- A grant may be told again, by a director that takes over. It is heeded once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal.store.decisions.delivery import Delivery, Parcel
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
from shoal.store.decisions.placement import Placement
from shoal.store.decisions.requests import AbstractRequest, Ask, KeepNewest, RequestDecision
from shoal.store.decisions.weights_read import ReadPurpose, WeightsRead
from shoal.store.values.ledger import Provenance
from shoal.store.values.messages import Lacking, Supply, VersionAsked, VersionSeen
from shoal.store.values.operations import Batch
from shoal.wire.messages import Message

_NO_IDS = np.empty(0, np.int64)
_NO_ROWS: Mapping[int, Any] = {}

Weights = list[Sequence[Any]]  # of every shard


# What a worker is to do -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchWork:
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


Todo = BatchWork | EpochEnd | LookUp | Rest


# What follows from what it hears --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TellDirector:
    """Send this to the director."""

    message: Message


@dataclass(frozen=True, slots=True)
class Offer:
    """Let the worker do this: `first`, before all else that it could do."""

    todo: Todo
    first: bool = False


@dataclass(frozen=True, slots=True)
class ComeBack:
    """Tell the coordinator that this worker could be let in again."""


WorkerDecision = Ask | TellDirector | Offer | ComeBack


@dataclass(slots=True, eq=False)
class _Granted:
    """An update that was granted to this worker: first its weights are read, at last it is delivered."""

    view: int  # in which it was granted
    numbers: list[int] = field(default_factory=list)  # several, if its lease ended and this worker was granted it again
    read: WeightsRead | None = None
    work: BatchWork | None = None
    delivery: Delivery | None = None


@dataclass(frozen=True, slots=True)
class WorkerRole:
    """Who a worker is in a training."""

    me: str
    call: int
    shards: int
    ahead: int  # updates that go on at a time; 0 in synchronous training
    tables: frozenset[int] = frozenset()  # the shards that are parts of tables


class WorkerState:
    """What one worker knows of a training, and what goes on. For one thread at a time."""

    def __init__(self, role: WorkerRole, observed: Counter[int] | None = None) -> None:
        """`observed` is added to: staleness -> how many updates of this worker had it."""
        self._role = role
        self._ahead = role.ahead
        self._turn = 0
        self._wanted: set[int] = set()  # turns that were asked for, and not granted yet
        self._updates: dict[Batch, _Granted] = {}
        # What goes on; and what is to be done when it is over. None: it stays until it is dropped, since a shard that
        # is lost may need it again.
        self._requests: dict[AbstractRequest, Callable[[], None] | None] = {}
        self._ended = -1  # the last epoch whose end was heard of
        self._rest: AtRest | None = None
        self._out: list[WorkerDecision] = []
        self.numbers = itertools.count()  # of questions
        self.placement: Placement | None = None
        self.is_here = False
        self.is_pausing = False
        self.pauses = 0  # that this worker has ended, or that ended with its being here
        self.facts = b""  # with which the training was opened
        self.newest: dict[int, tuple[int, Sequence[Any]]] = {}  # by shard: a version, and the weights then
        self._version_asked: dict[int, tuple[str, VersionAsked]] = {}  # by shard: who wants to know which is the newest
        self.observed: Counter[int] = observed if observed is not None else Counter()

    @property
    def view(self) -> int:
        """The newest view that was heard of."""
        return self.placement.number if self.placement is not None else 0

    @property
    def awaits_answers(self) -> bool:
        """Whether an update, or the end of an epoch, waits for servers."""
        return any(then is not None for then in self._requests.values())

    @property
    def has_pushed(self) -> bool:
        """Whether something that it has computed is not acknowledged yet."""
        return any(update.delivery is not None for update in self._updates.values())

    def has_begun(self, epoch: int) -> bool:
        """Whether a batch of this epoch was granted to it, or the epoch is over already."""
        return self._ended >= epoch or any(batch.epoch >= epoch for batch in self._updates)

    def primaries(self) -> tuple[str, ...] | None:
        """Of whom answers come; None if that is not known, or a shard has no server."""
        found = [view.primary for view in self.placement.views] if self.placement is not None else []
        known = sorted({primary for primary in found if primary is not None})
        return tuple(known) if found and None not in found else None

    # What it is told --------------------------------------------------------------------------------

    def read(self, message: Message) -> list[WorkerDecision]:
        """The director has said this."""
        match message:
            case ShardsPlaced(call, placement, workers, _, facts) if call == self._role.call:
                self.facts = facts
                self._enter_view(placement, self._role.me in workers)
            case Grant(call, turn, batch, number, view) if call == self._role.call and turn in self._wanted:
                self._wanted.remove(turn)
                self._begin(batch, number, view)
            case EpochOver(call, epoch) if call == self._role.call and epoch > self._ended:
                assert self.placement is not None, f"epoch {epoch} is over, and nobody has said where the shards are"
                self._ended = epoch
                read = self.weights_read(ReadPurpose(self.view))
                self._carry(read, lambda: self._out.append(Offer(EpochEnd(epoch, read.weights))))
            case AtRest(call, number) if call == self._role.call and self.is_here:
                if self.is_pausing and number == self.pauses and self._rest is None:
                    self._rest = message
                    rest = self.weights_read(ReadPurpose(self.view, ends_with_loss=True))
                    self._carry(rest, lambda: self._offer_rest(message, rest.weights))
        return self._decided()

    def hear(self, server: str, message: Message, beside: Sequence[Any]) -> list[WorkerDecision]:
        match message:
            case VersionAsked():
                self._version_asked[message.shard] = (server, message)
                self._tell_versions()
            case Lacking(shard, view) if shard in self.newest:
                version, weights = self.newest[shard]
                self._out.append(Ask(server, Supply(shard, view, version), weights))
            case _:
                self._tell_all(lambda request: request.hear(message, beside))
        return self._decided()

    def reconnected(self, server: str) -> list[WorkerDecision]:
        """The connection to this server was made anew."""
        self._tell_all(lambda request: request.reconnected(server))
        return self._decided()

    # What the worker wants --------------------------------------------------------------------------

    def weights_read(self, purpose: ReadPurpose) -> WeightsRead:
        """To be begun."""
        rows = {shard: purpose.rows.get(shard, _NO_IDS) for shard in self._role.tables}
        return WeightsRead(next(self.numbers), self._role.shards, replace(purpose, rows=rows))

    def begin(self, request: AbstractRequest, instead_of: AbstractRequest | None = None) -> list[WorkerDecision]:
        """From now on the request is told what happens, until another is begun in its place, or it is dropped."""
        if instead_of is not None:
            self.drop(instead_of)
        self._carry(request, None)
        return self._decided()

    def drop(self, request: AbstractRequest) -> None:
        self._requests.pop(request, None)

    def offer(self, weights: Weights) -> None:
        """What this worker has, for a server that has nothing; where it has pulled nothing newer yet."""
        for shard, arrays in enumerate(weights):
            self.newest.setdefault(shard, (0, arrays))

    def look_up(self, batch: Batch, asked: Mapping[int, Any]) -> list[WorkerDecision]:
        """For an update of which a LookUp spoke: these rows are needed, by shard of a table."""
        self._read_for(batch, asked)
        return self._decided()

    def is_granted(self, work: BatchWork) -> bool:
        """Whether this, as it was offered, is still to be computed by this worker."""
        update = self._updates.get(work.batch)
        return update is not None and update.work is work

    def computed(
        self, work: BatchWork, gradients: Mapping[int, Sequence[Any]], rate: float | None
    ) -> list[WorkerDecision]:
        """The gradients of an update that is still granted, by shard, as they are to travel."""
        update = self._updates[work.batch]
        assert update.read is not None, "it was offered"
        parcels = {
            shard: self.parcel(shard, Provenance(work.batch, self._role.me, update.read.seen[shard], rate), arrays)
            for shard, arrays in gradients.items()
        }
        delivery = update.delivery = Delivery(work.batch, parcels, ends_with_loss=True)
        self._carry(delivery, lambda: self._finish(work.batch, update.numbers, delivery))
        return self._decided()

    def parcel(self, shard: int, update: Provenance, arrays: Sequence[Any]) -> Parcel:
        return Parcel(update, arrays, arrays[0].size if shard in self._role.tables else 0)

    def want_no_more(self) -> None:
        """This worker is to leave: it asks for no turn any more."""
        self._ahead = 0

    def pause(self) -> list[WorkerDecision]:
        """Let everything come to rest: a Rest is offered when it has."""
        self.is_pausing = True
        return [TellDirector(Pause(self._role.call, self.pauses))]

    def end_pause(self) -> list[WorkerDecision]:
        if not self.is_pausing:
            return []
        self._forget_pause()
        return [self.gone_on(self.pauses - 1)]

    def gone_on(self, number: int) -> TellDirector:
        """What tells the director that the pause of this number is over."""
        return TellDirector(GoOn(self._role.call, number))

    def rests(self, rest: Rest) -> bool:
        """Whether the pause that this is of is still going on."""
        return self._rest is not None and self._rest.number == rest.number

    # Views ------------------------------------------------------------------------------------------

    def _enter_view(self, placement: Placement, here: bool) -> None:
        self.placement = placement
        if not here:
            self._give_up()
        elif not self.is_here:
            self.is_here = True
            for _ in range(self._ahead):
                self._want()
        self._tell_versions()
        self._tell_all(lambda request: request.take_view(placement))

    def _tell_versions(self) -> None:
        """Once this worker is in the view in which it was asked: until then it may hear from the lost one, too."""
        for shard, (server, asked) in list(self._version_asked.items()):
            if asked.view <= self.view:
                del self._version_asked[shard]
                version, _ = self.newest.get(shard, (None, ()))
                self._out.append(Ask(server, VersionSeen(shard, asked.view, version)))

    def _give_up(self) -> None:
        """The others have taken this worker for lost: what it was granted is another's."""
        self.is_here = False
        self._wanted.clear()
        self._updates.clear()
        self._requests = {request: then for request, then in self._requests.items() if request.outlasts_loss()}
        if self.is_pausing:
            self._forget_pause()  # as the director has
        if self._ahead:
            self._out.append(ComeBack())

    def _forget_pause(self) -> None:
        self.is_pausing, self._rest = False, None
        self.pauses += 1

    def _want(self) -> None:
        self._wanted.add(self._turn)
        self._out.append(TellDirector(WantWork(self._role.call, self._turn)))
        self._turn += 1

    # Requests ---------------------------------------------------------------------------------------

    def _carry(self, request: AbstractRequest, then: Callable[[], None] | None) -> None:
        self._requests[request] = then
        if self.placement is not None:
            self._heed(request, request.take_view(self.placement))

    def _tell_all(self, event: Callable[[AbstractRequest], Sequence[RequestDecision]]) -> None:
        for request in list(self._requests):
            if request in self._requests:
                self._heed(request, event(request))

    def _heed(self, request: AbstractRequest, decisions: Sequence[RequestDecision]) -> None:
        for decision in decisions:
            match decision:
                case Ask():
                    self._out.append(decision)
                case KeepNewest(shard, version, weights):
                    self.newest[shard] = (version, weights)
        if request.is_over and (then := self._requests[request]) is not None:
            del self._requests[request]
            then()

    def _decided(self) -> list[WorkerDecision]:
        decided, self._out = self._out, []
        return decided

    # Updates ----------------------------------------------------------------------------------------

    def _begin(self, batch: Batch, number: int, view: int) -> None:
        is_new = batch not in self._updates
        update = self._updates.setdefault(batch, _Granted(view))
        if number not in update.numbers:
            update.numbers.append(number)
        if is_new and self._role.tables:
            self._out.append(Offer(LookUp(batch), first=True))  # the rows come while something else is computed
        elif is_new:
            self._read_for(batch, _NO_ROWS)

    def _read_for(self, batch: Batch, asked: Mapping[int, Any]) -> None:
        update = self._updates.get(batch)
        if update is None or update.read is not None:
            return
        read = update.read = self.weights_read(ReadPurpose(update.view, rows=asked, ends_with_loss=True))

        def came() -> None:
            update.work = BatchWork(batch, read.weights)
            self._out.append(Offer(update.work))

        self._carry(read, came)

    def _finish(self, batch: Batch, numbers: Sequence[int], delivery: Delivery) -> None:
        del self._updates[batch]
        staleness = delivery.staleness
        if staleness is not None:
            self.observed[staleness] += 1
        for number in numbers:
            self._out.append(TellDirector(Finish(self._role.call, batch, number, delivery.view, staleness)))
            if self._ahead:
                self._want()

    def _offer_rest(self, rest: AtRest, weights: Weights) -> None:
        if self._rest is rest:
            self._out.append(Offer(Rest(rest.number, rest.epoch, rest.counted, weights)))

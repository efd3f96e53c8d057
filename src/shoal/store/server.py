"""A server's part in one training: a loop around its replicas' decisions.

One thread does everything. While a shard is updated nothing else happens on this server: what arrives waits in the
sockets. Servers on other cores go on meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.cluster.view import View
from shoal.codecs.codec import AS_THEY_ARE, AbstractCodec
from shoal.observe.phases import Phase
from shoal.store.decisions.director_messages import FROM_DIRECTOR, TO_DIRECTOR, Serve, ShardsPlaced, TrainingClosed
from shoal.store.decisions.lost_shard import LostShard
from shoal.store.decisions.placement import ShardView
from shoal.store.decisions.replica import (
    NOTHING,
    ApplyUpdate,
    Decision,
    Digest,
    Drop,
    Give,
    GoBack,
    Load,
    Replica,
    ReportReplica,
    TellMember,
)
from shoal.store.decisions.saves import Save, SaveQueue, ShardWriter
from shoal.store.links import Heard, Linked, Links
from shoal.store.values.encoding import decode, travelling
from shoal.store.values.ledger import Ledger, Provenance
from shoal.store.values.messages import (
    Listed,
    Order,
    Point,
    Pull,
    Pulled,
    PullKind,
    Push,
    ShardMessage,
    Supply,
    Transfer,
    VersionSeen,
)
from shoal.store.values.operations import Assignment, Batch
from shoal.store.values.tensors import AnyShapes, Array, RowShapes, Shapes, ShardShapes, Tensors
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.messages import Message

_LOOK_AGAIN = 1.0  # seconds
_LOOK_SOON = 0.05  # while a part of a checkpoint is being written, or a lost shard is looked for: all wait for it


class KeptShard(NamedTuple):
    """A shard that a server has."""

    point: Point
    tensors: Tensors


class Server:
    """One server, from the moment that its script has come to a training until that is over."""

    def __init__(
        self,
        me: str,
        call: int,
        coordinator_link: CoordinatorLink,
        listener: Listener,
        key: RunKey,
        shapes: Sequence[AnyShapes],
        make: Callable[[int], Tensors],
        scales: bool = False,
        kept: Mapping[int, KeptShard] = MappingProxyType({}),
        codec: AbstractCodec = AS_THEY_ARE,
        shard_writer: ShardWriter | None = None,
        ledger: Ledger = Ledger(),  # noqa: B008 (a value)
    ) -> None:
        """`make` makes a shard's tensors from the script's model. `scales`: stale updates count less.

        `kept`: shards that this server has from trainings before this one. `shard_writer` writes checkpoints. `ledger`:
        what a shard remembers that begins from a worker's weights.
        """
        self._me = me
        self._call = call
        self._coordinator_link = coordinator_link
        self._shapes = shapes
        self._make = make
        self._scales = scales
        self._codec = codec
        self._tensors = {shard: about.tensors for shard, about in kept.items()}  # of the shards that it holds
        points = {shard: about.point for shard, about in kept.items()}
        self._replicas = [Replica(shard, me, point=points.get(shard, NOTHING)) for shard in range(len(shapes))]
        self._lacking: dict[int, LostShard] = {}
        self._workers: tuple[str, ...] = ()  # that take part in the training
        self._began = 0  # the training's first view
        self._unread: deque[bytes] = deque()
        self._over: BaseException | None = None
        self._closed = False
        self._ledger = ledger
        self._links = Links(me, key, self._land, listener)
        self._save_queue = SaveQueue(self._replicas, self._of, shard_writer, self._links.post)
        self.applied = 0  # updates, of all shards
        self._observed: Counter[int] = Counter()
        self._record: Callable[[Phase, str, int], None] = lambda phase, detail, step: None
        coordinator_link.read_with(self)

    def serve(
        self,
        record: Callable[[Phase, str, int], None] = lambda phase, detail, step: None,
        observed: Counter[int] | None = None,
    ) -> None:
        """Until the training is over; raises what ended the run, if that comes first.

        `observed` is added to: staleness -> how many updates had it when they were applied.
        """
        self._coordinator_link.write(TO_DIRECTOR.encode(Serve(self._call)))
        self._record = record
        self._observed = observed if observed is not None else self._observed
        record(Phase.SERVING, "", 0)
        while not self._closed:
            for event in self._links.wait(_LOOK_SOON if self._is_waited_for() else _LOOK_AGAIN):
                match event:
                    case Heard(peer, message, arrays):
                        self._hear(peer, message, arrays)
                    case Linked(peer):
                        for replica in self._replicas:
                            self._perform(replica, replica.reconnected(peer))
                        for lost in self._lacking.values():
                            lost.reconnected(peer)
            self._read_all()
            self._ask_lacking()
            self._save_queue.look(self._lacking)

    def _is_waited_for(self) -> bool:
        return self._save_queue.is_writing or any(lost.is_comparing for lost in self._lacking.values())

    def kept(self) -> dict[int, KeptShard]:
        """All that it has, for trainings after this one."""
        return {shard: KeptShard(self._replicas[shard].standing, tensors) for shard, tensors in self._tensors.items()}

    def close(self) -> None:
        self._coordinator_link.read_with(None)
        self._links.close()

    # The thread of the link to the coordinator ------------------------------------------------------

    def read(self, content: bytes) -> None:
        self._unread.append(content)
        self._links.poke()

    def take(self, view: View) -> None:
        pass  # the director tells what follows

    def over(self, why: BaseException) -> None:
        self._over = why
        self._links.poke()

    # What comes in ----------------------------------------------------------------------------------

    def _read_all(self) -> None:
        if self._over is not None:
            raise self._over
        while self._unread:
            match FROM_DIRECTOR.decode(self._unread.popleft()):
                case ShardsPlaced(call, placement, workers, addresses) if call == self._call:
                    self._workers, self._began = workers, placement.began
                    # One of two dials: the one that came later.
                    older = addresses if self._me not in addresses else _before(self._me, addresses)
                    self._links.dial({id: addresses[id] for id in older})
                    for view in placement.views:
                        self._take_view(view)
                    for view in placement.views:
                        if self._me in view.holders:
                            self._of(view.shard)  # takes a while: before it is counted for any of them
                case TrainingClosed(call) if call == self._call:
                    self._closed = True

    def _take_view(self, view: ShardView) -> None:
        replica = self._replicas[view.shard]
        lost = self._lacking.pop(view.shard, None) if view.number > replica.view else None
        self._perform(replica, replica.take_view(view))
        if lost is not None:
            self._hear_all(lost.waiting)  # who heard of this view before has said it in it already

    def _hear_all(self, waiting: Sequence[tuple[str, ShardMessage, Sequence[Array]]]) -> None:
        for peer, message, beside in waiting:
            self._hear(peer, message, beside)

    def _land(self, peer: str, message: Message) -> Shapes:
        """What should come beside a message."""
        if not isinstance(message, ShardMessage) or not 0 <= message.shard < len(self._shapes):
            return ()
        shapes = self._shapes[message.shard]
        match message:
            case Pull(rows=rows):
                return shapes.asked(rows)
            case Push(update=Provenance(Assignment())) | Order(update=Provenance(Assignment())):
                return shapes.assigned if isinstance(shapes, ShardShapes) else ()
            case Push(rows=rows) | Order(rows=rows):
                return travelling(self._codec, shapes, rows)
            case Supply():
                return shapes.pulled(0)
            case Transfer(rows=rows):
                return self._of(message.shard).state_shapes(rows)
            case _:
                return ()

    def _hear(self, peer: str, message: Message, arrays: Sequence[Array]) -> None:
        if isinstance(message, Save) and all(0 <= shard < len(self._shapes) for shard in message.shards):
            self._save_queue.hear(peer, message)
        if not isinstance(message, ShardMessage) or not 0 <= message.shard < len(self._shapes):
            return  # nobody who means well says that
        lost = self._lacking.get(message.shard)
        is_sought = lost is not None and message.view == lost.view  # else the answer of one more that was asked
        match message:
            case Supply():
                if is_sought:
                    self._supply(message, arrays)
            case VersionSeen():
                if lost is not None and is_sought:
                    lost.hear(peer, message)
            case _ if lost is not None:
                lost.waiting.append((peer, message, arrays))
            case _:
                replica = self._replicas[message.shard]
                self._perform(replica, replica.handle(peer, message, arrays))

    # A shard that nobody has ------------------------------------------------------------------------

    def _ask_lacking(self) -> None:
        for lost in self._lacking.values():
            for worker, message in lost.next(self._links.is_linked, time.monotonic()):
                self._links.post(worker, message)

    def _supply(self, supply: Supply, arrays: Sequence[Array]) -> None:
        lost = self._lacking.pop(supply.shard)
        self._of(supply.shard).set_weights(arrays)
        replica = self._replicas[supply.shard]
        self._perform(replica, replica.restored(supply.version, self._ledger))
        self._hear_all(lost.waiting)

    # What a replica decides -------------------------------------------------------------------------

    def _perform(self, replica: Replica, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            self._act(replica, decision)

    def _act(self, replica: Replica, decision: Decision) -> None:
        match decision:
            case TellMember(to, message, beside):
                self._links.post(to, message, beside if isinstance(beside, list) else ())
            case Give(to, message, asked):
                self._give(to, message, asked if isinstance(asked, list) else [])
            case ReportReplica(message):
                self._coordinator_link.write(TO_DIRECTOR.encode(message))
            case ApplyUpdate(_, Provenance(Assignment()), _, weights):
                assert isinstance(weights, list)
                self._of(replica.shard).assign(weights)
            case ApplyUpdate(_, Provenance(Batch() as batch, rate=rate), staleness, gradients):
                assert isinstance(gradients, list)
                self._record(Phase.APPLYING, f"{batch.title}: shard {replica.shard}", self.applied)
                gradients = decode(self._codec, gradients, self._shapes[replica.shard])
                scale = 1.0 / (1 + staleness) if self._scales else 1.0
                self._of(replica.shard).apply(batch.epoch, gradients, rate, scale)
                self.applied += 1
                self._observed[staleness] += 1
                self._record(Phase.SERVING, "", self.applied)
            case Load(_, state):
                assert isinstance(state, list)
                self._of(replica.shard).load(state)
            case Digest(point):
                self._perform(replica, replica.digested(point, self._of(replica.shard).digest()))
            case GoBack() if isinstance(self._shapes[replica.shard], RowShapes):
                self._of(replica.shard).set_weights(())  # no worker has its rows
                self._perform(replica, replica.restored(0, self._ledger))
            case GoBack():
                who_may_know = self._workers if replica.origin > self._began else ()
                self._lacking[replica.shard] = LostShard(replica.shard, replica.view, who_may_know, time.monotonic())
                self._hear_all(
                    [  # it is they who may have the shard
                        (peer, message, beside if isinstance(beside, list) else [])
                        for peer, message, beside in replica.take_held()
                    ]
                )
            case Drop():
                self._tensors.pop(replica.shard, None)

    def _give(self, to: str, message: Pulled | Transfer | Listed, asked: Sequence[Array]) -> None:
        tensors = self._of(message.shard)
        match message:
            case Pulled(what=what):
                given = tensors.averages() if what is PullKind.AVERAGES else tensors.weights(asked)
            case Transfer():
                message, given = msgspec.structs.replace(message, rows=tensors.rows), tensors.state()
            case Listed(start=start):
                given = tensors.listed(start)
                message = msgspec.structs.replace(message, rows=given[0].size, total=tensors.rows)
        self._links.post(to, message, given, lasting=False)  # the next update changes them

    def _of(self, shard: int) -> Tensors:
        if shard not in self._tensors:
            self._tensors[shard] = self._make(shard)
        return self._tensors[shard]


def _before(me: str, addresses: dict[str, str]) -> list[str]:
    ids = list(addresses)
    return ids[: ids.index(me)]

"""One replica of one shard: what it orders, applies, acknowledges and hands over. Pure.

Messages and views come in, decisions come out. It holds no tensors: gradients and states are tokens that it is given
beside a message and hands on with a decision. The shell carries the decisions out in order, each before the next, and
answers Digest and GoBack before it tells the replica anything else.

    worker ──Push──▶ primary          orders it: the next version, in this view
                        │ Order
                        ▼
                     backups          apply it, in order
                        │ Confirmed
                        ▼
                     primary          applies it when all who count have; only then acknowledges
                        │ Pushed
                        ▼
                     worker

The primary applies last. So what it can show to a worker, in an answer to a pull or a push, every backup has: no worker
sees a version that a takeover could take back, and no read has to wait for a write. (Applying at once and holding
answers back would save the time of one apply, and cost a copy of the weights for every answer that waits.)

Rules
- One number fences: a message of an older view is refused, one of a newer view waits until this replica is there.
- A point (version, view in which it was ordered) names a state. In every view each other replica first says where it
  stands. From a point that the primary can go on from, it gets the updates after it; from any other the primary's
  whole state. So a backup that is ahead, or one that comes back with something that nobody else has, is simply
  overwritten: what was not on all that counted was never acknowledged, and its worker sends it again.
- A primary answers nobody in a view before all backups of the view stand where it stands, with all that was ordered
  before. What was pushed in an older view, by a worker that is lost since then, is therefore either in all the weights
  that are pulled in this view or in none of them, ever.
- The ledger is part of the state: a batch that was applied is acknowledged when it is pushed again, not applied.
- A newcomer gets the state, then the updates since then as they come; nobody waits for it. When it is near, the primary
  begins to count it, and when it has everything it says so to the coordinator: from then on it may be promoted. In this
  order: it is counted before it can be promoted.
- A primary whose state is older than the shard's origin has nothing to go on from, and goes back to a checkpoint.
- Every few versions all replicas digest their state. One that differs from its primary asks for the whole state. It
  keeps the one it has until then: it might be promoted, and all that was acknowledged is in it.
- When a connection between primary and another replica was made anew, that replica says its standing again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.store.decisions.placement import ShardView
from shoal.store.values.ledger import Ledger, Provenance
from shoal.store.values.messages import (
    Anew,
    CaughtUp,
    Checked,
    Confirmed,
    Differs,
    List,
    Listed,
    Order,
    Point,
    Pull,
    Pulled,
    Push,
    Pushed,
    ReplicaStanding,
    RequestRefused,
    ShardMessage,
    StoreReason,
    Supply,
    Transfer,
)

NOTHING = Point(0, 0)  # no state at all
NEAR = 8  # versions behind the primary; a newcomer that is nearer counts
CHECK_EVERY = 64  # versions from one comparison of states to the next


@dataclass(frozen=True, slots=True)
class TellMember:
    """Send this message, with these tensors beside it."""

    to: str
    message: ShardMessage
    beside: object = None


@dataclass(frozen=True, slots=True)
class Give:
    """Send this message with the shard beside it as it is now: Pulled, the weights; Transfer, everything.

    Of a table: Pulled, the rows that are `asked` for; Listed, some of those that were ever updated.
    """

    to: str
    message: Pulled | Transfer | Listed
    asked: object = None


@dataclass(frozen=True, slots=True)
class ReportReplica:
    """Tell the coordinator."""

    message: CaughtUp | Differs


@dataclass(frozen=True, slots=True)
class ApplyUpdate:
    """Apply these gradients to the shard."""

    point: Point  # at which it is then
    update: Provenance
    staleness: int
    gradients: object


@dataclass(frozen=True, slots=True)
class Load:
    """This is the shard's state now."""

    point: Point
    state: object


@dataclass(frozen=True, slots=True)
class Digest:
    """Compute the digest of the shard's state and call `digested`."""

    point: Point


@dataclass(frozen=True, slots=True)
class GoBack:
    """Read the shard's state from the last checkpoint, or from the model if there is none, and call `restored`."""


@dataclass(frozen=True, slots=True)
class Drop:
    """This server does not hold the shard any more: free its memory."""


Decision = TellMember | Give | ReportReplica | ApplyUpdate | Load | Digest | GoBack | Drop


@dataclass(slots=True)
class _Ordered:
    """An update that has its version and is not applied here yet."""

    point: Point
    update: Provenance
    gradients: object
    rows: int
    senders: set[str] = field(default_factory=set)  # that wait for its acknowledgement


class Replica:
    """One server's replica of one shard, through all views of a run. A server that is restarted is another server.

    A checkpoint of the shard is its tensors with `point.version` and `ledger`, when every decision is carried out.
    """

    def __init__(self, shard: int, me: str, check_every: int = CHECK_EVERY, point: Point = NOTHING) -> None:
        """`point`: where its state stands, which is of a training before this one."""
        self.point = point
        self.ledger = Ledger()
        self.shard = shard
        self._me = me
        self._check_every = check_every
        self._view = ShardView(0, shard, None, (), (), 0)
        self._held: list[tuple[str, ShardMessage, object]] = []  # what can't be answered yet
        # As a primary:
        self._queue: list[_Ordered] = []
        self._floor = 0  # the last version that was ordered before this view
        self._confirmed: dict[str, int] = {}  # who follows and how far it is; who got a transfer: when it has it
        self._following: set[str] = set()  # have said where they stand, and get every update
        self._counted: set[str] = set()  # nothing is applied without them
        self._caught_up: set[str] = set()  # newcomers about which the coordinator was told
        self._digests: dict[Point, dict[str, int]] = {}
        # As a backup or a newcomer:
        self._asking = False  # has said its standing and got nothing yet
        self._differs = False  # must get the whole state

    @property
    def view(self) -> int:
        """The number of the newest view that it has heard of."""
        return self._view.number

    @property
    def origin(self) -> int:
        """The view in which the shard's history began, or began again because it was lost."""
        return self._view.origin

    @property
    def standing(self) -> Point:
        """Where its state stands, as far as it is known to be right."""
        return NOTHING if self._differs else self.point

    @property
    def is_primary(self) -> bool:
        return self._view.primary == self._me

    # What the shell tells ---------------------------------------------------------------------------

    def take_view(self, view: ShardView) -> list[Decision]:
        """The shard's place in a new view. One that is not newer is not heeded."""
        if view.number <= self._view.number:
            return []
        self._view = view
        self._confirmed, self._following, self._counted = {}, set(), set(view.backups)
        self._caught_up, self._digests = set(), {}
        if self.is_primary and self.point.view >= view.origin:
            return self._lead()
        self._queue.clear()
        if self.is_primary:
            return [GoBack()]
        if self._me in view.holders:
            return [*self._stand(), *self._hear_held()]
        return [*self._leave(), *self._hear_held()]

    def take_held(self) -> list[tuple[str, ShardMessage, object]]:
        """What was said before this server knew the view, for a shell that has to find the shard's state first."""
        held, self._held = self._held, []
        return held

    def restored(self, version: int, ledger: Ledger) -> list[Decision]:
        """The state was read from a checkpoint at this version."""
        self.point, self.ledger = Point(self._view.origin, version), ledger
        return self._lead()

    def reconnected(self, peer: str) -> list[Decision]:
        """The connection to this peer was made anew: whatever was on its way may be lost."""
        return self._stand() if peer == self._view.primary and self._me in self._view.holders else []

    def digested(self, point: Point, digest: int) -> list[Decision]:
        """The digest of the state at this point."""
        if self.is_primary:
            return self._compare(self._me, point, digest)
        return [self._tell(self._view.primary, Checked(self.shard, self._view.number, point, digest))]

    def handle(self, sender: str, message: ShardMessage, beside: object = None) -> list[Decision]:
        """Take one message, and what came beside it."""
        if isinstance(message, RequestRefused):
            return []  # the view that it speaks of is on its way from the coordinator
        number = self._view.number
        if message.view > number:
            return self._hold(sender, message, beside)
        if message.view < number:
            text = f"shard {self.shard} is in view {number} on {self._me}; {sender} spoke in view {message.view}"
            return [TellMember(sender, RequestRefused(self.shard, number, StoreReason.STALE_VIEW, text))]
        if self.is_primary:
            return self._serve(sender, message, beside)
        if sender == self._view.primary and self._me in self._view.holders:
            return self._follow(message, beside)
        text = f"the primary of shard {self.shard} in view {number} is {self._view.primary}, not {self._me}"
        return [TellMember(sender, RequestRefused(self.shard, number, StoreReason.NOT_PRIMARY, text))]

    # As the primary ---------------------------------------------------------------------------------

    def _lead(self) -> list[Decision]:
        self._differs = False  # whatever it is, it is the shard's state now
        self._floor = self._last.version
        return [*self._hear_held(), *self._progress()]

    def _serve(self, sender: str, message: ShardMessage, beside: object) -> list[Decision]:
        match message:
            case Pull():
                return self._pull(sender, message, beside)
            case List(start=start):
                if not self._answers:
                    return self._hold(sender, message, beside)
                return [Give(sender, Listed(self.shard, self._view.number, start, 0, 0))]  # the shell counts
            case Push():
                return self._push(sender, message, beside)
            case ReplicaStanding(point=point):
                return self._bring_along(sender, point)
            case Confirmed(version=version):
                self._confirmed[sender] = version
                return self._progress()
            case Checked(point=point, digest=digest):
                return self._compare(sender, point, digest)
            case Supply():
                return []  # asked of several workers, and another's came first
            case _:
                raise TypeError(f"{type(message).__name__} is not for a primary")

    def _pull(self, sender: str, pull: Pull, asked: object) -> list[Decision]:
        if not self._answers:
            return self._hold(sender, pull, asked)
        version, made = self.point.version, self.ledger.made
        pulled = Pulled(self.shard, self._view.number, pull.number, version, made, pull.what, pull.rows)
        return [Give(sender, pulled, asked)]

    def _push(self, sender: str, push: Push, gradients: object) -> list[Decision]:
        operation = push.update.operation
        if self.ledger.has(operation):
            if not self._answers:
                return self._hold(sender, push, gradients)
            return [TellMember(sender, Pushed(self.shard, self._view.number, operation, self.point.version, None))]
        for ordered in self._queue:
            if ordered.update.operation == operation:
                ordered.senders.add(sender)
                return []
        point = Point(self._view.number, self._last.version + 1)
        ordered = _Ordered(point, push.update, gradients, push.rows, {sender})
        self._queue.append(ordered)
        return [*(self._order(peer, ordered) for peer in sorted(self._following)), *self._progress()]

    def _bring_along(self, peer: str, point: Point) -> list[Decision]:
        """Send what this peer lacks, and from now on every update."""
        decisions: list[Decision] = []
        missing = self._after(point)
        if missing is None:
            missing = self._queue
            self._confirmed.pop(peer, None)
            decisions.append(Give(peer, Transfer(self.shard, self._view.number, self.point, self.ledger)))
        else:
            self._confirmed[peer] = point.version
        self._following.add(peer)
        return [*decisions, *(self._order(peer, ordered) for ordered in missing), *self._progress()]

    def _progress(self) -> list[Decision]:
        """What follows from the confirmations that have come by now."""
        decisions: list[Decision] = []
        self._count_newcomers()
        while self._queue and self._have(self._counted, self._queue[0].point.version):
            decisions += self._commit(self._queue.pop(0))
        for peer in sorted(self._counted - self._caught_up - set(self._view.backups)):
            if self._have({peer}, self.point.version):
                self._caught_up.add(peer)
                decisions.append(ReportReplica(CaughtUp(self.shard, self._view.number, peer)))
        return decisions + (self._hear_held() if self._answers else [])

    def _count_newcomers(self) -> None:
        near = max(0, self.point.version - NEAR)
        self._counted |= {peer for peer in self._view.newcomers if self._have({peer}, near)}

    def _commit(self, ordered: _Ordered) -> list[Decision]:
        point, update, staleness = ordered.point, ordered.update, self.ledger.staleness(ordered.update)
        pushed = Pushed(self.shard, self._view.number, update.operation, point.version, staleness)
        applied = self._apply(point, update, ordered.gradients)
        return [*applied, *(TellMember(sender, pushed) for sender in sorted(ordered.senders))]

    def _compare(self, who: str, point: Point, digest: int) -> list[Decision]:
        """One more digest of the state at a point: the primary's own, or another's."""
        self._digests = {
            at: known for at, known in self._digests.items() if at.version > point.version - 2 * self._check_every
        }
        known = self._digests.setdefault(point, {})
        known[who] = digest
        if self._me not in known:
            return []
        return [
            decision
            for peer in (known if who == self._me else (who,))
            if known[peer] != known[self._me]
            for decision in self._heal(peer, point, (known[self._me], known[peer]))
        ]

    def _heal(self, peer: str, point: Point, digests: tuple[int, int]) -> list[Decision]:
        number = self._view.number
        return [
            ReportReplica(Differs(self.shard, number, peer, point.version, digests)),
            TellMember(peer, Anew(self.shard, number)),
        ]

    @property
    def _last(self) -> Point:
        """The last point that was ordered."""
        return self._queue[-1].point if self._queue else self.point

    @property
    def _answers(self) -> bool:
        """Whether everything that was ordered before this view is where it must be."""
        return self.point.version >= self._floor and self._have(self._view.backups, self._floor)

    def _have(self, peers: Iterable[str], version: int) -> bool:
        return all(self._confirmed.get(peer, -1) >= version for peer in peers)

    def _after(self, point: Point) -> list[_Ordered] | None:
        """The updates that follow this point; None if they are not here, or the point is not one of this history."""
        history = [self.point, *(ordered.point for ordered in self._queue)]
        return self._queue[history.index(point) :] if point in history else None

    def _order(self, peer: str, ordered: _Ordered) -> TellMember:
        message = Order(self.shard, self._view.number, ordered.point, ordered.update, ordered.rows)
        return TellMember(peer, message, ordered.gradients)

    # As a backup or a newcomer ----------------------------------------------------------------------

    def _stand(self) -> list[Decision]:
        self._asking = True
        return [self._tell(self._view.primary, ReplicaStanding(self.shard, self._view.number, self.standing))]

    def _follow(self, message: ShardMessage, beside: object) -> list[Decision]:
        match message:
            case Order(point=point, update=update):
                return self._obey(point, update, beside)
            case Transfer(point=point, ledger=ledger):
                return self._load(point, ledger, beside)
            case Anew():
                self._differs = True
                return self._stand()
            case _:
                raise TypeError(f"{type(message).__name__} is not for a backup")

    def _obey(self, point: Point, update: Provenance, gradients: object) -> list[Decision]:
        # Behind a gap: what is missing was lost with its connection, and comes again now that there is a new one.
        if self._differs or point.version > self.point.version + 1:
            return []
        if point.version <= self.point.version:
            return [self._confirm()]
        self._asking = False
        return [*self._apply(point, update, gradients), self._confirm()]

    def _load(self, point: Point, ledger: Ledger, state: object) -> list[Decision]:
        # Only as an answer: one that comes twice, or late, must not undo what was confirmed since then.
        if not self._asking:
            return [self._confirm()]
        self._asking = self._differs = False
        self.point, self.ledger = point, ledger
        return [Load(point, state), self._confirm()]

    def _leave(self) -> list[Decision]:
        if self.point == NOTHING:
            return []
        self.point, self.ledger, self._differs = NOTHING, Ledger(), False
        return [Drop()]

    def _confirm(self) -> TellMember:
        return self._tell(self._view.primary, Confirmed(self.shard, self._view.number, self.point.version))

    # As either --------------------------------------------------------------------------------------

    def _apply(self, point: Point, update: Provenance, gradients: object) -> list[Decision]:
        applied = ApplyUpdate(point, update, self.ledger.staleness(update), gradients)
        self.point, self.ledger = point, self.ledger.after(update)
        return [applied, Digest(point)] if point.version % self._check_every == 0 else [applied]

    def _hold(self, sender: str, message: ShardMessage, beside: object) -> list[Decision]:
        self._held.append((sender, message, beside))
        return []

    def _hear_held(self) -> list[Decision]:
        return [decision for said in self.take_held() for decision in self.handle(*said)]

    def _tell(self, to: str | None, message: ShardMessage) -> TellMember:
        assert to is not None  # there are others only where there is a primary
        return TellMember(to, message)

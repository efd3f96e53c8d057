"""Who says when a run is over, to an agent that a launcher has started: the launcher, or nobody being left.

The end of its input may mean three things. The launcher was killed: then the coordinator, which is on the launcher's
host and sees it die, says so, and all ends. The launcher has lost this host alone: then the coordinator is still heard,
and all of this host ends, to be started anew. The launcher's host is gone: then nobody is heard, or a coordinator of
another host is; the run goes on, and this agent takes part in it without a launcher.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable

from shoal.cluster.launcher_pipe import Dying, MemberTold, Reaped, Spawned
from shoal.cluster.messages import End
from shoal.cluster.succession.election import StartCoordinator
from shoal.errors import BadFrame
from shoal.launch.plan import ProcessPlan
from shoal.launch.remote.channel import AgentChannel, PlaceGranted, PlaceWanted
from shoal.launch.remote.host_keeper import HostKeeper
from shoal.launch.supervision.coordination import AbstractCoordination, CoordinatorOrder
from shoal.launch.supervision.local_coordination import LocalCoordination
from shoal.launch.supervision.remote_coordination import RemoteCoordination
from shoal.wire.messages import Message

_SAVED_WITHIN = 65.0  # seconds that workers get for a last checkpoint when the launcher is gone
_WORD_WITHIN = 2.0  # seconds from the end of the input until the coordinator has said what it means
_HEARD_WITHIN = 1.2  # seconds: a coordinator that has said something so lately is there


class AgentCoordination(AbstractCoordination):
    """The launcher gives places, `inner` keeps them. `saves`: workers write a checkpoint when the launcher is gone.

    `keeper`: of a run that outlives its launcher's host, with `start` for a coordinator of this host. It closes both.
    `move` is told where the coordinator is that gives places then. `patience`: seconds without any coordinator.
    """

    def __init__(
        self,
        inner: RemoteCoordination,
        channel: AgentChannel,
        saves: bool,
        keeper: HostKeeper | None = None,
        start: Callable[[], LocalCoordination] | None = None,
        move: Callable[[str], None] = lambda _: None,
        patience: float = 20.0,
    ) -> None:
        self._inner = inner
        self._channel = channel
        self._saves = saves
        self._keeper = keeper
        self._start = start
        self._move = move
        self._moved: str | None = None
        self._patience = patience
        self._own: LocalCoordination | None = None  # the coordinator of this host, if it was elected
        self._own_end: End | None = None  # that it has told
        self._asked: dict[str, ProcessPlan] = {}  # by place: what the launcher was asked for
        self._closed_at: float | None = None  # the end of the input
        self._end_at: float | None = None  # set when the launcher is gone
        self._is_apart = False  # from the launcher, for good
        self._is_over = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(inner, selectors.EVENT_READ)
        self._selector.register(channel, selectors.EVENT_READ)
        if keeper is not None:
            self._selector.register(keeper, selectors.EVENT_READ)

    def fileno(self) -> int:
        return self._selector.fileno()  # that of epoll

    def hear(self) -> list[CoordinatorOrder]:
        self._channel.flush()
        said = self._channel.has_more or any(key.fileobj is self._channel for key, _ in self._selector.select(0))
        orders = [*(self._receive() if said else ()), *self._inner.hear(), *self._hear_own(), *self._due()]
        if self._is_over:  # the run ends once
            orders = [order for order in orders if not isinstance(order, End)]
        self._is_over |= any(isinstance(order, End) for order in orders)
        ends = [order for order in orders if isinstance(order, End)]
        return [order for order in orders if not isinstance(order, End)] + ends[:1]

    def tell(self, message: Message) -> None:
        if isinstance(message, Spawned | Dying | Reaped):
            self._channel.send(message)
        self._inner.tell(message)

    def ask(self, plan: ProcessPlan) -> None:
        if self._is_apart:
            self._inner.ask(plan)
            return
        self._inner.expect(plan)
        self._asked[plan.id] = plan
        self._channel.send(PlaceWanted(plan.id))

    def close(self) -> None:
        self._selector.close()
        self._inner.close()
        if self._keeper is not None:
            self._keeper.close()
        if self._own is not None:
            if self._own_end is None:
                self._own.stop()  # the run goes on elsewhere, and elects another
            self._own.close()

    def _receive(self) -> list[CoordinatorOrder]:
        try:
            messages = self._channel.receive()
        except (EOFError, BadFrame):
            self._selector.unregister(self._channel)
            self._closed_at = time.monotonic()
            if self._keeper is None:
                self._begin_end()
            return []
        for message in messages:
            if isinstance(message, PlaceGranted) and message.place in self._asked:
                self._inner.give(message.member, self._asked.pop(message.place))
        return [message for message in messages if isinstance(message, End) and not self._is_apart]

    def _begin_end(self) -> None:
        if self._end_at is None:
            self._end_at = time.monotonic() + (_SAVED_WITHIN if self._saves else 0.0)

    def _due(self) -> list[CoordinatorOrder]:
        now = time.monotonic()
        if self._keeper is not None:
            self._judge(self._keeper, now)
            where = self._keeper.where()
            if self._is_apart and where is not None and where != self._moved:
                self._moved = where
                self._move(where)
            if self._is_alone(self._keeper) and self._keeper.unheard_for() > self._patience:
                reason = "the coordinator's host is gone, and too few hosts are left to go on without it"
                return [End(ok=False, code=1, reason=reason)]
        if self._end_at is None or time.monotonic() < self._end_at:
            return []
        return [End(ok=False, code=1, reason="the launcher is gone")]

    def _is_alone(self, keeper: HostKeeper) -> bool:
        """Whether silence would be the end. A cable that is cut closes nothing: that somebody was heard is enough."""
        is_ending = self._end_at is not None  # within the time that a last checkpoint may take
        was_there = keeper.has_heard or self._is_apart or self._closed_at is not None
        return was_there and not is_ending and not keeper.is_asking

    def _judge(self, keeper: HostKeeper, now: float) -> None:
        """What the end of the input means, once that is known."""
        if keeper.launcher_gone:
            self._begin_end()
        elif not keeper.is_launchers():
            self._part_ways()
        elif self._closed_at is not None and now - self._closed_at > _WORD_WITHIN and not self._is_apart:
            if keeper.unheard_for() < _HEARD_WITHIN:
                self._begin_end()
            else:
                self._part_ways()

    def _part_ways(self) -> None:
        """From here on places are the coordinator's to give."""
        if not self._is_apart:
            self._is_apart = True
            self._channel.let_go()
            asked, self._asked = self._asked, {}
            for plan in asked.values():
                self._inner.ask(plan)

    def _hear_own(self) -> list[CoordinatorOrder]:
        """What becomes of the coordinator of this host, and what it says."""
        if self._keeper is None or self._start is None:
            return []
        told: list[CoordinatorOrder] = []
        for order in self._keeper.take_orders():
            if not isinstance(order, StartCoordinator):
                if self._own is not None:
                    self._own.stop()
            elif self._own is None:
                unheard = self._keeper.unheard_for()
                text = (
                    f"the coordinator is gone, last heard {unheard:.1f} s ago; this host was elected to have the next"
                )
                told.append(MemberTold(text))
                self._own = self._start()
                self._selector.register(self._own, selectors.EVENT_READ)
            else:
                self._own.start_again()
        for said in self._own.hear() if self._own is not None else ():
            if isinstance(said, End):
                self._own_end = said  # the workers hear it, too: this host is done when they have gone
            elif isinstance(said, MemberTold):
                told.append(said)
        return told

"""Who says when a run is over, to an agent that a launcher has started: the launcher, or nobody being left."""

from __future__ import annotations

import selectors
import time

from shoal.cluster.launcher_pipe import Dying, Reaped, Spawned
from shoal.cluster.messages import End
from shoal.errors import BadFrame
from shoal.launch.plan import ProcessPlan
from shoal.launch.remote.channel import AgentChannel
from shoal.launch.supervision.coordination import AbstractCoordination, CoordinatorOrder
from shoal.launch.supervision.remote_coordination import RemoteCoordination
from shoal.wire.messages import Message

_SAVED_WITHIN = 65.0  # seconds that workers get for a last checkpoint when the launcher is gone


class AgentCoordination(AbstractCoordination):
    """`inner` asks the coordinator for places. `saves`: workers write a checkpoint when the launcher is gone."""

    def __init__(self, inner: RemoteCoordination, channel: AgentChannel, saves: bool) -> None:
        self._inner = inner
        self._channel = channel
        self._saves = saves
        self._end_at: float | None = None  # set when the launcher is gone
        self._is_over = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(inner, selectors.EVENT_READ)
        self._selector.register(channel, selectors.EVENT_READ)

    def fileno(self) -> int:
        return self._selector.fileno()  # that of epoll

    def hear(self) -> list[CoordinatorOrder]:
        said = self._channel.has_more or any(key.fileobj is self._channel for key, _ in self._selector.select(0))
        orders = [*(self._receive() if said else ()), *self._inner.hear(), *self._due()]
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
        self._inner.ask(plan)

    def close(self) -> None:
        self._selector.close()
        self._inner.close()

    def _receive(self) -> list[CoordinatorOrder]:
        try:
            return [message for message in self._channel.receive() if isinstance(message, End)]
        except (EOFError, BadFrame):
            self._selector.unregister(self._channel)
            self._end_at = time.monotonic() + (_SAVED_WITHIN if self._saves else 0.0)
            return []

    def _due(self) -> list[CoordinatorOrder]:
        if self._end_at is None or time.monotonic() < self._end_at:
            return []
        return [End(ok=False, code=1, reason="the launcher is gone")]

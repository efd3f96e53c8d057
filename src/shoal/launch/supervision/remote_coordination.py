"""A coordinator on another host: members tell it themselves how they are; from here it is only asked for places."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque

from shoal.cluster.launcher_pipe import Interrupt, MemberTold, Reaped, Spawned
from shoal.cluster.messages import JoinerPlace
from shoal.cluster.view import Role, role_of
from shoal.errors import UsageError
from shoal.launch.plan import ProcessPlan
from shoal.launch.supervision.coordination import AbstractCoordination, CoordinatorOrder, PlaceGiven
from shoal.launch.supervision.guests import GuestLeft, Guests
from shoal.wire.messages import Message

AGAIN = 10.0  # seconds from a place that was not to be had until it is asked for again


class AbstractRunElsewhere(ABC):
    """A run that is coordinated elsewhere."""

    @abstractmethod
    def ask(self, role: Role) -> JoinerPlace:
        """For a place of a worker or a server; waits for it, in a thread. UsageError if none is to be had in time."""

    @abstractmethod
    def prepare(self, place: JoinerPlace) -> None:
        """Whoever comes in this place finds what it needs."""


class RemoteCoordination(AbstractCoordination):
    """`places`: those that were asked for before. Others are asked for in a thread: an interrupt is heard meanwhile."""

    def __init__(self, run: AbstractRunElsewhere, places: list[ProcessPlan]) -> None:
        self._run = run
        self._guests = Guests()
        for plan in places:
            self._guests.give(plan.id, plan.id)
        self._is_over = False
        self._orders: list[CoordinatorOrder] = []
        self._answers: deque[tuple[ProcessPlan, JoinerPlace | Exception]] = deque()  # of threads
        self._before: dict[str, GuestLeft | None] = {}  # by place: who had it
        self._said = ""  # why nobody has come yet
        self._news: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()  # around the descriptor's end

    def fileno(self) -> int:
        assert self._news is not None
        return self._news

    def hear(self) -> list[CoordinatorOrder]:
        if not self._orders:  # an answer may be an error: what was said before must not be lost with it
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.fileno())
            while self._answers:
                self._take(*self._answers.popleft())
            if not self._is_over and (end := self._guests.end()) is not None:
                self._is_over = True
                self._orders.append(end)
        orders, self._orders = self._orders, []
        return orders

    def tell(self, message: Message) -> None:
        match message:
            case Spawned(id):
                self._guests.come(id)
            case Reaped(id, code):
                self._guests.leave(id, code)
            case Interrupt(_, code):
                self._guests.interrupt(code)
        self._wake()

    def ask(self, plan: ProcessPlan) -> None:
        self.expect(plan)
        self._ask_in_thread(plan, 0.0)

    def expect(self, plan: ProcessPlan) -> None:
        """Another is to come in this place: say so. It is given later, by whoever gives places."""
        left = self._before[plan.id] = self._guests.expect(plan.id)
        if left is not None:
            self._orders.append(MemberTold(f"{left.id} ended with code {left.code}; coming back"))
            self._wake()

    def give(self, id: str, plan: ProcessPlan) -> None:
        """A member of this id may come in this place."""
        if not self._guests.is_interrupted:
            self._guests.give(id, plan.id)
            self._orders.append(PlaceGiven(id, plan))
            self._wake()

    def close(self) -> None:
        with self._lock:
            news, self._news = self._news, None
            if news is not None:
                os.close(news)

    def _ask_in_thread(self, plan: ProcessPlan, later: float) -> None:
        threading.Thread(target=self._ask, args=(plan, later), name="shoal-ask-for-place", daemon=True).start()

    def _ask(self, plan: ProcessPlan, later: float) -> None:
        """In a thread."""
        time.sleep(later)
        try:
            self._answers.append((plan, self._run.ask(role_of(plan.id))))
        except Exception as error:  # whatever it is: it is waited for
            self._answers.append((plan, error))
        self._wake()

    def _take(self, plan: ProcessPlan, answer: JoinerPlace | Exception) -> None:
        if self._guests.is_interrupted:
            return
        if isinstance(answer, Exception):
            self._go_without(plan, answer)
            return
        self._run.prepare(answer)
        self.give(answer.member, plan)

    def _go_without(self, plan: ProcessPlan, error: Exception) -> None:
        """Those who are here train on, and the place is asked for again; without anybody there is nothing to go on."""
        if not isinstance(error, UsageError):
            raise error
        if self._guests.are_here:
            self._ask_in_thread(plan, AGAIN)
            why, before = str(error).rstrip(". "), self._said
            self._said = why
            if why != before:
                text = f"nobody comes in the place of {plan.id} yet: {why}. It is tried again and again."
                self._orders.append(MemberTold(text))
        elif self._guests.have_been_here:  # the run is over, it seems
            self._guests.give_up(plan.id, self._before.get(plan.id))
        else:
            raise error

    def _wake(self) -> None:
        with self._lock:
            if self._news is not None:
                os.eventfd_write(self._news, 1)

"""The coordinator of a simulated run: who is there, around the real director.

As cluster/coordinator.py does, it writes down what must not be forgotten before it tells anybody anything. One that
takes over knows what was written, takes for granted that all of them are still there, and finds out who is not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.cluster.coordinator_service import SayToUser, SendMessage, ServiceLog, Wish
from shoal.cluster.messages import Ready, ServiceMessage
from shoal.store.decisions.director import Director, Training
from shoal.store.decisions.director_messages import FROM_DIRECTOR, EpochOver, ShardsPlaced
from shoal.store.decisions.placement import Placement, setbacks
from shoal.store.values.operations import Batch

from .history import Wrong
from .members import CALL, Join
from .plans import SILENCE
from .world import COORDINATOR, Process

if TYPE_CHECKING:
    from .simulation import Simulation

NOTICED = 0.02  # seconds, at most, from a process's death to its loss
LEASE = 0.25
TICK = 0.05
ANEW = 5  # after so many changes the log is written anew


class Record(NamedTuple):
    """What a coordinator that takes over knows."""

    view: tuple[str, ...]
    servers: dict[str, str]
    lost: frozenset[str]
    coordinator_service: ServiceLog | None


class Coordinator(Process):
    """Who is there, and the director. One that dies is followed by another of these."""

    def __init__(self, sim: Simulation, record: Record, linked: Collection[str] = ()) -> None:
        super().__init__(COORDINATOR)
        self.sim = sim
        self.view = list(record.view)
        self.servers = dict(record.servers)
        try:
            self.director = Director(LEASE, record.coordinator_service)
        except (RuntimeError, LookupError, ValueError) as error:
            raise Wrong(f"what is written down can't have happened: {error}") from error
        self.training: Training | None = self.director._state.training  # the last one
        self._before = self.placement
        self._outside = record.lost  # they heard it from the one before, or will now: they can't come back
        self._lost: set[str] = set()
        self._linked = set(linked)
        self._ready: list[str] = []
        self._log: ServiceLog | None = None

    @property
    def placement(self) -> Placement | None:
        return self.training.placement if self.training is not None else None

    @property
    def counted(self) -> list[Batch]:
        """Every batch that counts by now."""
        if self.training is None:
            return []
        book = self.training.book
        before = [Batch(epoch, place) for epoch in range(book.epoch) for place in range(self.sim.plan.batches)]
        return [*before, *(Batch(book.epoch, place) for place in range(book.dealt) if place in book.counted)]

    def record(self) -> Record:
        lost = self._outside | self._lost
        return Record(tuple(self.view), dict(self.servers), lost, self._logged())

    def _logged(self) -> ServiceLog:
        """The director's log, with what is new: appended, or written anew now and then."""
        changes = self.director.changes()
        if self._log is None or len(self._log.changes) > ANEW:
            self._log = ServiceLog(self.director.record())
        else:
            self._log = ServiceLog(self._log.record, (*self._log.changes, *changes))
        return self._log

    # What it hears ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Serve from now on."""
        world = self.sim.world
        world.after(world.random.uniform(0.0, NOTICED), self._look_for_the_dead)
        world.after(SILENCE, self._look_for_the_silent)
        self._tick()

    def hear(self, sender: str, *said: Any) -> None:
        wishes: Sequence[Wish] = ()
        match said[0]:
            case Join() if sender in self._outside:
                self.sim.refuse(sender)
                return
            case Join():
                self._linked.add(sender)
                if sender.startswith("server"):
                    self._lost.discard(sender)
                    self.servers[sender] = f"unix:{sender}"
            case _ if sender not in self._linked:
                return
            case Ready():
                if sender not in self.view and sender not in self._ready:
                    self._ready.append(sender)
            case ServiceMessage(content):
                wishes = self._follow(self.director.hear(sender, content, self.sim.world.time))
        self._settle(wishes)

    def lose(self, id: str) -> None:
        """A member is lost. A server is hung up on; a worker hears from the director that it is outside."""
        if id in self._lost or id in self._outside:
            return
        self._lost.add(id)
        if id in self.view:
            self.view.remove(id)
        if id in self.servers:
            del self.servers[id]
            self._linked.discard(id)
            self.sim.hang_up(id)
        self._settle(())
        self.sim.meet()

    def _tick(self) -> None:
        if self.sim.is_up(self):
            self._settle(self._follow(self.director.tick(self.sim.world.time)))
            self.sim.world.after(TICK, self._tick)

    def _look_for_the_dead(self) -> None:
        for id in (*self.view, *self.sim.started):
            if id not in self.sim.world.processes and self.sim.is_up(self):
                self.lose(id)

    def _look_for_the_silent(self) -> None:
        for id in (*self.view, *self.servers):
            if id not in self._linked and self.sim.is_up(self):
                self.lose(id)

    # What it decides --------------------------------------------------------------------------------

    def _settle(self, wishes: Sequence[Wish]) -> None:
        """What follows from who is there now; then all of it is told."""
        for id in [id for id in self._ready if self.director.welcomes(CALL)]:
            self._ready.remove(id)
            self._lost.discard(id)
            self.view.append(id)
        expected = len(self.sim.started - self._lost - self._outside)
        news = self.director.take(self.view, self.servers, expected, self.sim.world.time)
        self._tell([*wishes, *self._follow(news)])

    def _follow(self, wishes: Sequence[Wish]) -> Sequence[Wish]:
        """Let the watcher see what the director has decided."""
        self.training = self.director._state.training or self.training
        before, after = self._before, self.placement
        if before is not None and after is not None and before.number != after.number:
            self.sim.watcher.lost_for_good(setbacks(before.views, after), self.counted)
        self._before = after
        return wishes

    def _tell(self, wishes: Sequence[Wish]) -> None:
        said = [wish.text for wish in wishes if isinstance(wish, SayToUser)]
        messages = [
            (wish.content, [id for id in wish.to if id in self._linked])
            for wish in wishes
            if isinstance(wish, SendMessage)
        ]
        if said or any(to for _, to in messages):
            self.write_down()
            self.sim.mark("written")
        self.sim.said += said
        for content, to in messages:
            message = FROM_DIRECTOR.decode(content)
            if isinstance(message, EpochOver) and to:
                self.sim.watcher.epoch_is_over(message.epoch)
            if isinstance(message, ShardsPlaced) and to:
                self.sim.watcher.placed(message.placement)
                self.sim.mark("view")
            for id in to:
                if not self.sim.is_up(self):
                    return  # it died in the middle of this
                self.sim.world.send(COORDINATOR, id, ServiceMessage(content))
                self.sim.mark(type(message).__name__)

    def write_down(self) -> None:
        self.sim.written = self.record()
        self.sim.watcher.wrote(self.training)

"""A run without processes or sockets: the real membership, simulated members, a seeded network, a manual clock.

Streams keep their order, as sockets do. A beat may be lost; any other lost message means a broken stream. After
every event the invariants of `Watcher` are checked. A failing run names its seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.clock import ManualClock
from shoal.cluster.events import (
    Decision,
    Event,
    Evidence,
    Exited,
    HangUp,
    Interrupted,
    LinkClosed,
    RunOver,
    Said,
    Tell,
    Tick,
)
from shoal.cluster.identity import Identity
from shoal.cluster.membership import Membership
from shoal.cluster.messages import Beat, Done, End, Failed, Join, Post, Refuse, ViewChange
from shoal.cluster.view import Member, View
from shoal.config import Deadlines, RunConfig
from shoal.observe.phases import Activity, Phase
from shoal.wire.messages import Message

TICK = 0.1
IDENTITY = Identity("jax", "0.10", "3.15", "2.4", 1, 4, "x86_64 avx2")
COORDINATOR = Member("coordinator", "coordinator", 99, "here", "this one", "")
DEADLINES = Deadlines(silence=5.0, stall=60.0, start=30.0)


@dataclass
class Network:
    """How bad it is. Probabilities are per message."""

    latency: float = 0.01  # on average
    late: float = 0.0  # held up for up to two seconds, and all that follows with it
    repeated: float = 0.0
    lost_beats: float = 0.0


@dataclass
class SimulatedMember:
    """What a worker's link to the coordinator would do."""

    id: str
    link: int
    steps: int
    step_time: float
    step: int = 0
    state: str = "new"  # new, joined, done, gone
    view: View | None = None
    end: End | None = None
    refused: Refuse | None = None
    paused_until: float = 0.0
    held_until: float = 0.0  # Python's lock is held: it works, but sends nothing
    cpu: float = 0.0
    heard: list[Message] = field(default_factory=list)


class Watcher:
    """What must be true after every event."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self.overs: list[End] = []
        self.ended: set[int] = set()

    def watch(self, membership: Membership, decisions: list[Decision], workers: int) -> None:
        for decision in decisions:
            match decision:
                case Tell(links, ViewChange(view)):
                    assert len(links) == len(set(links))
                    assert view.number == len(self.views) + 1, "views are numbered without a gap"
                    assert [m.id for m in view.workers] == [f"worker-{n}" for n in range(workers)]
                    assert not self.overs, "no view after the end"
                    self.views.append(view)
                case Tell(links, End() as end):
                    assert not self.ended & set(links), "End is said once to each"
                    assert not self.overs or self.overs[0] == end, "everyone hears the same End"
                    self.ended |= set(links)
                case RunOver(end):
                    assert not self.overs, "a run is over once"
                    assert membership.end == end
                    assert end.ok == (end.code == 0)
                    assert end.reason
                    self.overs.append(end)
        assert membership.view == (self.views[-1] if self.views else None)
        assert (membership.end is None) == (not self.overs)


class SimulatedRun:
    """One run under one seed. Faults are planned first; then `play`."""

    def __init__(self, seed: int, workers: int = 3, steps: int = 10, network: Network | None = None) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.network = network or Network()
        self.clock = ManualClock()
        self.config = RunConfig("sim", workers, 1, "jax", "train.py", deadlines=DEADLINES)
        self.membership = Membership(self.config, COORDINATOR, self.clock.now())
        self.watcher = Watcher()
        self.over_at: float | None = None
        self.coordinator_away_until = 0.0
        self._held_back: list[Event] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._arrival: dict[tuple[int, str], float] = {}  # streams keep their order
        self._closed_links: set[int] = set()
        self.members = {
            id: SimulatedMember(id, link, steps, self.random.uniform(0.2, 0.4))
            for link, id in enumerate((f"worker-{n}" for n in range(workers)), start=1)
        }
        for member in self.members.values():
            self.at(self.random.uniform(0.0, 1.0), lambda member=member: self._start(member))
        self.at(TICK, self._tick)

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.membership.end}"

    # Faults -----------------------------------------------------------------------------------------

    def at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment, next(self._order), act))

    def kill(self, id: str, at: float, seen: bool = True) -> SimulatedRun:
        """`kill -9`; `seen`: the launcher is its parent."""

        def act() -> None:
            member = self.members[id]
            if member.state != "gone":
                self._leave(member, -9 if seen else None)

        self.at(at, act)
        return self

    def fail(self, id: str, at: float, error: str = "boom", blames: tuple[str, ...] = ()) -> SimulatedRun:
        """Its script raises."""

        def act() -> None:
            member = self.members[id]
            if member.state == "joined":
                kind = "PeerClosed" if blames else "ValueError"
                self._say(
                    member, Failed(member.step, Activity(Phase.COMPUTING), kind, error, f"Traceback … {error}", blames)
                )
                self._leave(member, 1)

        self.at(at, act)
        return self

    def pause(self, id: str, at: float, seconds: float) -> SimulatedRun:
        """SIGSTOP and, later, SIGCONT."""
        self.at(at, lambda: setattr(self.members[id], "paused_until", at + seconds))
        return self

    def hold(self, id: str, at: float, seconds: float) -> SimulatedRun:
        """A long call that holds Python's lock."""
        self.at(at, lambda: setattr(self.members[id], "held_until", at + seconds))
        return self

    def pause_coordinator(self, at: float, seconds: float) -> SimulatedRun:
        self.at(at, lambda: setattr(self, "coordinator_away_until", at + seconds))
        return self

    def interrupt(self, at: float) -> SimulatedRun:
        self.at(at, lambda: self._happen(Interrupted("it was interrupted", 130)))
        return self

    # Running ----------------------------------------------------------------------------------------

    def play(self, limit: float = 400.0) -> SimulatedRun:
        """Until nothing is left to happen. A run that does not end within the limit is an error."""
        while self._agenda:
            moment, _, act = heapq.heappop(self._agenda)
            assert moment < limit, f"the run hangs ({self})"
            self.clock.advance(max(0.0, moment - self.clock.now()))
            try:
                act()
            except AssertionError as error:
                raise AssertionError(f"{error} ({self})") from error
        assert self.watcher.overs, f"the run never ended ({self})"
        return self

    @property
    def end(self) -> End:
        return self.watcher.overs[0]

    def _tick(self) -> None:
        if self._here():
            now = self.clock.now()
            suspects = {member.id for member in self.membership.suspects(now)}
            self._happen(Tick({id: self._evidence(id) for id in suspects if self.members[id].state != "gone"}))
        if self.membership.end is None:
            self.at(self.clock.now() + TICK, self._tick)

    def _evidence(self, id: str) -> Evidence:
        member, now = self.members[id], self.clock.now()
        if now < member.paused_until:
            return Evidence("T", member.cpu)
        if now < member.held_until:
            member.cpu += TICK
            return Evidence("R", member.cpu)
        return Evidence("S", member.cpu)

    def _here(self) -> bool:
        return self.clock.now() >= self.coordinator_away_until

    def _happen(self, event: Event) -> None:
        """Hand an event to the membership, or keep it while the coordinator is away."""
        if not self._here():
            if not self._held_back:
                self.at(self.coordinator_away_until, self._catch_up)
            self._held_back.append(event)
            return
        decisions = self.membership.handle(event, self.clock.now())
        self.watcher.watch(self.membership, decisions, len(self.members))
        for decision in decisions:
            self._perform(decision)

    def _catch_up(self) -> None:
        events, self._held_back = self._held_back, []
        for event in events:
            self._happen(event)

    def _perform(self, decision: Decision) -> None:
        match decision:
            case Tell(links, message):
                for member in self.members.values():
                    if member.link in links and member.link not in self._closed_links:
                        self._send(member.link, "down", lambda m=member: self._hear(m, message))
            case HangUp(link):
                self._closed_links.add(link)
            case RunOver():
                self.over_at = self.clock.now()

    # Members ----------------------------------------------------------------------------------------

    def _start(self, member: SimulatedMember) -> None:
        if member.state == "new":
            member.state = "joined"
            self._say(member, Join(Member(member.id, "worker", 100 + member.link, "here", "this one", ""), IDENTITY))
            self._beat(member)

    def _awake(self, member: SimulatedMember, again: Callable[[], None]) -> bool:
        """Paused and held members do what they have to do later."""
        until = max(member.paused_until, member.held_until)
        if self.clock.now() < until:
            self.at(until, again)
            return False
        return True

    def _beat(self, member: SimulatedMember) -> None:
        if member.state not in ("joined", "done") or not self._awake(member, lambda: self._beat(member)):
            return
        self._say(member, Beat(member.step, Activity(Phase.COMPUTING) if member.state == "joined" else "finished"))
        self.at(self.clock.now() + DEADLINES.silence / 10, lambda: self._beat(member))

    def _work(self, member: SimulatedMember) -> None:
        if member.state != "joined" or not self._awake(member, lambda: self._work(member)):
            return
        member.step += 1
        if member.step == member.steps:
            member.state = "done"
            self._say(member, Done(member.step))
            return
        if member.step == 3:
            self._say(member, Post(f"seed of {member.id}", b"7"))
        self.at(self.clock.now() + member.step_time, lambda: self._work(member))

    def _hear(self, member: SimulatedMember, message: Message) -> None:
        if member.state == "gone" or not self._awake(member, lambda: self._hear(member, message)):
            return
        member.heard.append(message)
        match message:
            case ViewChange(view):
                member.view = view
                self._work(member)
            case End():
                member.end = message
                self._leave(member, 0 if message.ok else 75)
            case Refuse():
                member.refused = message
                self._leave(member, 1)

    def _leave(self, member: SimulatedMember, code: int | None) -> None:
        member.state = "gone"
        self._send(member.link, "up", lambda: self._happen(LinkClosed(member.link)))
        if code is not None:
            seen = self.clock.now() + self.random.uniform(0.0, 0.05)
            self.at(seen, lambda: self._happen(Exited(member.id, code)))

    # The network ------------------------------------------------------------------------------------

    def _say(self, member: SimulatedMember, message: Message) -> None:
        if isinstance(message, Beat) and self.random.random() < self.network.lost_beats:
            return
        times = 2 if self.random.random() < self.network.repeated else 1
        for _ in range(times):
            self._send(member.link, "up", lambda: self._deliver(Said(member.link, message)))

    def _deliver(self, said: Said) -> None:
        if said.link not in self._closed_links:
            self._happen(said)

    def _send(self, link: int, direction: str, arrive: Callable[[], None]) -> None:
        delay = self.random.expovariate(1 / self.network.latency)
        if self.random.random() < self.network.late:
            delay += self.random.uniform(0.0, 2.0)
        stream = (link, direction)
        moment = max(self._arrival.get(stream, 0.0), self.clock.now() + min(delay, 2.0))
        self._arrival[stream] = moment
        self.at(moment, arrive)

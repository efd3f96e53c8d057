"""Hosts that die, are cut off and come back, around the product's own votes and copies of the record.

Each host has a voter; one has a coordinator, which writes down numbered words and tells them when they count. What is
made up: the network, the processes, time, and what is written down.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from shoal.cluster.succession.election import (
    AskForVotes,
    AskWhetherDead,
    ElectionAct,
    FollowCoordinator,
    StartCoordinator,
    StopCoordinator,
    Voter,
)
from shoal.cluster.succession.electorate import Electorate
from shoal.cluster.succession.record_copies import RecordCopies
from shoal.cluster.succession.succession_messages import (
    CoordinatorAt,
    Follow,
    HostSeat,
    RecordEntry,
    RecordKept,
    StillCoordinating,
    VoteRequest,
)

SILENCE, LEASE = 3.0, 2.0
BEAT = 0.5
STARTUP = 0.8  # seconds that a coordinator's process takes to begin


class Wrong(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class HostFault:
    """What happens: "kill", "vanish", "return", "cut", "heal", "slow", "fast", "crash" (of the coordinator).

    Whoever vanishes is dead without a word: no link to it closes, as when a host loses its power.
    """

    kind: str
    host: str
    at: float


@dataclass(frozen=True)
class HostPlan:
    seed: int
    hosts: int = 3
    faults: tuple[HostFault, ...] = ()
    seconds: float = 60.0
    first_decides: bool = True
    lives: bool = True  # at the end, words must count again


@dataclass
class Coordinator:
    """A process on a host."""

    host: Host
    copies: RecordCopies
    record: list[str]
    links: dict[str, Link] = field(default_factory=dict)  # by voter
    words: dict[int, int] = field(default_factory=dict)  # by index of the record: how many it has up to there
    told: int = 0
    is_dead: bool = False


@dataclass
class Link:
    """Between a voter and a coordinator: what is sent arrives in order."""

    voter: Host
    coordinator: Coordinator
    arrived: float = 0.0  # the last of it
    is_open: bool = True


@dataclass
class Host:
    name: str  # of the place
    voter: Voter
    copy: list[str] = field(default_factory=list)
    coordinator: Coordinator | None = None
    link: Link | None = None
    is_dead: bool = False


class HostSimulation:
    """One run of a plan."""

    def __init__(self, plan: HostPlan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        self.now = 0.0
        self.told: dict[int, str] = {}  # word by number: what members were told
        self.told_at = 0.0
        self.elected: dict[int, str] = {}  # by epoch
        self.gaps: list[float] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._cut: set[str] = set()
        self._slow: set[str] = set()
        self._numbers = itertools.count(2)
        names = tuple("abcdefg"[: plan.hosts])
        self.electorate = Electorate(names, first_decides=plan.first_decides)
        self.hosts = {name: Host(name, self._voter(name, 1, "a")) for name in names}
        self._start(self.hosts["a"], 1, self.electorate)
        for host in self.hosts.values():
            self._connect(host, self._coordinator_of("a"))
            self._after(BEAT * self.random.random(), lambda host=host: self._attend(host))  # type: ignore[misc]
        for fault in plan.faults:
            self._after(fault.at, lambda fault=fault: self._happen(fault))  # type: ignore[misc]

    def play(self) -> None:
        while self._queue and self._queue[0][0] <= self.plan.seconds:
            self.now, _, do = heapq.heappop(self._queue)
            do()
        if self.plan.lives and self.now - self.told_at > 5.0:
            raise Wrong(f"nothing has counted since {self.told_at:.1f}, at {self.now:.1f}")

    # Faults -------------------------------------------------------------------------------------------

    def _happen(self, fault: HostFault) -> None:
        host = self.hosts[fault.host]
        match fault.kind:
            case "kill" if not host.is_dead:
                host.is_dead = True
                if host.coordinator is not None:
                    self._end(host.coordinator, silently=self.random.random() < 0.5)
                if host.link is not None:
                    self._hang_up(host.link, from_voter=True)
            case "vanish" if not host.is_dead:
                host.is_dead = True
                if host.coordinator is not None:
                    host.coordinator.is_dead = True
                    host.coordinator = None
            case "return" if host.is_dead:
                self._return(host.name)
            case "cut":
                self._cut.add(host.name)
            case "heal":
                self._cut.discard(host.name)
            case "slow":
                self._slow.add(host.name)
            case "fast":
                self._slow.discard(host.name)
            case "crash" if host.coordinator is not None:
                self._end(host.coordinator, silently=False)

    def _return(self, name: str) -> None:
        """Whoever has started the run finds the coordinator and starts an agent there: another voter."""
        there = [host for host in self.hosts.values() if host.coordinator is not None and not host.is_dead]
        if not there or name in self._cut:
            self._after(1.0, lambda: self._return(name))
            return
        at = max(there, key=lambda host: host.voter.epoch)
        assert at.coordinator is not None
        id = f"{name}{next(self._numbers)}"
        host = Host(name, self._voter(id, at.coordinator.copies.epoch, at.voter.me))
        self.hosts[name] = host
        self._connect(host, at.coordinator)
        self._attend(host)

    # Time and the network -----------------------------------------------------------------------------

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), do))

    def _delay(self, one: Host, other: Host) -> float:
        slow = {one.name, other.name} & self._slow and one is not other
        return self.random.uniform(0.2, 2.5) if slow else self.random.uniform(0.0005, 0.02)

    def _is_cut(self, one: Host, other: Host) -> bool:
        return one is not other and (one.name in self._cut) != (other.name in self._cut)

    def _say(self, one: Host, other: Host, do: Callable[[], None]) -> None:
        """A question or an answer, which may be lost, late, or out of order."""
        if not self._is_cut(one, other) and not one.is_dead:
            self._after(self._delay(one, other), lambda: None if other.is_dead or self._is_cut(one, other) else do())

    def _over(self, link: Link, do: Callable[[], None]) -> None:
        """In order. On a cut link nothing arrives, and it stays open until somebody gives it up."""
        one, other = link.voter, link.coordinator.host
        if not link.is_open or self._is_cut(one, other):
            return
        link.arrived = max(link.arrived, self.now + self._delay(one, other))

        def arrive() -> None:
            if link.is_open and not one.is_dead and not link.coordinator.is_dead and not self._is_cut(one, other):
                do()
            elif link.is_open and self._is_cut(one, other):
                self._hang_up(link, from_voter=True)  # what comes after what was lost must not arrive

        self._after(link.arrived - self.now, arrive)

    def _hang_up(self, link: Link, from_voter: bool = False) -> None:
        if not link.is_open:
            return
        link.is_open = False
        one, other = link.voter, link.coordinator.host

        def at_coordinator() -> None:
            if link.coordinator.links.get(one.voter.me) is link:
                link.coordinator.copies.lose(one.voter.me)

        def at_voter() -> None:
            if one.link is link:
                one.link = None
                one.voter.close(self.now)

        if not self._is_cut(one, other):
            self._after(self._delay(one, other), at_coordinator)
        self._after(0.0 if from_voter else self._delay(one, other), at_voter)

    # A host's part -------------------------------------------------------------------------------------

    def _voter(self, id: str, epoch: int, first: str) -> Voter:
        known = self.electorate if epoch == 1 and not id[1:] else Electorate(())
        return Voter(id, known, first, SILENCE, self.now, Random(self.random.random()), epoch)

    def _attend(self, host: Host) -> None:
        if host.is_dead:
            return
        link = host.link
        if link is not None and self._is_cut(host, link.coordinator.host) and not host.voter.hears(self.now):
            self._hang_up(link, from_voter=True)
        elif link is not None:
            position = host.voter.position
            self._over(link, lambda: self._hear_kept(link, RecordKept(position.epoch, position.index)))
        self._act(host, host.voter.tick(self.now))
        if host.coordinator is not None and not host.coordinator.is_dead:
            announced = CoordinatorAt(host.coordinator.copies.epoch, host.voter.me, host.name)
            for other in [*self.hosts.values()]:
                self._say(host, other, lambda other=other: self._meet(host, other, announced))  # type: ignore[misc]
        self._after(BEAT, lambda: self._attend(host))

    def _meet(self, host: Host, other: Host, announced: CoordinatorAt) -> None:
        heeded, acts = other.voter.meet(announced, self.now)
        self._act(other, acts)
        self._say(other, host, lambda: self._act(host, host.voter.learn(heeded.epoch)))

    def _act(self, host: Host, acts: list[ElectionAct]) -> None:
        for act in acts:
            match act:
                case AskForVotes(request, of):
                    for other in [other for other in self.hosts.values() if other.voter.me in of]:
                        self._say(host, other, lambda other=other, it=request: self._ask(host, other, it))  # type: ignore[misc]
                case StopCoordinator():
                    if host.coordinator is not None:
                        self._end(host.coordinator, silently=False)
                case StartCoordinator(epoch):
                    self._after(STARTUP, lambda epoch=epoch: self._succeed(host, epoch))  # type: ignore[misc]
                case FollowCoordinator(_, _, where):
                    coordinator = self.hosts[where].coordinator
                    if host.coordinator is not None and host.coordinator is not coordinator:
                        self._end(host.coordinator, silently=False)
                    if coordinator is not None and (host.link is None or host.link.coordinator is not coordinator):
                        self._connect(host, coordinator)
                case AskWhetherDead():
                    pass

    def _ask(self, host: Host, other: Host, request: VoteRequest) -> None:
        vote, acts = other.voter.answer(request, self.now)
        self._act(other, acts)
        self._say(other, host, lambda: self._act(host, host.voter.count(vote, self.now)))

    def _connect(self, host: Host, coordinator: Coordinator) -> None:
        if host.link is not None:
            self._hang_up(host.link, from_voter=True)
        host.link = link = Link(host, coordinator)
        voter = host.voter
        follow = Follow(voter.epoch, voter.me, HostSeat(host.name, host.name), voter.position)
        if self._is_cut(host, coordinator.host):
            link.is_open, host.link = False, None
            return
        self._over(link, lambda: self._hear_follow(link, follow))

    # A coordinator's part --------------------------------------------------------------------------------

    def _coordinator_of(self, name: str) -> Coordinator:
        coordinator = self.hosts[name].coordinator
        assert coordinator is not None
        return coordinator

    def _succeed(self, host: Host, epoch: int) -> None:
        if host.is_dead or host.voter.epoch != epoch or not host.voter.has_coordinator:
            return
        if host.coordinator is not None:
            self._end(host.coordinator, silently=False)
        self._start(host, epoch, host.voter.electorate)
        self._connect(host, self._coordinator_of(host.name))

    def _start(self, host: Host, epoch: int, electorate: Electorate) -> None:
        if self.elected.setdefault(epoch, host.name) != host.name:
            raise Wrong(f"two coordinators in epoch {epoch}: {self.elected[epoch]} and {host.name}")
        coordinator = Coordinator(host, RecordCopies(epoch, electorate, self.now), list(host.copy))
        host.coordinator = coordinator
        for number, word in self.told.items():
            if coordinator.record[number : number + 1] != [word]:
                raise Wrong(f"word {number}, {word}, had counted: {host.name} goes on without it in epoch {epoch}")
        self._work(coordinator)

    def _end(self, coordinator: Coordinator, silently: bool) -> None:
        coordinator.is_dead = True
        coordinator.host.coordinator = None
        for link in coordinator.links.values():
            if not silently or link.voter is coordinator.host:
                self._hang_up(link)

    def _work(self, coordinator: Coordinator) -> None:
        if coordinator.is_dead:
            return
        copies, record = coordinator.copies, coordinator.record
        record.append(f"{copies.epoch}:{len(record)}")
        anew = copies.index == 0 or self.random.random() < 0.1
        entry = copies.append(json.dumps(record if anew else record[-1]).encode(), anew)
        coordinator.words[entry.index] = len(record)
        self._send(coordinator)
        if (electorate := copies.next_electorate(self.now)) is not None:
            coordinator.words[copies.change(electorate).index] = len(record)
            self._send(coordinator)
        if copies.is_heard(self.now, LEASE):
            for link in coordinator.links.values():
                self._over(link, lambda link=link: self._hear(link, StillCoordinating(copies.epoch, {})))  # type: ignore[misc]
        self._after(BEAT, lambda: self._work(coordinator))

    def _send(self, coordinator: Coordinator) -> None:
        for voter, link in coordinator.links.items():
            for entry in coordinator.copies.unsent(voter) if link.is_open else ():
                self._over(link, lambda link=link, entry=entry: self._hear(link, entry))  # type: ignore[misc]

    def _hear_follow(self, link: Link, follow: Follow) -> None:
        coordinator = link.coordinator
        if follow.epoch > coordinator.copies.epoch:
            self._end(coordinator, silently=False)
            return
        coordinator.links[follow.voter] = link
        coordinator.copies.follow(follow.voter, follow.position, self.now)
        self._send(coordinator)

    def _hear_kept(self, link: Link, kept: RecordKept) -> None:
        coordinator, voter = link.coordinator, link.voter.voter.me
        if coordinator.links.get(voter) is not link:
            return
        coordinator.copies.keep(voter, kept.epoch, kept.index, self.now)
        self._tell(coordinator)

    def _tell(self, coordinator: Coordinator) -> None:
        """What counts is told to members."""
        for number in range(coordinator.told, coordinator.words.get(coordinator.copies.committed, 0)):
            word = coordinator.record[number]
            if self.told.setdefault(number, word) != word:
                raise Wrong(f"word {number} is {self.told[number]} for some and {word} for others")
            self.gaps.append(self.now - self.told_at)
            self.told_at = self.now
            coordinator.told = number + 1

    def _hear(self, link: Link, message: RecordEntry | StillCoordinating) -> None:
        host = link.voter
        if host.link is not link:
            return
        if isinstance(message, StillCoordinating):
            if not host.voter.hear(message.epoch, self.now):
                self._hang_up(link, from_voter=True)
            return
        if not host.voter.keep(message, self.now):
            self._hang_up(link, from_voter=True)
            return
        if message.content:
            value = json.loads(message.content)
            if message.anew:
                host.copy = value
            else:
                host.copy.append(value)
        kept = RecordKept(message.epoch, message.index)
        self._over(link, lambda: self._hear_kept(link, kept))

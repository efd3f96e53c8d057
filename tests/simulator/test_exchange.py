"""The exchange protocol under a seeded simulator: N members, delayed messages, kills and pauses at any moment.

Messages stay in order between two members and come in any order across pairs. A killed member's connections close
behind what it had sent. The members' memory is modelled too: who writes and reads which bucket, when.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.collectives.messages import Aborted, Reduced, SlotsPublished, Summed, TotalsArrived
from shoal.collectives.protocol import (
    Abort,
    Broken,
    Commit,
    Decision,
    Exchanges,
    ExchangeWork,
    Late,
    Lost,
    Message,
    Mismatch,
    Reduce,
    Rounds,
    SayToPeer,
    Stale,
    Sum,
)

PATIENCE = 10.0


class Peer:
    """One member: its protocol, what it still has to send, its memory and what became of it."""

    def __init__(self, sim: Sim, name: str) -> None:
        self.name = name
        self.protocol = sim.protocol(1, sim.names, name, PATIENCE, sim.neighbours(name))
        self.outbox: deque[tuple[str, Message]] = deque()
        self.bucket = [-1] * sim.turns  # in each turn's slot: the exchange whose gradient lies there
        self.todo = ""  # "sum", "reduce" or "read": the next thing that takes time
        self.begun = 0
        self.totals: list[list[int]] = []
        self.end: Decision | None = None
        self.dead = self.paused = False

    @property
    def acts(self) -> bool:
        return not self.dead and not self.paused and self.end is None


class Sim:
    """A run of `exchanges` exchanges among `size` members under one seed."""

    def __init__(
        self,
        seed: int,
        size: int,
        rounds: int,
        exchanges: int = 4,
        kills: int = 0,
        pauses: int = 0,
        turns: int = 2,
        protocol: type[Exchanges] = Exchanges,
    ) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.names = tuple(f"worker-{i}" for i in range(size))
        self.rounds, self.exchanges, self.turns = rounds, exchanges, turns
        self.protocol = protocol
        self.peers = {name: Peer(self, name) for name in self.names}
        self.wire = {(a, b): deque[Message | Lost]() for a in self.names for b in self.names if a != b}
        self.result: dict[str, list[int]] = {}  # each member's slice of the result: what it added up there
        self.faults = ["kill"] * kills + ["pause"] * pauses
        self.shares = tuple(range(i, i + 1) for i in range(size))

    def neighbours(self, name: str) -> frozenset[str]:
        return frozenset()

    def run(self) -> Sim:
        while True:
            moves = list(self._moves())
            if self.faults and self.random.random() < 0.05:
                self._fault()
            elif moves:
                move, *arguments = self.random.choice(moves)
                getattr(self, move)(*arguments)
            elif not self._time_passes():
                return self

    def _moves(self) -> Iterator[tuple[str, ...]]:
        for name, peer in self.peers.items():
            if peer.outbox and not peer.dead and not peer.paused:
                yield "_send", name
            if not peer.acts:
                continue
            if peer.todo and not (peer.todo == "read" and peer.outbox):
                yield "_" + peer.todo, name
            if not peer.todo and not peer.protocol.awaited() and not peer.outbox and peer.begun < self.exchanges:
                yield "_begin", name
        for (sender, receiver), queue in self.wire.items():
            if queue and self.peers[receiver].acts and sender in self.peers[receiver].protocol.awaited():
                yield "_deliver", sender, receiver

    def _begin(self, name: str) -> None:
        peer = self.peers[name]
        peer.begun += 1
        peer.bucket[peer.begun % self.turns] = peer.begun
        work = ExchangeWork(1, len(self.names), self.shares)
        note = f"{name} {peer.begun}".encode()
        now = self.clock.now()
        self._decide(peer, peer.protocol.begin(f"step {peer.begun}", note, now, work, Rounds(self.rounds)))

    def _send(self, name: str) -> None:
        to, message = self.peers[name].outbox.popleft()
        self.wire[name, to].append(message)

    def _deliver(self, sender: str, receiver: str) -> None:
        peer = self.peers[receiver]
        self._decide(peer, peer.protocol.handle(sender, self.wire[sender, receiver].popleft(), self.clock.now()))

    def _reduce(self, name: str) -> None:
        peer = self.peers[name]
        peer.todo = ""
        self.result[name] = self._gradients(peer)
        self._decide(peer, peer.protocol.reduced(self.clock.now()))

    def _read(self, name: str) -> None:
        """What the training step sees: with one round its own sum, with two everyone's slices of the result."""
        peer = self.peers[name]
        peer.todo = ""
        parts = [self._gradients(peer)] if self.rounds == 1 else [self.result.get(n, []) for n in self.names]
        peer.totals.append([gradient for part in parts for gradient in part])

    def _gradients(self, reader: Peer) -> list[int]:
        return [peer.bucket[reader.begun % self.turns] for peer in self.peers.values()]

    def _decide(self, peer: Peer, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, SayToPeer):
                others = self._told(peer.name, decision.message)
                self.random.shuffle(others)
                peer.outbox.extend((name, decision.message) for name in others)
            elif isinstance(decision, Sum):
                peer.todo = "sum"
            elif isinstance(decision, Reduce):
                peer.todo = "reduce"
            elif isinstance(decision, Commit):
                assert decision.notes == [f"{name} {peer.begun}".encode() for name in self.names]
                peer.todo = "read"
            else:
                peer.end = decision

    def _told(self, name: str, message: Message) -> list[str]:
        return [other for other in self.names if other != name]

    def _fault(self) -> None:
        peer = self.peers[self.random.choice(self.names)]
        if self.faults.pop() == "pause":
            peer.paused = True
            return
        peer.dead = True
        for name in self.names:
            if name != peer.name:
                self.wire[peer.name, name].append(Lost(f"the connection to {peer.name} closed"))

    def _time_passes(self) -> bool:
        """Nothing can happen but the passing of time: to the next deadline. False when nobody waits any more."""
        waiting = [peer for peer in self.peers.values() if peer.acts and peer.protocol.awaited()]
        if not waiting:
            return False
        self.clock.advance(min(peer.protocol.deadline() for peer in waiting) - self.clock.now())
        for peer in waiting:
            self._decide(peer, peer.protocol.tick(self.clock.now()))
            assert peer.end is not None or peer.protocol.deadline() > self.clock.now(), "waits past its deadline"
        return True

    def check(self) -> None:
        """Every member either committed all, the same totals as all others, or named who was lost."""
        size = len(self.names) if self.rounds == 2 else 1
        for peer in self.peers.values():
            for step, total in enumerate(peer.totals, 1):
                assert total == [step] * len(self.names) * size, f"{peer.name} read a wrong total at step {step}"
            if peer.dead or peer.paused:
                continue
            if peer.end is None:
                assert len(peer.totals) == self.exchanges, f"{peer.name} stopped at {len(peer.totals)} exchanges"
            elif isinstance(peer.end, Abort):
                assert all(self.peers[name].dead for name in peer.end.members), peer.end
                assert all(f"connection to {name} closed" in peer.end.why for name in peer.end.members)
            else:
                assert isinstance(peer.end, Late), peer.end
                assert any(self.peers[name].paused or self.peers[name].end for name in peer.end.members), peer.end
                assert peer.end.waited == PATIENCE


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_without_faults_everyone_commits_everything(size: int, rounds: int) -> None:
    for seed in range(60):
        sim = Sim(seed, size, rounds).run()
        sim.check()
        assert all(len(peer.totals) == 4 for peer in sim.peers.values()), f"seed {seed}"
        assert sim.clock.now() == 0.0


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("kills", [1, 2])
def test_a_kill_at_any_moment_is_named_or_comes_too_late_to_matter(kills: int, rounds: int) -> None:
    ends = []
    for seed in range(250):
        sim = Sim(seed, 4, rounds, kills=kills).run()
        try:
            sim.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        ends += [type(peer.end) for peer in sim.peers.values()]
        assert sim.clock.now() == 0.0, "a closed connection is seen at once, not at the deadline"
    assert ends.count(Abort) > 300  # the kills did fall into exchanges


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_pause_ends_everyones_wait_at_the_deadline(rounds: int) -> None:
    late = 0
    for seed in range(250):
        sim = Sim(seed, 3, rounds, pauses=1).run()
        sim.check()
        assert sim.clock.now() <= 2 * PATIENCE, f"seed {seed}"
        late += sum(isinstance(peer.end, Late) for peer in sim.peers.values())
    assert late > 200


class HostSim(Sim):
    """The same on several hosts: buckets and results are a host's own, and what crosses is read as it is sent."""

    def __init__(self, seed: int, hosts: tuple[int, ...], **scene: Any) -> None:
        self.hosts = [number for number, size in enumerate(hosts) for _ in range(size)]
        self.arrived: dict[tuple[str, str], list[int]] = {}  # other hosts' sums: (who sent, who owns)
        self.totals: dict[tuple[int, str, str], list[int]] = {}  # in a host's memory: whose total, who wrote it
        self.beside: dict[tuple[str, str], deque[list[int]]] = {}
        super().__init__(seed, len(self.hosts), Rounds.HOSTS, turns=1, **scene)

    def host(self, name: str) -> int:
        return self.hosts[int(name.removeprefix("worker-"))]

    def neighbours(self, name: str) -> frozenset[str]:
        return frozenset(other for other in self.names if self.host(other) == self.host(name))

    def _told(self, name: str, message: Message) -> list[str]:
        told = super()._told(name, message)
        return [other for other in told if other in self.neighbours(name) or not isinstance(message, TotalsArrived)]

    def _host_gradients(self, name: str) -> list[int]:
        return [self.peers[other].bucket[0] for other in self.names if other in self.neighbours(name)]

    def _send(self, name: str) -> None:
        to, message = self.peers[name].outbox[0]
        if isinstance(message, Summed | Reduced) and self.host(to) != self.host(name):
            total = self.totals.get((self.host(name), name, name), [])
            content = self._host_gradients(name) if isinstance(message, Summed) else list(total)
            self.beside.setdefault((name, to), deque()).append(content)
        super()._send(name)

    def _deliver(self, sender: str, receiver: str) -> None:
        message = self.wire[sender, receiver][0]
        if isinstance(message, Summed | Reduced) and self.host(sender) != self.host(receiver):
            content = self.beside[sender, receiver].popleft()
            if isinstance(message, Summed):
                self.arrived[sender, receiver] = content
            else:
                self.totals[self.host(receiver), sender, receiver] = content
        super()._deliver(sender, receiver)

    def _sum(self, name: str) -> None:
        peer = self.peers[name]
        peer.todo = ""
        self._decide(peer, peer.protocol.summed(1, self.clock.now()))

    def _reduce(self, name: str) -> None:
        peer = self.peers[name]
        peer.todo = ""
        others = [other for other in self.names if self.host(other) != self.host(name)]
        sums = [gradient for other in others for gradient in self.arrived.get((other, name), [0])]
        self.totals[self.host(name), name, name] = self._host_gradients(name) + sums
        self._decide(peer, peer.protocol.reduced(self.clock.now()))

    def _read(self, name: str) -> None:
        """Everybody's totals as they lie in the host's memory."""
        peer = self.peers[name]
        peer.todo = ""
        near = self.neighbours(name)
        wrote = [(owner, by) for owner in self.names for by in ([owner] if owner in near else sorted(near))]
        seen = {gradient for part in wrote for gradient in self.totals.get((self.host(name), *part), [0])}
        assert seen == {peer.begun}, f"{name} read {seen} at step {peer.begun}"
        peer.totals.append([peer.begun] * len(self.names) ** 2)

    def check(self) -> None:
        self.rounds = Rounds.SLICES  # as many totals as there
        super().check()


HOSTS = [(2, 2), (1, 2), (3, 1, 2), (1, 1), (4,)]


@pytest.mark.parametrize("hosts", HOSTS)
def test_on_several_hosts_everyone_commits_everything_without_faults(hosts: tuple[int, ...]) -> None:
    for seed in range(60):
        sim = HostSim(seed, hosts).run()
        sim.check()
        assert all(len(peer.totals) == 4 for peer in sim.peers.values()), f"seed {seed}"
        assert sim.clock.now() == 0.0


@pytest.mark.parametrize("hosts", [(2, 2), (1, 3)])
@pytest.mark.parametrize("kills", [1, 2])
def test_on_several_hosts_a_kill_at_any_moment_is_named(kills: int, hosts: tuple[int, ...]) -> None:
    ends = []
    for seed in range(150):
        sim = HostSim(seed, hosts, kills=kills).run()
        try:
            sim.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        ends += [type(peer.end) for peer in sim.peers.values()]
        assert sim.clock.now() == 0.0, "a closed connection is seen at once, not at the deadline"
    assert ends.count(Abort) > 200


def test_on_several_hosts_a_pause_ends_everyones_wait_and_who_paused_is_named() -> None:
    late = 0
    for seed in range(150):
        sim = HostSim(seed, (2, 2), pauses=1).run()
        sim.check()
        (paused,) = [peer.name for peer in sim.peers.values() if peer.paused] or ["nobody"]
        ends = [peer.end for peer in sim.peers.values() if isinstance(peer.end, Late)]
        # Not by all: who has the paused one's last word waits for a neighbour that has not.
        assert not ends or any(paused in end.members for end in ends), f"seed {seed}"
        late += len(ends)
    assert late > 120


class ForgetsTheNeighbours(Exchanges):
    """A mutant: commits when all have reduced, before its neighbours have what crossed to them."""

    def _progress_of_hosts(self, now: float) -> list[Decision]:
        decisions = super()._progress_of_hosts(now)
        return decisions + self._commit() if self._round == 4 else decisions


class SumsTooSoon(Exchanges):
    """A mutant: adds up for its host before its neighbours have come."""

    def _progress_of_hosts(self, now: float) -> list[Decision]:
        if self._round == 1:
            self._round = 2
            return [Sum()]
        return super()._progress_of_hosts(now)


class ReducesWithoutTheOtherHosts(Exchanges):
    """A mutant: adds up its part when all have come, before the other hosts' sums have."""

    def _progress_of_hosts(self, now: float) -> list[Decision]:
        if self._round == 2 and self._me in self._summed and len(self._published) == len(self._members):
            self._round = 3
            return [Reduce()]
        return super()._progress_of_hosts(now)


def caught_on_hosts(protocol: type[Exchanges]) -> bool:
    for seed in range(200):
        try:
            HostSim(seed, (2, 2), protocol=protocol).run().check()
        except (AssertionError, KeyError):
            return True
    return False


@pytest.mark.parametrize("mutant", [ForgetsTheNeighbours, SumsTooSoon, ReducesWithoutTheOtherHosts])
def test_the_simulator_of_hosts_catches_mutants(mutant: type[Exchanges]) -> None:
    assert not caught_on_hosts(Exchanges)
    assert caught_on_hosts(mutant)


class CommitsTooSoon(Exchanges):
    """A mutant: commits when its own slice is reduced, without waiting for the others'."""

    def reduced(self, now: float) -> list[Decision]:
        decisions = super().reduced(now)
        if self._round == 2:
            decisions += self._commit()
        return decisions


class ReducesTooSoon(Exchanges):
    """A mutant: adds up its slice although one member has not published yet."""

    def handle(self, sender: str, event: Message | Lost, now: float) -> list[Decision]:
        decisions = super().handle(sender, event, now)
        if self._round == 1 and len(self._published) == len(self._members) - 1:
            self._round = 2
            decisions.append(Reduce())
        return decisions


class ForgetsTheLost(Exchanges):
    """A mutant: does not abort when somebody is lost."""

    def handle(self, sender: str, event: Message | Lost, now: float) -> list[Decision]:
        return [] if isinstance(event, Lost) else super().handle(sender, event, now)


def caught(**scene: object) -> bool:
    for seed in range(200):
        sim = Sim(seed, 3, **scene)  # type: ignore[arg-type]
        try:
            sim.run().check()
            assert sim.clock.now() == 0.0
        except (AssertionError, KeyError):
            return True
    return False


def test_the_simulator_catches_mutants() -> None:
    assert not caught(rounds=2)
    assert caught(rounds=2, protocol=CommitsTooSoon)
    assert caught(rounds=2, protocol=ReducesTooSoon)
    assert not caught(rounds=2, kills=1)
    assert caught(rounds=2, kills=1, protocol=ForgetsTheLost)


def test_small_vectors_need_slots_that_take_turns_and_large_ones_do_not() -> None:
    assert not caught(rounds=1, turns=2)
    assert caught(rounds=1, turns=1)
    assert not caught(rounds=2, turns=1)


# Single scenes.

NAMES = ("a", "b", "c")


def word(number: int = 1, what: str = "step 1", view: int = 1, **work: int) -> SlotsPublished:
    return SlotsPublished(view, number, what, b"", **work)


def begun(what: str = "step 1", rounds: int = 1, work: ExchangeWork | None = None) -> Exchanges:
    protocol = Exchanges(1, NAMES, "b", PATIENCE, frozenset("ab") if rounds == Rounds.HOSTS else frozenset())
    protocol.begin(what, b"", 0.0, work, Rounds(rounds))
    return protocol


def test_scripts_that_diverge_are_told_both_sides() -> None:
    (decision,) = begun("fit step 12").handle("c", word(what="predict batch 0"), 0.0)
    assert isinstance(decision, Mismatch)
    assert "b is at 'fit step 12', c at 'predict batch 0'" in decision.text
    assert "do not make them depend on the rank" in decision.text


def test_members_that_disagree_about_who_holds_what_are_told_so() -> None:
    protocol = begun(work=ExchangeWork(1, 6, (range(2), range(2, 4), range(4, 6))), rounds=2)
    assert protocol.handle("a", word(exchange=1, pieces=6, first=0, stop=2), 0.0) == []
    (decision,) = protocol.handle("c", word(exchange=1, pieces=6, first=3, stop=6), 0.0)
    assert isinstance(decision, Mismatch)
    assert "c says that it holds the pieces 3 to 6 of 6; b expects 4 to 6 of 6" in decision.text


def test_a_message_of_another_view_is_refused_and_changes_nothing() -> None:
    protocol = begun()
    (decision,) = protocol.handle("c", word(view=0), 0.0)
    assert decision == Stale("c", "c is in view 0, b in view 1")
    assert protocol.waiting_for() == ("a", "c")


@pytest.mark.parametrize(
    "message",
    [word(number=0), word(number=3), Reduced(1, 1)],
    ids=["an exchange long gone", "two exchanges ahead", "reduced before published"],
)
def test_a_peer_that_breaks_the_protocol_is_named(message: SlotsPublished | Reduced) -> None:
    (decision,) = begun(rounds=2).handle("c", message, 0.0)
    assert isinstance(decision, Broken)
    assert decision.member == "c"


def test_what_is_said_twice_is_broken() -> None:
    protocol = begun()
    protocol.handle("c", word(), 0.0)
    assert isinstance(protocol.handle("c", word(), 0.0)[0], Broken)


@pytest.mark.parametrize(
    "words",
    [
        [Summed(1, 1, 0, 1)],
        [word(), Reduced(1, 1)],
        [word(), Summed(1, 1, 0, 1), Summed(1, 1, 0, 1)],
        [word(), Summed(1, 1, 0, 1), Reduced(1, 1), TotalsArrived(1, 1)],
        [word(), Summed(1, 2, 0, 1)],
    ],
    ids=["summed before published", "reduced before summed", "twice", "gathered on another host", "another exchange"],
)
def test_on_several_hosts_what_comes_out_of_order_is_broken(words: list[Message]) -> None:
    protocol = begun(rounds=4)
    *before, last = words
    for message in before:
        assert not any(isinstance(decision, Broken) for decision in protocol.handle("c", message, 0.0))
    (decision,) = protocol.handle("c", last, 0.0)
    assert isinstance(decision, Broken)
    assert decision.member == "c"


def test_on_several_hosts_who_is_furthest_back_is_late() -> None:
    """c waits for d, its neighbour, before it can sum; only d did not come."""
    protocol = Exchanges(1, (*NAMES, "d"), "b", PATIENCE, frozenset("ab"))
    protocol.begin("step 1", b"", 0.0, None, Rounds.HOSTS)
    protocol.handle("c", word(), 1.0)
    assert protocol.handle("a", word(), 2.0) == [Sum()]
    protocol.summed(1, 3.0)
    protocol.handle("a", Summed(1, 1, 0, 1), 3.0)
    assert protocol.tick(3.0 + PATIENCE) == [Late(("d",), PATIENCE)]


def test_who_is_awaited_and_who_keeps_the_round_from_ending() -> None:
    protocol = begun(rounds=2)
    protocol.handle("a", word(), 0.0)
    protocol.handle("a", Reduced(1, 1), 0.0)  # c's Published is still on its way to b, a has it
    assert (protocol.awaited(), protocol.waiting_for()) == ({"c"}, ("c",))
    assert protocol.handle("c", word(), 1.0) == [Reduce()]
    assert protocol.waiting_for() == ("c",)
    assert protocol.reduced(2.0) == [SayToPeer(Reduced(1, 1))]
    assert protocol.deadline() == 2.0 + PATIENCE
    assert protocol.handle("c", Reduced(1, 1), 3.0) == [Commit([b"", b"", b""])]
    assert (protocol.awaited(), protocol.waiting_for()) == (frozenset(), ())


def test_a_member_lost_after_its_part_ends_the_next_exchange_only() -> None:
    protocol = begun()
    protocol.handle("a", word(), 0.0)
    assert protocol.handle("a", Lost("closed"), 0.0) == []
    assert isinstance(protocol.handle("c", word(), 0.0)[0], Commit)
    come, tell, abort = protocol.begin("step 2", b"", 0.0)
    assert isinstance(come, SayToPeer)
    assert tell == SayToPeer(Aborted(1, ("a",), "closed"))
    assert abort == Abort(("a",), "closed")
    assert protocol.begin("step 3", b"", 0.0) == [abort]


def test_who_aborts_tells_the_others_who_was_lost() -> None:
    """c knows that a is lost and leaves; b has all of a's part and must not think that c is the cause."""
    protocol = begun()
    protocol.handle("a", word(), 0.0)
    _, abort = protocol.handle("c", Aborted(1, ("a",), "closed"), 0.0)
    assert abort == Abort(("a",), "closed")


def test_after_its_end_nothing_moves_a_member_any_more() -> None:
    protocol = begun()
    (late,) = protocol.tick(PATIENCE)
    assert late == Late(("a", "c"), PATIENCE)
    assert protocol.handle("a", word(), 11.0) == []
    assert protocol.tick(30.0) == []


def test_an_exchange_must_end_before_the_next_begins() -> None:
    with pytest.raises(RuntimeError, match="'step 1' has not ended"):
        begun().begin("step 2", b"", 0.0)

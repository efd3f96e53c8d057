"""How the workers of a view come together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from shoal.clock import Deadline
from shoal.cluster.view import View
from shoal.collectives.abstract import AbstractGroup
from shoal.collectives.alone import Alone
from shoal.collectives.hosts import open_hosts
from shoal.collectives.messages import CODEC, PeerHello, RefusePeer, Welcome
from shoal.collectives.messenger import Messenger
from shoal.collectives.peers import Opener, PeerGroup
from shoal.collectives.shared import open_shared
from shoal.collectives.sockets import open_sockets
from shoal.collectives.transports import hosts_of, transports
from shoal.config import Deadlines, Transport
from shoal.errors import BadFrame, PeerClosed, PeerTimeout, Refused
from shoal.observe.counters import Traffic
from shoal.observe.recorder import Waited
from shoal.wire.connection import Connection, connect
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener, accept_any
from shoal.wire.waits import READABLE, wait
from shoal.wire.wakeup import Wakeup

_OTHER_VIEW = "other view"
_AGAIN = 0.005  # seconds until a peer that has not heard of the new view yet is asked again


def form(
    view: View,
    me: str,
    listener: Listener,
    key: RunKey,
    transport: Transport,
    deadlines: Deadlines,
    wakeup: Wakeup,
    on_wait: Callable[[bool, Sequence[Waited]], None] = lambda waiting, waits: None,
    nearby: Listener | None = None,
    traffic: Traffic | None = None,
) -> AbstractGroup:
    """Connect the workers of a view, each to each. Collective; returns when all are connected.

    Those of one host come to `nearby`, where there is one, and all others to `listener`.

    Each connects to those of lower rank and accepts those of higher rank. Someone of another view is refused
    with the reason. PeerTimeout names those that did not come within `deadlines.stall`: a group is formed when
    the scripts first train, and one may have loaded its data long before another. `on_wait` is told when this
    member comes to where it can't go on unless all come, here and in every exchange, and when it goes on. What it
    sends is counted in `traffic`.
    """
    workers = view.workers
    if len(workers) == 1:
        return Alone(me)
    rank = view.rank(me)
    hosts = hosts_of(workers, transport)
    pairs = transports(hosts, rank)
    listeners = [listener] if nearby is None else [listener, nearby]
    on_wait(True, ())
    deadline = Deadline.after(deadlines.stall)
    begun = deadline.clock.now()
    connections: dict[str, Connection] = {}
    try:
        for other, peer in enumerate(workers[:rank]):
            address = pairs[other].address(peer)
            connections[peer.id] = _join(view, me, peer.id, address, key, deadline, wakeup)
        awaited = {peer.id for peer in workers[rank + 1 :]}
        while awaited:
            newcomer = _accept(view, me, awaited, listeners, deadline, wakeup)
            connections[newcomer.peer] = newcomer
            awaited.remove(newcomer.peer)
    except PeerTimeout as error:
        _close_all(connections)
        missing = tuple(w.id for w in workers if w.id != me and w.id not in connections)
        raise PeerTimeout(
            missing,
            f"view {view.number}: {', '.join(missing)} did not connect to {me} within {deadlines.stall:.1f} s"
            f"; {len(workers) - len(missing)} of {len(workers)} came",
        ) from error
    except BaseException:
        _close_all(connections)
        raise
    on_wait(False, [Waited(begun, deadline.clock.now())])
    members = tuple(worker.id for worker in workers)
    near = next(ranks for ranks in hosts if rank in ranks)
    meeting = Messenger(
        view.number, members, me, connections, deadlines.stall, wakeup, None, on_wait, near, traffic or Traffic()
    )
    return PeerGroup(meeting, _opener(hosts), hosts)


def _opener(hosts: tuple[tuple[int, ...], ...]) -> Opener:
    """How vectors move between workers that are on these hosts."""
    if len(hosts) == 1:
        return open_shared
    if all(len(ranks) == 1 for ranks in hosts):
        return open_sockets
    return partial(open_hosts, hosts=hosts)


def _join(view: View, me: str, peer: str, address: str, key: RunKey, deadline: Deadline, wakeup: Wakeup) -> Connection:
    """Connect to a worker of lower rank, which may hear of the view a moment later."""
    said: Refused | None = None  # what it answered last
    while True:
        try:
            return _greet(view, me, peer, address, key, deadline, wakeup)
        except Refused as refused:
            if refused.reason != _OTHER_VIEW or deadline.passed():
                raise
            said = refused
            wait(wakeup.fileno(), READABLE, Deadline.after(_AGAIN), wakeup)
        except PeerTimeout as late:
            if said is None:
                raise
            raise said from late


def _greet(view: View, me: str, peer: str, address: str, key: RunKey, deadline: Deadline, wakeup: Wakeup) -> Connection:
    try:
        connection = connect(address, key, CODEC, deadline, wakeup)
    except PeerClosed as gone:
        if isinstance(gone.__cause__, FileNotFoundError):
            # Somebody has deleted the run's folder; or it has left in good order, and there is a newer view.
            raise Refused(_OTHER_VIEW, f"{peer} does not listen at {address} yet") from gone
        raise
    connection.peer = peer
    try:
        connection.send(PeerHello(view.number, me), deadline=deadline)
        answer = connection.receive(deadline, wake=wakeup)
        if isinstance(answer, RefusePeer):
            raise Refused(answer.reason, f"{peer} refused {me}: {answer.text}")
        if answer != Welcome(view.number, peer):
            raise BadFrame(f"{peer} answered {me}'s hello with {answer}")
    except PeerClosed as gone:
        connection.close()
        # It had not come to this view yet when it took the connection. One that is gone takes no other.
        raise Refused(_OTHER_VIEW, f"{peer} hung up on {me}") from gone
    except BaseException:
        connection.close()
        raise
    return connection


def _accept(
    view: View, me: str, awaited: set[str], listeners: Sequence[Listener], deadline: Deadline, wakeup: Wakeup
) -> Connection:
    """The next worker of higher rank that says the right hello; others are told why not."""
    while True:
        connection = accept_any(listeners, CODEC, deadline, wakeup)
        try:
            hello = connection.receive(deadline, wake=wakeup)
            refusal = _refusal(view, me, awaited, hello)
            if refusal is None and isinstance(hello, PeerHello):
                connection.peer = hello.member
                connection.send(Welcome(view.number, me), deadline=deadline)
                return connection
            if refusal is not None:
                connection.send(refusal, deadline=deadline)
        except (PeerClosed, BadFrame):
            pass  # it changed its mind, or is none of us; who is awaited is still awaited
        except BaseException:
            connection.close()
            raise
        connection.close()


def _refusal(view: View, me: str, awaited: set[str], hello: object) -> RefusePeer | None:
    """Why this is not the hello of somebody who is awaited, if it isn't."""
    if not isinstance(hello, PeerHello):
        return RefusePeer("no hello", f"{me} expected a hello, not {type(hello).__name__}")
    if hello.view != view.number:
        return RefusePeer(_OTHER_VIEW, f"{hello.member} is in view {hello.view}, {me} is in view {view.number}")
    if hello.member not in awaited:
        return RefusePeer("not awaited", f"{me} does not wait for {hello.member} in view {view.number}")
    return None


def _close_all(connections: dict[str, Connection]) -> None:
    for connection in connections.values():
        connection.close()

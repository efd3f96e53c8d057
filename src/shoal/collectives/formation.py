"""How the workers of a view come together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from shoal.clock import Deadline
from shoal.cluster.view import Member, View
from shoal.collectives.abstract import AbstractGroup
from shoal.collectives.alone import Alone
from shoal.collectives.meeting import Meeting
from shoal.collectives.messages import CODEC, Hello, Refuse, Welcome
from shoal.collectives.peers import Opener, PeerGroup
from shoal.collectives.shared import open_shared
from shoal.collectives.sockets import open_sockets
from shoal.config import Deadlines
from shoal.errors import BadFrame, PeerClosed, PeerTimeout, Refused, UsageError
from shoal.wire.connection import Connection, connect
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.waits import READABLE, wait
from shoal.wire.wakeup import Wakeup

_OTHER_VIEW = "other view"
_AGAIN = 0.005  # seconds until a peer that has not heard of the new view yet is asked again

OPENERS: dict[str, Opener] = {"shm": open_shared, "tcp": open_sockets}


def form(
    view: View,
    me: str,
    listener: Listener,
    key: RunKey,
    transport: Literal["shm", "tcp"],
    deadlines: Deadlines,
    wakeup: Wakeup,
    on_wait: Callable[[bool], None] = lambda waiting: None,
) -> AbstractGroup:
    """Connect the workers of a view, each to each. Collective; returns when all are connected.

    Each connects to those of lower rank and accepts those of higher rank. Someone of another view is refused
    with the reason. PeerTimeout names those that did not come within `deadlines.stall`: a group is formed when
    the scripts first train, and one may have loaded its data long before another. `on_wait` is told when this
    member comes to an exchange, where it can't go on unless all come, and when it leaves it.
    """
    workers = view.workers
    if len(workers) == 1:
        return Alone(me)
    if transport == "shm":
        _check_unix(workers)
    rank = view.rank(me)
    deadline = Deadline.after(deadlines.stall)
    connections: dict[str, Connection] = {}
    try:
        for peer in workers[:rank]:
            connections[peer.id] = _join(view, me, peer, key, deadline, wakeup)
        awaited = {peer.id for peer in workers[rank + 1 :]}
        while awaited:
            newcomer = _accept(view, me, awaited, listener, deadline, wakeup)
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
    members = tuple(worker.id for worker in workers)
    meeting = Meeting(view.number, members, me, connections, deadlines.stall, wakeup, on_wait=on_wait)
    return PeerGroup(meeting, OPENERS[transport])


def _join(view: View, me: str, peer: Member, key: RunKey, deadline: Deadline, wakeup: Wakeup) -> Connection:
    """Connect to a worker of lower rank, which may hear of the view a moment later."""
    said: Refused | None = None  # what it answered last
    while True:
        try:
            return _greet(view, me, peer, key, deadline, wakeup)
        except Refused as refused:
            if refused.reason != _OTHER_VIEW or deadline.passed():
                raise
            said = refused
            wait(wakeup.fileno(), READABLE, Deadline.after(_AGAIN), wakeup)
        except PeerTimeout as late:
            if said is None:
                raise
            raise said from late


def _greet(view: View, me: str, peer: Member, key: RunKey, deadline: Deadline, wakeup: Wakeup) -> Connection:
    connection = connect(peer.address, key, CODEC, deadline, wakeup)
    connection.peer = peer.id
    try:
        connection.send(Hello(view.number, me), deadline=deadline)
        answer = connection.receive(deadline, wake=wakeup)
        if isinstance(answer, Refuse):
            raise Refused(answer.reason, f"{peer.id} refused {me}: {answer.text}")
        if answer != Welcome(view.number, peer.id):
            raise BadFrame(f"{peer.id} answered {me}'s hello with {answer}")
    except PeerClosed as gone:
        connection.close()
        # It had not come to this view yet when it took the connection. One that is gone takes no other.
        raise Refused(_OTHER_VIEW, f"{peer.id} hung up on {me}") from gone
    except BaseException:
        connection.close()
        raise
    return connection


def _accept(
    view: View, me: str, awaited: set[str], listener: Listener, deadline: Deadline, wakeup: Wakeup
) -> Connection:
    """The next worker of higher rank that says the right hello; others are told why not."""
    while True:
        connection = listener.accept(CODEC, deadline, wakeup)
        try:
            hello = connection.receive(deadline, wake=wakeup)
            refusal = _refusal(view, me, awaited, hello)
            if refusal is None and isinstance(hello, Hello):
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


def _refusal(view: View, me: str, awaited: set[str], hello: object) -> Refuse | None:
    """Why this is not the hello of somebody who is awaited, if it isn't."""
    if not isinstance(hello, Hello):
        return Refuse("no hello", f"{me} expected a hello, not {type(hello).__name__}")
    if hello.view != view.number:
        return Refuse(_OTHER_VIEW, f"{hello.member} is in view {hello.view}, {me} is in view {view.number}")
    if hello.member not in awaited:
        return Refuse("not awaited", f"{me} does not wait for {hello.member} in view {view.number}")
    return None


def _check_unix(workers: Sequence[Member]) -> None:
    for worker in workers:
        if not worker.address.startswith("unix:"):
            raise UsageError(
                f"shared memory needs unix sockets; {worker.id} is at {worker.address}. Use `--transport tcp`."
            )


def _close_all(connections: dict[str, Connection]) -> None:
    for connection in connections.values():
        connection.close()

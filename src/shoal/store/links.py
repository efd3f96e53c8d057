"""Connections to the other members of a store, by name: made in the background, made again when they break.

Nothing here waits for a peer. What is posted to one that can't be reached is dropped: whoever needs an answer asks
again when there is a connection, of which both sides are told (Linked).
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shoal.clock import Deadline
from shoal.errors import BadFrame, WireError
from shoal.observe.counters import Traffic
from shoal.store.decisions.saves import Copied, NotSaved, Save, ShardSaved
from shoal.store.shared_blocks import Incoming, Laid, Outgoing, Return, Share
from shoal.store.values.messages import (
    Anew,
    Checked,
    Confirmed,
    Lacking,
    List,
    Listed,
    Order,
    Pull,
    Pulled,
    Push,
    Pushed,
    ReplicaStanding,
    RequestRefused,
    StoreHello,
    Supply,
    Transfer,
    VersionAsked,
    VersionSeen,
)
from shoal.store.values.tensors import Array, Shapes, landing
from shoal.wire.connection import Connection, connect
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.memory import SharedBlock, close_all
from shoal.wire.messages import Message, MessageCodec
from shoal.wire.shortage import Shortage

Landing = Callable[[str, Message], Shapes]  # peer, message -> what should come beside it

CODEC = MessageCodec(
    StoreHello,
    Share,
    Laid,
    Return,
    Pull,
    Pulled,
    Push,
    Pushed,
    List,
    Listed,
    Lacking,
    Supply,
    VersionAsked,
    VersionSeen,
    ReplicaStanding,
    Order,
    Transfer,
    Confirmed,
    Checked,
    Anew,
    RequestRefused,
    Save,
    Copied,
    ShardSaved,
    NotSaved,
)

_DIAL = 2.0  # seconds for one attempt
_PAUSE = 0.02  # seconds between two
_REST = 0.1  # seconds in which nobody is let in, if there is no descriptor left


@dataclass(frozen=True, slots=True)
class Linked:
    """There is a connection to this peer, for the first time or again."""

    peer: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A message from a peer, with what came beside it."""

    peer: str
    message: Message
    arrays: Sequence[Array]


Event = Linked | Heard


class _Link:
    """A connection to one peer, and the memory shared with it."""

    def __init__(
        self,
        connection: Connection,
        give_back: Callable[[_Link, Return], None],
        spare: list[SharedBlock],
        traffic: Traffic,
    ) -> None:
        self.connection = connection
        self._traffic = traffic
        self.landed: Sequence[Array] = ()  # where what is arriving over the connection goes
        self.incoming = Incoming(partial(give_back, self))
        self._outgoing = Outgoing(lambda share, fd: connection.send_fds(share, [fd]), spare)

    def post(self, message: Message, arrays: Sequence[Array], lasting: bool) -> None:
        laid = self._outgoing.lay(arrays) if arrays and self.connection.carries_fds else None
        nbytes = sum(array.nbytes for array in arrays)
        if laid is not None:
            self._traffic.shared += nbytes
            self.connection.post(laid)
            self.connection.post(message)
        else:
            self._traffic.sent += nbytes
            kept = arrays if lasting else [np.array(array) for array in arrays]
            self.connection.post(message, [_bytes(array) for array in kept if array.size])

    def returned(self, message: Return) -> None:
        self._outgoing.returned(message)

    def close(self) -> None:
        self.connection.close()
        self.incoming.close()
        self._outgoing.close()


class Links:
    """One member's connections. All but `poke` belongs to one thread."""

    def __init__(
        self,
        me: str,
        key: RunKey,
        landing: Landing,
        listener: Listener | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """What is sent beside messages is counted in `traffic`."""
        self._me = me
        self._traffic = traffic or Traffic()
        self._key = key
        self._landing = landing
        self._listener = listener
        self._links: dict[str, _Link] = {}
        self._ungreeted: set[Connection] = set()  # who has connected, and has not said its name yet
        self._shortage = Shortage(f"{me} can let nobody in")
        self._listen_at: float | None = None  # again, after a shortage
        self._spare: list[SharedBlock] = []  # of peers that are gone
        self._returns: deque[tuple[_Link, Return]] = deque()  # to be sent; any thread adds to it
        self._events: deque[Event] = deque()
        self._wanted: dict[str, str] = {}  # peer -> address
        self._dialling: dict[str, _Dial] = {}
        self._selector = selectors.DefaultSelector()
        self._poking = threading.Lock()  # so that nobody writes to a descriptor that is somebody else's by then
        self._poke = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._poke, selectors.EVENT_READ, self._hear_poke)
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def dial(self, peers: Mapping[str, str]) -> None:
        """Have connections to these peers, at these addresses; leave those that are not named any more alone."""
        self._wanted = dict(peers)
        self._dial_missing()

    def post(self, peer: str, message: Message, arrays: Sequence[Array] = (), lasting: bool = True) -> None:
        """Send it, as soon as there is room. `lasting`: the arrays will stay as they are; else they are copied."""
        link = self._links.get(peer)
        if link is None:
            return
        try:
            link.post(message, arrays, lasting)
            self._heed_room(link.connection)
        except WireError:
            self._lose(peer)

    def is_linked(self, peer: str) -> bool:
        """Whether there is a connection to it."""
        return peer in self._links

    def wait(self, seconds: float) -> list[Event]:
        """What has happened, at once if something has; else what happens within so many seconds, if anything."""
        self._send_returns()
        if self._listener is not None and self._listen_at is not None and time.monotonic() >= self._listen_at:
            self._listen_at = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for ready, _ in self._selector.select(0.0 if self._events else seconds):
            ready.data()
        self._add_dialled()
        events, self._events = list(self._events), deque()
        return events

    def poke(self) -> None:
        """End a wait. Any thread may, at any time."""
        with self._poking:
            if self._poke >= 0:
                os.eventfd_write(self._poke, 1)

    def close(self) -> None:
        """Hang up on everybody; not on who dials just now."""
        for connection in self._ungreeted:
            connection.close()
        for link in self._links.values():
            link.close()
        for dial in self._dialling.values():
            dial.forget()
        self._links.clear()
        for block in self._spare:
            block.close()
        self._selector.close()
        with self._poking:
            os.close(self._poke)
            self._poke = -1

    # Connections ------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connections = self._listener.poll_accept(CODEC)
        except OSError as error:  # no descriptor is left: whoever waits is let in when there is one
            self._shortage.tell(error)
            self._selector.unregister(self._listener)
            self._listen_at = time.monotonic() + _REST
            return
        for connection in connections:
            self._ungreeted.add(connection)
            self._selector.register(connection, selectors.EVENT_READ, partial(self._greet, connection))

    def _greet(self, connection: Connection) -> None:
        """The first word of one who has dialled is its name."""
        try:
            message = connection.try_receive()
        except WireError:
            self._forget(connection)
            connection.close()
            return
        if message is None:
            return
        self._forget(connection)
        if isinstance(message, StoreHello):
            self._add(message.member, connection)
        else:
            connection.close()

    def _forget(self, connection: Connection) -> None:
        """It has said its name, or will not."""
        self._ungreeted.discard(connection)
        self._selector.unregister(connection)

    def _add(self, peer: str, connection: Connection) -> None:
        if peer in self._links:
            self._lose(peer)
        connection.peer = peer
        self._links[peer] = _Link(connection, self._give_back, self._spare, self._traffic)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._hear, peer))
        self._events.append(Linked(peer))
        if connection.buffered:
            self._hear(peer)

    def _hear(self, peer: str) -> None:
        link = self._links.get(peer)
        if link is None:
            return

        def place(message: Message) -> list[memoryview]:
            link.landed = landing(self._landing(peer, message))
            return [_bytes(array) for array in link.landed if array.size]

        try:
            link.connection.flush()
            self._heed_room(link.connection)
            while (received := link.connection.try_receive_fds(place)) is not None:
                self._sort_out(peer, link, *received)
        except WireError:
            self._lose(peer)

    def _sort_out(self, peer: str, link: _Link, message: Message, fds: list[int]) -> None:
        match message:
            case Share() if len(fds) == 1:
                link.incoming.open_block(message, fds.pop())
            case Laid():
                link.incoming.heed(message)
            case Return():
                link.returned(message)
            case _:
                self._events.append(Heard(peer, message, self._arrays(peer, link, message)))
        close_all(fds)

    def _arrays(self, peer: str, link: _Link, message: Message) -> Sequence[Array]:
        """What came beside a message, over the connection or in a block."""
        landed, link.landed = link.landed, ()
        if landed:
            return landed
        shapes = self._landing(peer, message)
        if link.incoming.expects:
            return link.incoming.arrays(shapes)
        if any(shape.size for shape in shapes):
            raise BadFrame(f"{type(message).__name__} came without its tensors")
        return landing(shapes)

    def _give_back(self, link: _Link, message: Return) -> None:
        self._returns.append((link, message))
        self.poke()

    def _send_returns(self) -> None:
        while self._returns:
            link, message = self._returns.popleft()
            if self._links.get(link.connection.peer) is link:
                self.post(link.connection.peer, message)

    def _lose(self, peer: str) -> None:
        link = self._links.pop(peer)
        self._selector.unregister(link.connection)
        link.close()
        self._dial_missing()

    def _heed_room(self, connection: Connection) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.pending else 0)
        registered = self._selector.get_key(connection)
        if registered.events != events:
            self._selector.modify(connection, events, registered.data)

    # Dialling ---------------------------------------------------------------------------------------

    def _dial_missing(self) -> None:
        for peer, address in self._wanted.items():
            if peer not in self._links and peer not in self._dialling:
                self._dialling[peer] = _Dial(self._me, peer, address, self._key, self.poke)

    def _add_dialled(self) -> None:
        for peer, dial in list(self._dialling.items()):
            if dial.over or self._wanted.get(peer) != dial.address:
                del self._dialling[peer]
                if dial.connection is not None and self._wanted.get(peer) == dial.address:
                    self._add(peer, dial.connection)
                else:
                    dial.forget()

    def _hear_poke(self) -> None:
        os.eventfd_read(self._poke)


def _bytes(array: Array) -> memoryview:
    """Not every type of a number has a buffer that Python knows: bfloat16 has none."""
    return array.reshape(-1).view(np.uint8).data


class _Dial:
    """One connection in the making, tried again until it is there or nobody wants it any more."""

    def __init__(self, me: str, peer: str, address: str, key: RunKey, on_over: Callable[[], None]) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.over = False
        self._forgotten = False
        self._lock = threading.Lock()
        threading.Thread(target=self._try, args=(me, peer, key, on_over), name="shoal-dial", daemon=True).start()

    def forget(self) -> None:
        with self._lock:
            self._forgotten = True
            if self.connection is not None:
                self.connection.close()

    def _try(self, me: str, peer: str, key: RunKey, on_over: Callable[[], None]) -> None:
        shortage = Shortage(f"{me} can't connect to {peer}")
        while not self.is_forgotten():
            try:
                connection = self._greeted(me, key)
            except (WireError, OSError) as error:
                shortage.tell(error)
                time.sleep(_PAUSE)
                continue
            with self._lock:
                self.connection, self.over = connection, True
                if self.is_forgotten():
                    connection.close()
            on_over()
            return

    def _greeted(self, me: str, key: RunKey) -> Connection:
        connection = connect(self.address, key, CODEC, Deadline.after(_DIAL))
        try:
            connection.send(StoreHello(me), deadline=Deadline.after(_DIAL))
        except BaseException:
            connection.close()
            raise
        return connection

    def is_forgotten(self) -> bool:
        """Nobody wants it any more."""
        return self._forgotten

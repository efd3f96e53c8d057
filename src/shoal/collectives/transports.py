"""How two members of a view reach each other: one transport per pair, chosen by where the two are. Pure.

auto    shared memory between members of one host, sockets between hosts
shm     shared memory between all: they must be of one host
tcp     sockets between all, also on one host
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from shoal.cluster.view import Member
from shoal.config import Transport
from shoal.errors import UsageError


class AbstractTransport(ABC):
    """What differs between two members by where they are."""

    @abstractmethod
    def address(self, peer: Member) -> str:
        """Where the peer is reached."""

    @abstractmethod
    def beside(self, views: Sequence[memoryview]) -> Sequence[memoryview]:
        """What of these has to travel beside a message, so that the receiver can read all of them."""


class SharedMemoryTransport(AbstractTransport):
    """Between members of one host: vectors lie where both can read them, only messages and descriptors travel."""

    def address(self, peer: Member) -> str:
        return peer.nearby.address if peer.nearby is not None else peer.address

    def beside(self, views: Sequence[memoryview]) -> Sequence[memoryview]:
        return ()


class SocketTransport(AbstractTransport):
    """Between hosts: everything travels."""

    def address(self, peer: Member) -> str:
        return peer.address

    def beside(self, views: Sequence[memoryview]) -> Sequence[memoryview]:
        return views


def hosts_of(workers: Sequence[Member], word: Transport) -> tuple[tuple[int, ...], ...]:
    """The ranks that share memory with each other, by their lowest. UsageError if the word asks for the impossible."""
    if word == "tcp":
        return tuple((rank,) for rank in range(len(workers)))
    if word == "shm":
        _check_unix(workers)
        return (tuple(range(len(workers))),)
    places: dict[str, list[int]] = {}
    for rank, worker in enumerate(workers):
        place = worker.nearby.place if worker.nearby is not None else f"only {worker.id}"
        places.setdefault(place, []).append(rank)
    return tuple(tuple(ranks) for ranks in places.values())


def transports(hosts: Sequence[Sequence[int]], rank: int) -> dict[int, AbstractTransport]:
    """How this rank reaches each of the others."""
    near, far = SharedMemoryTransport(), SocketTransport()
    return {other: near if rank in ranks else far for ranks in hosts for other in ranks if other != rank}


def _check_unix(workers: Sequence[Member]) -> None:
    for worker in workers:
        if not SharedMemoryTransport().address(worker).startswith("unix:"):
            raise UsageError(
                f"shared memory needs unix sockets; {worker.id} is at {worker.address}. Leave `--transport shm` out."
            )

"""Who is in the run. A view is a value: all who hold view 3 hold the same members in the same order."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Literal

import msgspec

from shoal.wire.addresses import TcpAddress, TlsAddress
from shoal.wire.addresses import parse as parse_address

Role = Literal["worker", "server", "coordinator"]


class Nearby(msgspec.Struct, frozen=True):
    """Where members of the same host reach a member, so that they can share memory."""

    place: str  # the same for all members that can (evidence.py)
    address: str  # a unix socket


class Member(msgspec.Struct, frozen=True):
    """One process of a run, as its peers know it."""

    id: str  # "worker-2": the role and a number that stays with it for the whole run
    role: Role
    pid: int
    host: str  # its name, for people
    machine: str  # which one it is (evidence.py): names repeat
    address: str  # where its peers reach it, for example "unix:/run/user/1000/shoal/…/worker-2.sock"
    nearby: Nearby | None = None  # None: it shares memory with nobody who is not told to

    @property
    def number(self) -> int:
        """The number in a worker's id. "worker-10" comes after "worker-2"."""
        return number_of(self.id)


def host_of(member: Member) -> str:
    """What is lost with it when its host is: the same for all members of one host.

    Members on several hosts listen at their host's address, which the others can tell from theirs. Those on one listen
    at unix sockets.
    """
    return _host_at(member.address) or member.machine


@lru_cache(maxsize=1024)
def _host_at(address: str) -> str:
    """Empty, if it is no address that other hosts could reach."""
    where = parse_address(address) if address.startswith(("tcp:", "tls:")) else None
    return where.host if isinstance(where, TcpAddress | TlsAddress) else ""


def role_of(id: str) -> Role:
    """What a member is, by its id."""
    return "server" if id.startswith("server-") else "worker"


def number_of(id: str) -> int:
    """The number in a member's id."""
    return int(id.rpartition("-")[2])


class View(msgspec.Struct, frozen=True, dict=True):
    """A numbered set of members. The number grows by one with each change; it never goes back."""

    number: int
    members: tuple[Member, ...]
    enough: bool = True  # False: fewer workers than the run's minimum; no step begins until more have come
    call: int = 0  # of the script: those before it are over, because one raised and the script went on

    @classmethod
    def of(cls, number: int, members: Iterable[Member], enough: bool = True, call: int = 0) -> View:
        # Sorted by role and number, so every member derives the same ranks from the same set.
        return cls(number, tuple(sorted(members, key=lambda member: (member.role, member.number))), enough, call)

    @cached_property
    def workers(self) -> tuple[Member, ...]:
        """The workers by rank."""
        return tuple(member for member in self.members if member.role == "worker")

    @property
    def chief(self) -> Member:
        """The worker with the lowest number: it prints and writes files."""
        return self.workers[0]

    def has(self, id: str) -> bool:
        return any(member.id == id for member in self.members)

    def rank(self, id: str) -> int:
        """The place of this worker among the view's workers. ValueError if it is not one of them."""
        ids = [member.id for member in self.workers]
        if id not in ids:
            raise ValueError(f"{id} is not a worker of view {self.number} ({', '.join(ids)})")
        return ids.index(id)

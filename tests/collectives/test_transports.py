"""Which transport each pair of members gets."""

from __future__ import annotations

import pytest

from shoal.cluster.evidence import this_place
from shoal.cluster.view import Member, Nearby
from shoal.collectives.transports import SharedMemoryTransport, SocketTransport, hosts_of, transports
from shoal.errors import UsageError


def worker(number: int, place: str | None) -> Member:
    nearby = Nearby(place, f"unix:/run/{number}") if place else None
    return Member(f"worker-{number}", "worker", 0, "host", "machine", f"tls:10.0.0.1:{number}", nearby)


def test_members_of_one_place_share_memory_and_all_others_use_sockets() -> None:
    workers = [worker(0, "a"), worker(1, "b"), worker(2, "a"), worker(3, None), worker(4, None)]
    hosts = hosts_of(workers, "auto")
    assert hosts == ((0, 2), (1,), (3,), (4,))
    pairs = transports(hosts, 0)
    assert [pairs[rank].address(workers[rank]) for rank in (1, 2, 3)] == [
        "tls:10.0.0.1:1",
        "unix:/run/2",
        "tls:10.0.0.1:3",
    ]
    views = [memoryview(b"sum")]
    assert [list(pairs[rank].beside(views)) for rank in (1, 2)] == [views, []]


def test_all_over_sockets_if_told_so() -> None:
    assert hosts_of([worker(0, "a"), worker(1, "a")], "tcp") == ((0,), (1,))
    assert SocketTransport().address(worker(1, "a")) == "tls:10.0.0.1:1"


def test_shared_memory_for_all_needs_unix_sockets_of_all() -> None:
    assert hosts_of([worker(0, "a"), worker(1, "b")], "shm") == ((0, 1),)
    assert SharedMemoryTransport().address(worker(1, "b")) == "unix:/run/1"
    with pytest.raises(UsageError, match=r"worker-1 is at tls:10\.0\.0\.1:1\. Leave `--transport shm` out"):
        hosts_of([worker(0, "a"), worker(1, None)], "shm")


def test_processes_of_one_host_are_in_one_place() -> None:
    assert this_place() == this_place()
    assert len(this_place().split()) >= 4

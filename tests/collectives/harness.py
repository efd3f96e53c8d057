"""Groups inside one process: every worker is a thread with its own listener, connections and group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal.cluster.view import Member, Nearby, View
from shoal.collectives.group import AbstractGroup, form
from shoal.collectives.tree import aligned
from shoal.config import Deadlines
from shoal.errors import PeerClosed
from shoal.wire import Listener, RunKey, Wakeup

PATIENT = Deadlines(stall=20.0, connect=20.0)


class Worker:
    """What one thread gets: its place in the view and all that `form` needs."""

    def __init__(
        self, view: View, me: str, listener: Listener, key: RunKey, transport: Any, nearby: Listener | None = None
    ) -> None:
        self.view = view
        self.me = me
        self.listener = listener
        self.key = key
        self.transport = transport
        self.nearby = nearby
        self.wakeup = Wakeup()

    def form(self, deadlines: Deadlines = PATIENT, view: View | None = None) -> AbstractGroup:
        view = view or self.view
        return form(view, self.me, self.listener, self.key, self.transport, deadlines, self.wakeup, nearby=self.nearby)


def make_workers(count: int, transport: str, folder: Path, number: int = 1) -> list[Worker]:
    """Over "shm", over "tcp", or on hosts, one letter per rank: "aab" are two workers on one and one on another."""
    key = RunKey.new()
    hosts = "" if transport in ("shm", "tcp") else (transport * count)[:count]
    unix = [Listener(f"unix:{folder}/{i}.sock", key) for i in range(count) if transport != "tcp"]
    tcp = [Listener("tcp:127.0.0.1:0", key) for _ in range(count) if transport != "shm"]
    near = [Nearby(host, listener.address) for host, listener in zip(hosts, unix, strict=False)] or [None] * count
    listeners = tcp or unix
    members = [
        Member(f"worker-{i}", "worker", 0, "here", "this one", one.address, nearby)
        for i, (one, nearby) in enumerate(zip(listeners, near, strict=True))
    ]
    view = View.of(number, members)
    return [
        Worker(view, f"worker-{i}", listener, key, "auto" if hosts else transport, unix[i] if hosts else None)
        for i, listener in enumerate(listeners)
    ]


def on_each(workers: Sequence[Worker], scene: Callable[[Worker], Any]) -> list[Any]:
    """Play the scene on every worker at once; results by rank, exceptions as values."""
    results: list[Any] = [None] * len(workers)

    def play(i: int) -> None:
        try:
            results[i] = scene(workers[i])
        except BaseException as error:  # RunEnded too: every end of a scene is a result
            results[i] = error

    threads = [threading.Thread(target=play, args=(i,)) for i in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a worker hangs"
    return results


def close_all(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.listener.close()
        if worker.nearby is not None:
            worker.nearby.close()
        worker.wakeup.close()


def run_group(
    count: int, transport: str, folder: Path, scene: Callable[[AbstractGroup], Any], deadlines: Deadlines = PATIENT
) -> list[Any]:
    """Form a group of `count` workers and play the scene in it on each. Raises the first worker's error."""
    workers = make_workers(count, transport, folder)

    def whole(worker: Worker) -> Any:
        group = worker.form(deadlines)
        try:
            return scene(group)
        finally:
            group.close()

    try:
        results = on_each(workers, whole)
    finally:
        close_all(workers)
    errors = [result for result in results if isinstance(result, BaseException)]
    # Who lost a peer tells less than the peer.
    for error in sorted(errors, key=lambda error: isinstance(error, PeerClosed)):
        raise error
    return results


def evenly(pieces: int, size: int) -> tuple[range, ...]:
    """Runs of pieces, one per rank, that differ by at most one."""
    return aligned(pieces, [pieces // size] * size, [-(-pieces // size)] * size)

"""The same with real processes: memory that is really shared, and deaths that are real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.cluster.view import Member, View
from shoal.wire import RunKey

SCRIPT = """
import hashlib, json, sys
from pathlib import Path
import msgspec, numpy as np
from shoal.cluster.view import View
from shoal.collectives.group import form
from shoal.collectives.layout import VectorLayout
from shoal.collectives.tree import aligned, cover
from shoal.config import Deadlines
from shoal.errors import PeerClosed
from shoal.wire import Listener, RunKey, Wakeup

folder, me, transport, floats = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
key = RunKey.load(folder / "key")
listener = Listener(f"unix:{folder}/{me}.sock" if transport == "shm" else "tcp:127.0.0.1:0", key)
print(listener.address, flush=True)
view = msgspec.json.decode(sys.stdin.readline(), type=View)
group = form(view, me, listener, key, transport, Deadlines(stall=30.0), Wakeup())
exchange = group.open(VectorLayout(floats), 4)
held = aligned(6, [6 // group.size] * group.size, [-(-6 // group.size)] * group.size)
digest = hashlib.sha256()
try:
    for step in range(10**6 if "forever" in sys.argv else 5):
        for slot, node in enumerate(cover(6, held[group.rank])):
            exchange.slot(slot).f32[:] = sum(np.float32(p + 1) / np.float32(3 + step) for p in range(*node))
        total = exchange.reduce(f"step {step}", 6, held, b"").total
        digest.update(total.f32)
        if step == 3:
            print("running", flush=True)
    print(json.dumps({"digest": digest.hexdigest()}))
except PeerClosed as error:
    print(json.dumps({"lost": error.peer, "text": str(error)}))
finally:
    exchange.close()
    group.close()
    listener.close()
"""


class Run:
    """Worker processes of one view."""

    def __init__(self, folder: Path, size: int, transport: str, floats: int, *extra: str) -> None:
        RunKey.new().save(folder / "key")
        ids = [f"worker-{i}" for i in range(size)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(folder), me, transport, str(floats), *extra],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for me in ids
        ]
        addresses = [self.line(i) for i in range(size)]
        members = [
            {"id": me, "role": "worker", "pid": p.pid, "host": "here", "machine": "this one", "address": address}
            for me, p, address in zip(ids, self.processes, addresses, strict=True)
        ]
        view = View.of(1, [Member(**member) for member in members])  # type: ignore[arg-type]
        assert view.workers[0].id == "worker-0"
        for process in self.processes:
            assert process.stdin
            process.stdin.write(json.dumps({"number": 1, "members": members}) + "\n")
            process.stdin.flush()

    def line(self, i: int) -> str:
        stdout = self.processes[i].stdout
        assert stdout
        return stdout.readline().strip()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


@pytest.mark.parametrize("floats", [1000, 300_000], ids=["small", "large"])
def test_processes_give_the_same_bits_whatever_their_number_and_transport(
    floats: int, tmp_path: Path, runs: list[Run]
) -> None:
    digests = set()
    for size, transport in [(1, "shm"), (2, "shm"), (3, "tcp")]:
        folder = tmp_path / f"{size}"
        folder.mkdir()
        run = Run(folder, size, transport, floats)
        runs.append(run)
        for i in range(size):
            assert run.line(i) == "running"
            digests.add(json.loads(run.line(i))["digest"])
    assert len(digests) == 1


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_process_is_named_and_leaves_nothing_behind(transport: str, tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, 3, transport, 300_000, "forever")
    runs.append(run)
    assert [run.line(i) for i in range(3)] == ["running"] * 3
    os.kill(run.processes[1].pid, signal.SIGKILL)
    for i in (0, 2):
        end = json.loads(run.line(i))
        assert end["lost"] == "worker-1"
        assert "worker-1 is gone" in end["text"]
        assert run.processes[i].wait(30) == 0
    left = [path.name for path in tmp_path.iterdir()]
    assert sorted(left) == (["key", "worker-1.sock"] if transport == "shm" else ["key"])

"""Two hosts with two workers each, as real processes in network namespaces: bits, bytes on the cable, and deaths."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.network import FIRST, SECOND, Hosts, may_make_hosts

from shoal.cluster.view import Member, Nearby, View
from shoal.collectives.tree import Node
from shoal.wire import RunKey

from .test_group import node_sum

# Argument: what `describe` gives, as JSON. Prints its address, is told the view, and reduces.
SCRIPT = """
import hashlib, json, sys, time
from pathlib import Path
import msgspec, numpy as np
from shoal.cluster.evidence import this_place
from shoal.cluster.view import View
from shoal.collectives.group import form
from shoal.collectives.layout import VectorLayout
from shoal.collectives.tree import aligned, cover
from shoal.config import Deadlines
from shoal.errors import PeerClosed
from shoal.wire import Listener, RunKey, Wakeup
from shoal.wire.certificates import RunCertificate
from tests.collectives.test_group import node_sum
from tests.network import SENT

told = json.loads(sys.argv[1])
folder, me, pieces = Path(told["folder"]), told["me"], told["pieces"]
layout = VectorLayout(told["floats"])
key = RunKey.load(folder / "key")
listener = Listener(f"tls:{told['host']}:0", key, certificate=RunCertificate.new())
nearby = Listener(f"unix:{folder}/{me}.sock", key)
print(json.dumps([listener.address, this_place()]), flush=True)
view = msgspec.json.decode(sys.stdin.readline(), type=View)
group = form(view, me, listener, key, told["transport"], Deadlines(stall=30.0), Wakeup(), nearby=nearby)
exchange = group.open(layout, 4)
held = aligned(pieces, [pieces // group.size] * group.size, [-(-pieces // group.size)] * group.size)
for slot, node in enumerate(cover(pieces, held[group.rank])):
    exchange.slot(slot).f32[:] = node_sum(0, node, layout.f32)
begun, sent = 0.0, 0
try:
    for step in range(told["steps"] + 1):
        total = exchange.reduce(f"step {step}", pieces, held, b"").total
        if step == 0:
            print("running", flush=True)
            group.gather("all have begun", b"")
            begun, sent = time.monotonic(), int(SENT.read_text())
    group.gather("all have ended", b"")
    seconds, sent = time.monotonic() - begun, int(SENT.read_text()) - sent
    digest = hashlib.sha256(total.f32).hexdigest()
    print(json.dumps({"digest": digest, "seconds": seconds / told["steps"], "sent": sent / told["steps"]}))
except PeerClosed as error:
    print(json.dumps({"lost": error.peer, "text": str(error)}))
finally:
    exchange.close()
    group.close()
    listener.close()
    nearby.close()
"""


class FourWorkers:
    """Workers 0 and 1 on the first host, 2 and 3 on the second."""

    def __init__(self, folder: Path, hosts: Hosts, **told: Any) -> None:
        RunKey.new().save(folder / "key")
        self.processes = []
        for number in range(4):
            name, address = ((hosts.names[0], FIRST), (hosts.names[1], SECOND))[number // 2]
            what = {"folder": str(folder), "me": f"worker-{number}", "host": address, "pieces": 4, **told}
            command = ["ip", "netns", "exec", name, sys.executable, "-c", SCRIPT, json.dumps(what)]
            root = Path(__file__).parent.parent.parent
            environ = os.environ | {"PYTHONPATH": f"{root}/src:{root}"}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.processes.append(subprocess.Popen(command, env=environ, cwd=folder, **pipes))  # type: ignore[call-overload]
        members = []
        for number in range(4):
            address, place = json.loads(self.line(number))
            me = f"worker-{number}"
            members.append(Member(me, "worker", 0, "", "", address, Nearby(place, f"unix:{folder}/{me}.sock")))
        for process in self.processes:
            process.stdin.write(msgspec.json.encode(View.of(1, members)).decode() + "\n")
            process.stdin.flush()

    def line(self, number: int) -> str:
        return str(self.processes[number].stdout.readline()).strip()

    def ends(self) -> list[dict[str, Any]]:
        return [json.loads(self.line(number)) for number in range(4)]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(30)
            process.stdin.close()
            process.stdout.close()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if not may_make_hosts():
        pytest.skip("needs root and network namespaces")
    with Hosts() as made:
        yield made


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("transport", "members"), [("auto", 2), ("tcp", 4)])
def test_the_bytes_on_the_cable_are_those_of_one_worker_per_host(
    transport: str, members: int, hosts: Hosts, tmp_path: Path
) -> None:
    """Of two members, one per host, not of four; over sockets alone they are those of four."""
    floats = 1_000_000
    four = FourWorkers(tmp_path, hosts, transport=transport, floats=floats, steps=5)
    try:
        assert [four.line(number) for number in range(4)] == ["running"] * 4
        ends = four.ends()
    finally:
        four.close()
    expected = hashlib.sha256(node_sum(0, Node(0, 4), floats).tobytes()).hexdigest()
    assert [end["digest"] for end in ends] == [expected] * 4
    for end in ends:
        assert end["sent"] / (4 * floats) == pytest.approx(members / 2, rel=0.05)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("killed", [0, 1, 3])
def test_a_worker_killed_on_either_host_is_named_by_all(killed: int, hosts: Hosts, tmp_path: Path) -> None:
    four = FourWorkers(tmp_path, hosts, transport="auto", floats=300_000, steps=10**6)
    try:
        assert [four.line(number) for number in range(4)] == ["running"] * 4
        os.kill(four.processes[killed].pid, signal.SIGKILL)
        ends = [json.loads(four.line(number)) for number in range(4) if number != killed]
        assert [end["lost"] for end in ends] == [f"worker-{killed}"] * 3
        assert all(four.processes[number].wait(30) == 0 for number in range(4) if number != killed)
    finally:
        four.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", f"worker-{killed}.sock"]

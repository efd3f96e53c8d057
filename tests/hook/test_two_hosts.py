"""Two hosts, as two network namespaces: TLS between them, a cut link, and a worker that comes back."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from .runs import SCRIPTS, Going, Trainings

FIRST, SECOND = "10.213.77.1", "10.213.77.2"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class Hosts:
    """Two hosts with one cable between them."""

    def __init__(self) -> None:
        self.names = tuple(f"shoal{os.getpid()}{side}" for side in "ab")

    def __enter__(self) -> Hosts:
        one, other = self.names
        for name in self.names:
            _ip("netns", "add", name)
        _ip("link", "add", "cable", "netns", one, "type", "veth", "peer", "name", "cable", "netns", other)
        for name, address in zip(self.names, (FIRST, SECOND), strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)

    def plug(self, state: str) -> None:
        _ip("-n", self.names[0], "link", "set", "cable", state)


def _may_make_hosts() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        with Hosts():
            return True
    except (subprocess.CalledProcessError, OSError):
        return False


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if not _may_make_hosts():
        pytest.skip("needs root and network namespaces")
    with Hosts() as made:
        yield made


@pytest.mark.timeout(400)
def test_the_side_of_the_coordinator_goes_on_and_the_other_comes_back(trainings: Trainings, hosts: Hosts) -> None:
    script, ticket = SCRIPTS / "until_told.py", trainings.folder / "ticket"
    here, there = hosts.names
    options = ["--backend", "torch", "-n", "1:2", "--pieces", "4", "--threads", "1", "--timeout", "2"]
    network = ["--transport", "tcp", "--address", f"{FIRST}:4567", "--key-file", ticket]
    enough = trainings.folder / "enough"
    with Going(trainings, ["run", *options, *network, script, enough], here) as run:
        run.until("the run begins", lambda: "training" in run.states().values())
        with Going(trainings, ["join", f"{FIRST}:4567", "--key-file", ticket, script, enough], there) as join:
            run.until("the guest is let in", lambda: run.states().get("worker-1000") == "training")
            hosts.plug("down")
            run.until("the guest is lost", lambda: run.states().get("worker-1000") == "lost")
            hosts.plug("up")
            run.until("it comes back", lambda: run.states().get("worker-1001") == "training")
            enough.touch()
            assert run.end() == 0, run.said()
            assert join.end() == 0, join.said()
    told = re.search(r"epochs (\d+) weights (\S+)", run.said())
    assert told is not None, run.said()
    undisturbed = trainings.shoal("torch", "-n 2 --pieces 4 --threads 1", "until_told.py", told[1])
    assert told[0] in undisturbed.stdout, undisturbed.stdout + undisturbed.stderr

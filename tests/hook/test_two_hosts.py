"""Two hosts, as two network namespaces: TLS between them, a cut link, and a worker that comes back."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .runs import SCRIPTS, Trainings

FIRST, SECOND = "10.213.77.1", "10.213.77.2"
PATIENCE = 120.0


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


class Started:
    """A command on one of the hosts."""

    def __init__(self, trainings: Trainings, host: str, log: Path, words: list[str]) -> None:
        runtime = trainings.folder / host
        runtime.mkdir(mode=0o700)
        self.log = log
        self.environ = trainings.environ | {"XDG_RUNTIME_DIR": str(runtime)}
        self._host = host
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "shoal", *words]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, env=self.environ, stdout=file, stderr=file, cwd=trainings.folder)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def workers(self) -> dict[str, str]:
        command = ["ip", "netns", "exec", self._host, sys.executable, "-m", "shoal", "status", "--json"]
        answer = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=60).stdout
        runs = json.loads(answer or "[]")
        return {m["id"]: m["state"] for run in runs for m in run.get("members", []) if m["role"] == "worker"}


def _until(what: str, found: Callable[[], bool], *told: Started) -> None:
    deadline = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < deadline, f"{what}\n" + "\n".join(one.said()[-3000:] for one in told)
        assert all(one.process.poll() is None for one in told), "\n".join(one.said()[-3000:] for one in told)
        time.sleep(0.2)


@pytest.mark.timeout(400)
def test_the_side_of_the_coordinator_goes_on_and_the_other_comes_back(trainings: Trainings, hosts: Hosts) -> None:
    script, ticket = str(SCRIPTS / "two_hosts.py"), str(trainings.folder / "ticket")
    here, there = hosts.names
    options = ["--backend", "torch", "-n", "1:2", "--pieces", "4", "--threads", "1", "--timeout", "2"]
    network = ["--transport", "tcp", "--address", f"{FIRST}:4567", "--key-file", ticket]
    enough = trainings.folder / "enough"
    run = Started(trainings, here, trainings.folder / "run.log", ["run", *options, *network, script, str(enough)])
    join = None
    try:
        _until("the run begins", lambda: "training" in run.workers().values(), run)
        words = ["join", f"{FIRST}:4567", "--key-file", ticket, script, str(enough)]
        join = Started(trainings, there, trainings.folder / "join.log", words)
        _until("the guest is let in", lambda: run.workers().get("worker-1000") == "training", run, join)
        hosts.plug("down")
        _until("the guest is lost", lambda: run.workers().get("worker-1000") == "lost", run, join)
        hosts.plug("up")
        _until("it comes back", lambda: run.workers().get("worker-1001") == "training", run, join)
        enough.touch()
        assert run.process.wait(PATIENCE) == 0, run.said()
        assert join.process.wait(PATIENCE) == 0, join.said()
    finally:
        for started in (run, join):
            if started is not None and started.process.poll() is None:
                started.process.terminate()
                started.process.wait(30)
        for process in trainings.leftovers():
            process.kill()
    told = re.search(r"epochs (\d+) weights (\S+)", run.said())
    assert told is not None, run.said()
    undisturbed = trainings.shoal("torch", "-n 2 --pieces 4 --threads 1", "two_hosts.py", told[1])
    assert told[0] in undisturbed.stdout, undisturbed.stdout + undisturbed.stderr

"""`shoal join`: a guest's worker is watched, replaced and ended as those of the run are, and nothing of it stays."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

import pytest

from shoal.observe.record_files import read

from .launched import Launched, World, eventually

WAIT = "print(who.id, 'is here')\nmark('up')\nuntil('go')\n"


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def ahead(seconds: int) -> list[str]:
    """Before a command: its clock is so far ahead of this host's. Where that is not allowed, it is the same."""
    words = ["unshare", "--time", "--monotonic", str(seconds), "--boottime", str(seconds)]
    allowed = shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True).returncode == 0
    return words if allowed else []


def begin(
    world: World, address: str, text: str = WAIT, *options: object, before: Sequence[str] = ()
) -> tuple[Launched, Launched]:
    """A run of two, and a guest who has come; `before`: what makes its host another one."""
    key = world.folder / "ticket"
    run = world.run(text, "-n", 2, "--threads", 1, "--address", address, "--key-file", key)
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    world.prefix = list(before)
    guest = world.shoal("join", address, "--key-file", key, *options, world.folder / "train.py")
    world.prefix = []
    eventually(lambda: guest.finds("worker-1000") and len(world.marks("up")) == 3, "the guest is up")
    return run, guest


def end(world: World, run: Launched) -> None:
    world.tell("go")
    assert run.wait() == 0, run.err


def test_a_guest_prints_here_comes_back_when_it_is_killed_and_ends_with_the_run(world: World, address: str) -> None:
    """Although its host's clock is a quarter of an hour ahead, what it does lies on one clock with the others."""
    run, guest = begin(world, address, before=ahead(900))
    assert guest.out == "worker-1000 is here\n"
    (logs,) = (world.folder / "state" / "shoal" / "logs").iterdir()
    eventually(lambda: "worker-1000" in read(logs), "what it does is in the run's record")
    os.kill(guest.pid("worker-1000"), signal.SIGKILL)
    eventually(lambda: len(world.marks("up")) == 4, "another has come")
    eventually(lambda: "worker-1001" in read(logs), "what that one does is there, too")
    end(world, run)
    assert guest.wait() == 0, guest.err
    (name,) = {line.split()[3] for line in guest.err.splitlines() if "joining run" in line}
    assert guest.err.splitlines() == [
        f"shoal: joining run {name} at {address} as worker-1000",
        "shoal: worker-1000 ended with code -9; coming back",
        f"shoal: joining run {name} at {address} as worker-1001",
    ]
    record = read(logs)
    for id in ("worker-1000", "worker-1001"):
        assert record["worker-0"][0].start < record[id][0].start, "it came later"
        assert record[id][-1].end < time.time(), "and the run is over"


def test_a_guest_that_keeps_dying_is_given_up(world: World, address: str) -> None:
    world.starts_anew = True
    failing = "if who.number >= 1000: mark('up'); sys.exit(5)\n" + WAIT
    run, guest = begin(world, address, failing, "--max-restarts", 0)
    assert guest.wait() == 1
    assert "shoal: worker-1000 ended with code 5; giving up" in guest.err
    end(world, run)


def test_an_interrupt_lets_a_guest_leave_and_it_does_not_come_back(world: World, address: str) -> None:
    run, guest = begin(world, address)
    guest.signal(signal.SIGINT)
    assert guest.wait() == 0, guest.err
    assert "leaving the run; a second Ctrl-C ends it at once" in guest.err
    assert "coming back" not in guest.err
    end(world, run)


def test_a_second_interrupt_ends_a_guest_that_does_not_listen(world: World, address: str) -> None:
    run, guest = begin(
        world, address, "import signal\n" + WAIT.replace("until", "signal.signal(15, lambda *_: 0); until")
    )
    guest.signal(signal.SIGTERM)
    eventually(lambda: "leaving the run" in guest.err, "the first is heard")
    guest.signal(signal.SIGTERM)
    assert guest.wait() == 128 + signal.SIGTERM
    assert "coming back" not in guest.err
    end(world, run)


def test_a_guest_whose_launcher_is_killed_leaves_with_all_that_it_started(world: World, address: str) -> None:
    started = "if who.number >= 1000: import subprocess; subprocess.Popen(['sleep', '1000'])\n"
    run, guest = begin(world, address, started + WAIT)
    home = world.runtime / "shoal"
    assert len(list(home.iterdir())) == 2
    pid = guest.pid("worker-1000")
    guest.signal(signal.SIGKILL)
    guest.wait()
    eventually(lambda: not os.path.exists(f"/proc/{pid}") and len(list(home.iterdir())) == 1, "the guest is gone")
    eventually(lambda: not any("sleep" in process.cmdline() for process in world.processes()), "its child is gone")
    assert run.process.poll() is None, "the run goes on"
    end(world, run)


def test_two_guests_of_one_host_come_to_a_run_of_one_worker(world: World, address: str) -> None:
    key = world.folder / "ticket"
    run = world.run(WAIT, "-n", 1, "--threads", 1, "--address", address, "--key-file", key)
    eventually(lambda: len(world.marks("up")) == 1, "it is up")
    port = address.rpartition(":")[2]
    guest = world.shoal("join", f"localhost:{port}", "-n", 2, "--key-file", key, world.folder / "train.py")
    eventually(lambda: len(world.marks("up")) == 3, "the guests are up")
    assert "as worker-1000, worker-1001" in guest.err
    os.kill(guest.pid("worker-1001"), signal.SIGKILL)
    eventually(lambda: len(world.marks("up")) == 4, "another has come")
    end(world, run)
    assert guest.wait() == 0, guest.err
    (logs,) = (world.folder / "state" / "shoal" / "logs").glob("*@*")
    assert (logs / "worker-1000.log").read_text() == "worker-1000 is here\n"
    assert str(logs) in guest.err

"""Hosts that are lost with everything on them, the first one too: the run goes on, with the same bits."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.network import FIRST, Hosts, address_of, may_make_hosts

from .launched import World, eventually
from .sshd import SSHD, Sshd

SCRIPTS = Path(__file__).parent.parent / "scripts"
EPOCHS, LONG = 10, 24
SLOW = 150.0  # seconds in which a framework has been imported three times, on a machine that does much else
OTHERS = ("second", "third")
LISTED = ",".join(f"{host}:1" for host in (FIRST, *OTHERS))


@pytest.fixture
def sshds() -> dict[str, Sshd]:
    """Of the hosts that there are, but the first."""
    return {}


@pytest.fixture
def hosts(world: World, sshds: dict[str, Sshd]) -> Iterator[Hosts]:
    """Three, with an sshd on all but the first."""
    if not may_make_hosts():
        pytest.skip("needs root and network namespaces")
    if not Path(SSHD).exists():
        pytest.skip("needs an sshd: apt install openssh-server")
    with Hosts(3) as made:
        world.prefix = ["ip", "netns", "exec", made.names[0]]
        for number, name in enumerate(OTHERS, 1):
            sshds[name] = Sshd(world, made.names[number], name=name, address=address_of(number))
        yield made
        for sshd in sshds.values():
            sshd.close()


def said(world: World) -> str:
    """On the hosts that are left."""
    logs = [path for name in OTHERS for path in (world.folder / name / "state/shoal/logs").glob("*/*.log")]
    return "\n".join(f"--- {path.parent.name}/{path.name}\n{path.read_text()}" for path in logs)


def told_after(world: World) -> float:
    """Seconds from the last word of the first host's coordinator until that host was given up, as the story tells."""
    stories = [path for name in OTHERS for path in (world.folder / name / "state/shoal/logs").glob("*/story.jsonl")]
    found = [re.search(r"host of worker-0 is lost: .* last heard (\S+) s ago", path.read_text()) for path in stories]
    (told,) = filter(None, found)
    return float(told[1])


def epochs(world: World) -> int:
    """How many have been trained, as the workers tell."""
    told = [path.read_text() for path in world.folder.glob("epoch-*")]
    return max((int(text) + 1 for text in told if text), default=0)


@pytest.mark.full  # the next one but one trains meanwhile
def test_when_the_first_host_is_lost_the_others_elect_a_coordinator_and_finish(world: World, hosts: Hosts) -> None:
    run = world.run("mark('up')\nuntil('go')\nmark('done')\n", "--hosts", LISTED, "--threads", 1)
    eventually(lambda: len(world.marks("up")) == 3, "all are up")
    hosts.kill(0)
    run.wait()
    shutil.rmtree(world.runtime / "shoal")  # which was in the memory of the host
    eventually(lambda: "this host was elected" in said(world), "another coordinates")
    world.tell("go")
    eventually(lambda: len(world.marks("done")) == 2, "the others finish")
    eventually(lambda: not world.processes(), "nobody is left")
    assert not [path for name in OTHERS for path in (world.folder / name / "shoal").iterdir()], "nor a folder"


@pytest.mark.full
def test_a_first_host_that_was_cut_off_ends_its_part_when_it_hears_of_the_others(world: World, hosts: Hosts) -> None:
    run = world.run("mark('up')\nuntil('go')\nmark('done')\n", "--hosts", LISTED, "--threads", 1)
    eventually(lambda: len(world.marks("up")) == 3, "all are up")
    hosts.plug("down", 0)
    eventually(lambda: "this host was elected" in said(world), "another coordinates")
    hosts.plug("up", 0)
    assert run.wait() == 1
    assert "the other hosts have gone on without this one" in run.err
    world.tell("go")
    eventually(lambda: {"mark-done-1", "mark-done-2"} <= {path.name for path in world.folder.iterdir()}, "they finish")
    eventually(lambda: not world.processes(), "nobody is left")


@pytest.mark.full  # test_coordination_here.py and test_agent_channel.py decide it without processes
def test_a_first_host_without_the_others_ends_when_it_is_interrupted_and_they_end_by_themselves(
    world: World, hosts: Hosts
) -> None:
    text = "mark('up')\nuntil('go')\nmark('done')\n"
    run = world.run(text, "--hosts", LISTED, "--threads", 1)
    eventually(lambda: len(world.marks("up")) == 3, "all are up")
    for number in range(3):  # nothing closes: everybody is alone
        hosts.plug("down", number)
    eventually(lambda: "too few hosts answer: nothing is decided" in run.err, "it is noticed")
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    eventually(lambda: not world.processes(), "the agents end, too", within=60.0)


@pytest.mark.timeout(400)
def test_the_first_host_is_lost_and_training_goes_on_with_the_same_bits(world: World, hosts: Hosts) -> None:
    """All processes of the host, launcher and coordinator among them, end at once, and its network with them."""
    words = ("run", "--backend", "torch", "--pieces", 6, "--threads", 1)
    alone = world.shoal(*words, "-n", 1, SCRIPTS / "lost_host.py", EPOCHS)
    assert alone.process.wait(SLOW) == 0, alone.err
    run = world.shoal(*words, "--hosts", LISTED, SCRIPTS / "lost_host.py", EPOCHS, world.folder)
    eventually(lambda: epochs(world) >= 2, "it trains", SLOW)
    hosts.kill(0)
    lost, before = time.monotonic(), epochs(world)
    run.wait()
    shutil.rmtree(world.runtime / "shoal")
    assert before < EPOCHS
    eventually(lambda: epochs(world) > before, "it trains on", SLOW)
    print(f"the next epoch ended {time.monotonic() - lost:.1f} s after the loss")  # shown with -s
    world.tell("hurry")
    assert told_after(world) < 10.0, "of a busy machine, too: 3 s of silence, and 1 s for hosts that are there"
    eventually(lambda: re.search(r"^weights \w+$", said(world), re.M), "another chief comes to the end", SLOW)
    assert alone.out.strip() in said(world)
    eventually(lambda: not world.processes(), "nobody is left")


@pytest.mark.full  # simulator/test_server_hosts.py loses hosts with servers
@pytest.mark.timeout(400)
def test_a_host_with_servers_is_lost_and_comes_back_with_the_same_bits(
    world: World, hosts: Hosts, sshds: dict[str, Sshd]
) -> None:
    """Each of two hosts has a worker and two servers. All of the second one ends at once; later it is there again."""
    words = ("run", "--backend", "torch", "--pieces", 4, "--threads", 1)
    alone = world.shoal(*words, "-n", 1, SCRIPTS / "lost_host.py", LONG)
    assert alone.process.wait(SLOW) == 0, alone.err
    served = ("--strategy", "ps", "--servers", 4, "--staleness", 0, "--hosts", f"{FIRST}:1,second:1")
    run = world.shoal(*words, *served, SCRIPTS / "lost_host.py", LONG, world.folder)
    eventually(lambda: epochs(world) >= 2, "it trains", SLOW)
    assert "(1 + 2 servers), second (1 + 2 servers)" in run.err
    hosts.kill(1)
    eventually(lambda: "every shard has 2 copies again" in run.err, "copies are made anew", SLOW)
    assert "shards have copies on the same host" in run.err, "which is told"
    before = epochs(world)
    eventually(lambda: epochs(world) > before, "it trains on", SLOW)
    hosts.plug("up", 1)
    sshds["second"].start_again()
    eventually(lambda: "second is back, with worker-2, server-4, server-5" in run.err, "it is taken in", SLOW)
    eventually(lambda: "the copies of every shard are on different hosts again" in run.err, "shards move", SLOW)
    world.tell("hurry")
    assert run.process.wait(SLOW) == 0, run.err
    assert re.search(r"^weights \w+$", run.out, re.M)
    assert alone.out.strip() in run.out
    assert "was lost with" not in run.err, "no shard has gone back"
    eventually(lambda: not world.processes(), "nobody is left")

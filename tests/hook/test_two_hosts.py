"""Two hosts, as two network namespaces: TLS between them, a cut link, and a worker that comes back."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.network import FIRST, Hosts, may_make_hosts

from .runs import SCRIPTS, Going, Trainings


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if not may_make_hosts():
        pytest.skip("needs root and network namespaces")
    with Hosts() as made:
        yield made


@pytest.mark.full  # tests/launch/test_hosts.py and test_lost_hosts.py cut and kill hosts
@pytest.mark.timeout(400)
def test_the_side_of_the_coordinator_goes_on_and_the_other_comes_back(trainings: Trainings, hosts: Hosts) -> None:
    script, token = SCRIPTS / "until_told.py", trainings.folder / "ticket"
    here, there = hosts.names
    options = ["--backend", "torch", "-n", "1:2", "--pieces", "4", "--threads", "1", "--timeout", "2"]
    network = ["--transport", "tcp", "--address", f"{FIRST}:4567", "--key-file", token]
    enough = trainings.folder / "enough"
    with Going(trainings, ["run", *options, *network, script, enough], here) as run:
        run.until("the run begins", lambda: "training" in run.states().values())
        with Going(trainings, ["join", f"{FIRST}:4567", "--key-file", token, script, enough], there) as join:
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


@pytest.mark.full  # without a training, tests/collectives/test_hosts.py counts the same bytes
@pytest.mark.timeout(400)
def test_two_workers_on_each_host_send_what_one_would_and_train_to_the_same_bits(
    trainings: Trainings, hosts: Hosts
) -> None:
    """Counted at the interface: a gradient per host and step, although nobody chose a transport."""
    script, token = SCRIPTS / "cable.py", trainings.folder / "ticket"
    here, there = hosts.names
    options = ["--backend", "torch", "-n", "2", "--pieces", "4", "--threads", "1"]
    network = ["--address", f"{FIRST}:4567", "--key-file", token]
    enough = trainings.folder / "all have come"
    joining = ["join", f"{FIRST}:4567", "--key-file", token, script, enough]
    with Going(trainings, ["run", *options, *network, script, enough], here) as run:
        run.until("the run begins", lambda: "training" in run.states().values())
        with Going(trainings, joining, there) as one, Going(trainings, joining, there) as other:
            run.until("all train", lambda: list(run.states().values()).count("training") == 4)
            enough.touch()
            assert run.end() == 0, run.said()
            assert (one.end(), other.end()) == (0, 0), one.said() + other.said()
    told = re.search(r"epochs (\d+) weights (\S+) vectors (\S+)", run.said())
    assert told is not None, run.said()
    assert 0.95 <= float(told[3]) <= 1.6, "one vector per step, or 1.5 while shares are off the tree; four send 2"
    undisturbed = trainings.shoal("torch", "-n 2 --pieces 4 --threads 1", "cable.py", told[1])
    assert told[2] in undisturbed.stdout, undisturbed.stdout + undisturbed.stderr

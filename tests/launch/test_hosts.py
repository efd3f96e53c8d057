"""`shoal run --hosts`: agents on another host over a real sshd; and what is refused before anything starts."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.network import FIRST, SECOND, Hosts, may_make_hosts

from .launched import World, eventually
from .sshd import FAR, SSHD, Sshd

SCRIPTS = Path(__file__).parent.parent / "scripts"
WAIT = "print(who.id, 'is here')\nmark('up')\nuntil('go')\n"
HERE_AND_THERE = ("--hosts", f"{FIRST}:1,{FAR}:2", "--threads", 1)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if not may_make_hosts():
        pytest.skip("needs root and network namespaces")
    with Hosts() as made:
        yield made


@pytest.fixture
def sshd(world: World, hosts: Hosts, request: pytest.FixtureRequest) -> Iterator[Sshd]:
    if not Path(SSHD).exists():
        pytest.skip("needs an sshd: apt install openssh-server")
    world.prefix = ["ip", "netns", "exec", hosts.names[0]]
    started = Sshd(world, hosts.names[1], getattr(request, "param", None))
    yield started
    started.close()


def test_one_command_starts_workers_on_two_hosts_and_replaces_those_that_die(world: World, sshd: Sshd) -> None:
    run = world.run(WAIT, *HERE_AND_THERE)
    eventually(lambda: len(world.marks("up")) == 3, "all are up")
    os.kill(run.pid("worker-2"), signal.SIGKILL)
    eventually(lambda: len(world.marks("up")) == 4, "another has come")
    eventually(lambda: "worker-2" in run.err, "its end is told")
    key = next(world.runtime.glob("shoal/*/key")).read_bytes()
    for process in world.processes():
        told = "".join(process.cmdline()) + str(process.environ())
        assert key.hex() not in told, "the key is in no command line and in no environment"
    world.tell("go")
    assert run.wait() == 0, run.err
    assert run.out == "worker-0 is here\n"
    assert "was killed by SIGKILL" in run.err, "the exit code of a worker elsewhere is known here"
    assert run.log("worker-1") == "worker-1 is here\n", "logs of all hosts are in one folder"
    eventually(world.is_clean, "nothing is left here")
    assert not list((sshd.runtime / "shoal").iterdir()), "nor there"


def test_when_the_launcher_is_killed_nothing_stays_on_any_host(world: World, sshd: Sshd) -> None:
    run = world.run(WAIT + "import subprocess; subprocess.run(['sleep', '1000'])\n", *HERE_AND_THERE)
    eventually(lambda: len(world.marks("up")) == 3, "all are up")
    run.signal(signal.SIGKILL)
    run.wait()
    eventually(lambda: not world.processes(), "nobody is left")
    eventually(lambda: not list((sshd.runtime / "shoal").iterdir()), "nor a folder")


@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")
@pytest.mark.parametrize(("sshd", "how"), [(None, "rsync"), ("/usr/bin/rsync", "tar")], indirect=["sshd"])
def test_the_scripts_folder_is_copied_first_if_asked(world: World, sshd: Sshd, how: str) -> None:
    """The other host has its own disk there, and nothing on it."""
    script = world.script("import beside\nprint(who.id, beside.WORD)\nmark('up')\n", "project/train.py")
    (sshd.own_folder / "beside.py").write_text("WORD = 'was here'\n")
    words = ("run", "--backend", "jax", "--hosts", f"{FAR}:1", "--threads", 1)
    refused = world.shoal(*words, script)
    assert refused.wait() == 2, refused.err
    assert "far: there is no script" in refused.err
    run = world.shoal(*words, "--sync", script)
    assert run.wait() == 0, run.err
    assert run.out == "worker-0 was here\n"
    assert f"{sshd.own_folder} was copied to far with {how}" in run.err


@pytest.mark.full  # tests/hook/test_two_hosts.py trains on two hosts, too
@pytest.mark.timeout(400)
def test_a_training_on_two_hosts_has_the_bits_of_one(world: World, sshd: Sshd) -> None:
    def weights(*options: object) -> str:
        words = ("--backend", "torch", "--pieces", 4, "--threads", 1)
        run = world.shoal("run", *words, *options, SCRIPTS / "until_told.py", 3)
        assert run.wait() == 0, run.err
        return run.out.strip().splitlines()[-1]

    apart = weights("--hosts", f"{FIRST}:2,{FAR}:2")
    assert "weights" in apart
    assert apart == weights("-n", 2)


OTHER_SCRIPT = """
import pathlib
read = pathlib.Path.read_bytes
pathlib.Path.read_bytes = lambda self: read(self) + b"#" * (self.name == "train.py")
"""


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        ("another answers", "far: ssh refuses it: its host key has changed"),
        ("its script differs", "the hosts are not alike: the script is '"),
        ("its way back is closed", "far: it can't reach 10.99.0.1:4567 of the launcher's host"),
    ],
)
def test_a_host_that_cannot_take_part_is_named_before_anything_starts(
    world: World, sshd: Sshd, hosts: Hosts, scene: str, said: str
) -> None:
    more = []
    match scene:
        case "another answers":
            sshd.change_key()
        case "its script differs":
            sshd.customize(OTHER_SCRIPT)
        case _:
            hosts.add_address("10.99.0.1")  # to which the other host has no route
            more = ["--address", "10.99.0.1:4567"]
    run = world.run("mark('up')\n", "--hosts", f"{FAR}:2", "--threads", 1, *more)
    assert run.wait() == 2, run.err
    assert said in run.err
    assert not world.marks("up")
    eventually(world.is_clean, "nothing is left")


STAND_IN = """#!/bin/sh
# As srun does: executes the words after -- on the node that --nodelist names, with its own standard streams.
while [ "$1" != -- ]; do
    [ "$1" = --nodelist=10.213.77.2 ] && found=yes
    shift
done
shift
[ "$found" = yes ] && exec ip netns exec {far} env XDG_RUNTIME_DIR={runtime} "$@"
"""


def test_in_a_slurm_allocation_srun_starts_one_agent_on_each_other_node(world: World, hosts: Hosts) -> None:
    """With a stand-in for srun."""
    near, far = hosts.names
    runtime, program = world.folder / "far", world.folder / "bin" / "srun"
    for folder in (runtime, program.parent):
        folder.mkdir(mode=0o700)
    program.write_text(STAND_IN.format(far=far, runtime=runtime))
    program.chmod(0o755)
    world.prefix = ["ip", "netns", "exec", near]
    world.environ |= {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": f"{FIRST},{SECOND}",
        "SLURM_TASKS_PER_NODE": "1,2",
    }
    run = world.run(WAIT, "--threads", 1)
    eventually(lambda: len(world.marks("up")) == 3, "all are up")
    assert f"shoal: hosts: this one (1), {SECOND} (2), by srun" in run.err
    world.tell("go")
    assert run.wait() == 0, run.err
    assert run.out == "worker-0 is here\n"
    assert not list((runtime / "shoal").iterdir())

"""`shoal run --hosts`: agents on another host over a real sshd; and what is refused before anything starts."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.network import FIRST, SECOND, Hosts, may_make_hosts

from shoal.observe import story
from shoal.observe.story import StoryKind
from shoal.wire.keys import RunKey

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


def revealed(key_file: Path, hosts: Hosts) -> list[str]:
    """Processes of any host of the run in whose command line or environment the key is, in whatever form."""
    key = bytes.fromhex(RunKey.load(key_file).hex())
    forms = {key, key_file.read_bytes().strip(), key.hex().encode(), key.hex().upper().encode()}
    forms.add(base64.b32encode(key).strip(b"="))
    for before in range(3):  # wherever it begins in what was encoded
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            forms.add(encode(bytes(before) + key)[4 if before else 0 : -4])
    pids = [pid for number in range(len(hosts.names)) for pid in hosts.processes(number)]
    looked_at = {pid: [Path(f"/proc/{pid}/{name}") for name in ("cmdline", "environ")] for pid in pids}
    assert len(looked_at) > 6, "launcher, coordinator, ssh, sshd, agent and workers"
    return [str(path) for paths in looked_at.values() for path in paths if _has(path, forms)]


def is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
    except OSError:
        return False  # it has ended


def _has(path: Path, forms: set[bytes]) -> bool:
    try:
        text = path.read_bytes()
    except OSError:
        return False  # it has ended
    return any(form in text for form in forms)


@pytest.mark.parametrize("form", [bytes.hex, lambda key: base64.b64encode(b"k" + key).decode()], ids=["hex", "base64"])
@pytest.mark.parametrize("where", ["environ", "cmdline"])
def test_a_key_that_is_shown_on_another_host_would_be_found(
    world: World, hosts: Hosts, form: Callable[[bytes], str], where: str
) -> None:
    """The search itself can fail."""
    file = world.folder / "key"
    RunKey.new().save(file)
    shown = form(bytes.fromhex(RunKey.load(file).hex()))
    sleep = ["ip", "netns", "exec", hosts.names[1], "sh", "-c", "sleep 60 & wait"]
    others = [subprocess.Popen(sleep) for _ in range(3)]
    words = [*sleep, *([shown] if where == "cmdline" else [])]
    indiscreet = subprocess.Popen(words, env={**os.environ, **({"K": shown} if where == "environ" else {})})
    try:
        eventually(lambda: len(hosts.processes(1)) == 8, "all have begun")
        found = revealed(file, hosts)
        assert f"/proc/{indiscreet.pid}/{where}" in found
        assert {path.rpartition("/")[2] for path in found} == {where}
    finally:
        for pid in hosts.processes(1):
            os.kill(pid, signal.SIGKILL)
        for process in (*others, indiscreet):
            process.wait(20)


def test_one_command_starts_workers_on_two_hosts_and_replaces_those_that_die(
    world: World, sshd: Sshd, hosts: Hosts
) -> None:
    run = world.run(WAIT, *HERE_AND_THERE)
    eventually(lambda: len(world.marks("up")) == 3, "all are up")
    os.kill(run.pid("worker-2"), signal.SIGKILL)
    eventually(lambda: len(world.marks("up")) == 4, "another has come")
    eventually(lambda: "worker-2" in run.err, "its end is told")
    assert run.finds("worker-3"), "its successor is one of the run's own workers, no guest"
    coordinator = run.pid("coordinator")
    os.kill(coordinator, signal.SIGKILL)
    eventually(lambda: run.finds("coordinator") not in (None, coordinator), "the hosts have elected another, here")
    assert not revealed(next(world.runtime.glob("shoal/*/key")), hosts), (
        "no command line and no environment has the key"
    )
    world.tell("go")
    assert run.wait() == 0, run.err
    assert run.out == "worker-0 is here\n"
    assert "was killed by SIGKILL" in run.err, "the exit code of a worker elsewhere is known here"
    assert run.log("worker-1") == "worker-1 is here\n", "logs of all hosts are in one folder"
    eventually(world.is_clean, "nothing is left here")
    assert not list((sshd.runtime / "shoal").iterdir()), "nor there"


def test_when_the_launcher_is_killed_nothing_stays_on_any_host(world: World, sshd: Sshd, hosts: Hosts) -> None:
    """As the kernel tells who is on a host, whatever a process has done with its environment."""
    idle = [set(hosts.processes(number)) for number in range(2)]
    work = WAIT + "import subprocess; subprocess.run(['env', '-i', 'sleep', '1000'])\n"
    run = world.run(work, *HERE_AND_THERE)
    eventually(lambda: len(world.marks("up")) == 3, "all are up")
    assert not revealed(next(world.runtime.glob("shoal/*/key")), hosts)
    world.tell("go")
    eventually(lambda: sum(map(is_sleep, hosts.processes(0) + hosts.processes(1))) == 3, "all have a child")
    run.signal(signal.SIGKILL)
    run.wait()
    killed = time.monotonic()
    eventually(lambda: [set(hosts.processes(number)) for number in range(2)] == idle, "nobody is left on any host")
    eventually(lambda: not world.processes() and not list((sshd.runtime / "shoal").iterdir()), "nor a folder")
    assert time.monotonic() - killed < 5.0, "nor a folder, within 5 s"


def test_a_host_that_was_lost_is_named_and_its_workers_come_back_with_it(
    world: World, sshd: Sshd, hosts: Hosts
) -> None:
    run = world.run(WAIT, *HERE_AND_THERE)
    eventually(lambda: len(world.marks("up")) == 3, "all are up")
    hosts.kill(1)
    eventually(lambda: "the agent on far is gone, and its workers with it" in run.err, "it is named")
    eventually(lambda: "far is not back yet" in run.err, "it was tried")
    hosts.plug("up", 1)
    sshd.start_again()
    eventually(lambda: "far is back, with worker-3, worker-4" in run.err, "its workers are to come")
    eventually(lambda: len(world.marks("up")) == 5, "they have come")
    world.tell("go")
    assert run.wait() == 0, run.err
    assert "the agent on far is gone" in run.err


@pytest.mark.full  # as the one before, but for how the loss is noticed
def test_a_host_whose_cable_was_cut_comes_back_when_it_is_mended(world: World, sshd: Sshd, hosts: Hosts) -> None:
    run = world.run(WAIT, *HERE_AND_THERE)
    eventually(lambda: len(world.marks("up")) == 3, "all are up")
    hosts.plug("down", 1)
    eventually(lambda: "the agent on far is gone, and its workers with it" in run.err, "it is named")
    hosts.plug("up", 1)
    eventually(lambda: "far is back, with worker-3, worker-4" in run.err, "its workers are to come")
    eventually(lambda: len(world.marks("up")) == 5, "they have come")
    world.tell("go")
    assert run.wait() == 0, run.err


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
def test_a_training_on_two_hosts_has_the_bits_of_one_and_its_story_is_here(world: World, sshd: Sshd) -> None:
    """Although the chief is on the other host."""

    def weights(*options: object) -> str:
        words = ("--backend", "torch", "--pieces", 4, "--threads", 1)
        run = world.shoal("run", *words, *options, SCRIPTS / "until_told.py", 3)
        assert run.wait() == 0, run.err
        return run.out.strip().splitlines()[-1]

    logs = world.folder / "logs"
    apart = weights("--hosts", f"{FAR}:2,{FIRST}:2", "--logs", logs)
    assert "weights" in apart
    told = [event for event in story.read(logs) if event.kind is StoryKind.CALL]
    assert [event.member for event in told] == ["worker-0", "worker-0"], "a fit begins, and ends"
    assert sorted(told, key=lambda event: event.at) == told
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
        ("a firewall drops the port", f"far: it can't reach {FIRST}:4567 of the launcher's host"),
        ("nobody listens there", "far: nobody listens for ssh there"),
        ("it does not know the user", "far: ssh was not let in: it must work without a password"),
        ("there is no such host", "this host finds no way to nowhere.invalid. Correct the name"),
        ("there are too few slots", "-n 3: there are too few slots, 2 in all (far has 2)"),
    ],
)
def test_a_host_that_cannot_take_part_is_named_before_anything_starts(
    world: World, sshd: Sshd, hosts: Hosts, scene: str, said: str
) -> None:
    more: list[object] = []
    host = FAR
    match scene:
        case "another answers":
            sshd.change_key()
        case "its script differs":
            sshd.customize(OTHER_SCRIPT)
        case "a firewall drops the port":
            hosts.drop_port(4567)
            more = ["--address", f"{FIRST}:4567"]
        case "nobody listens there":
            sshd.close()
        case "it does not know the user":
            sshd.forget_user()
        case "there is no such host":
            host = "nowhere.invalid"
        case "there are too few slots":
            more = ["-n", 3]
        case _:
            hosts.add_address("10.99.0.1")  # to which the other host has no route
            more = ["--address", "10.99.0.1:4567"]
    run = world.run("mark('up')\n", "--hosts", f"{host}:2", "--threads", 1, *more)
    assert run.wait() == 2, run.err
    assert said in run.err
    assert "If a firewall is in between, let" in run.err or "can't reach" not in said
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

"""`--checkpoint` with a folder that is another disk on each host: a whole copy on each, and any of them is enough."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.network import FIRST, Hosts, may_make_hosts

from shoal.checkpoint.read import verify

from .launched import Launched, World
from .sshd import FAR, SSHD, Sshd

SCRIPTS = Path(__file__).parent.parent / "scripts"
SLOW = 150.0


@pytest.fixture
def sshd(world: World) -> Iterator[Sshd]:
    if not may_make_hosts() or not Path(SSHD).exists():
        pytest.skip("needs root, network namespaces and an sshd")
    with Hosts() as hosts:
        world.prefix = ["ip", "netns", "exec", hosts.names[0]]
        started = Sshd(world, hosts.names[1])
        yield started
        started.close()


def run(world: World, epochs: int, *options: object) -> Launched:
    words = ("run", "--backend", "torch", "--pieces", 4, "--threads", 1)
    started = world.shoal(*words, *options, SCRIPTS / "lost_host.py", epochs)
    assert started.process.wait(SLOW) == 0, started.err
    return started


@pytest.mark.full  # tests/checkpoint/test_host_folders.py shows the same without processes
@pytest.mark.timeout(400)
def test_each_host_has_a_whole_copy_and_the_one_that_is_left_or_undamaged_is_resumed_from(
    world: World, sshd: Sshd
) -> None:
    folder = sshd.own_folder / "kept"  # `far` has another disk there
    far = Path(f"/proc/{sshd.pid}/root{folder}")
    on_both = ("--hosts", f"{FIRST}:1,{FAR}:1", "--checkpoint", folder, "--checkpoint-every", "2steps", "--keep", 2)
    undisturbed = run(world, 4, "-n", 1)

    first = run(world, 2, *on_both)
    assert "is not the same folder on all hosts" in first.err
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in far.iterdir()), "old ones go on every host"
    assert len(names) == 2
    for place in (folder, far):
        assert verify(place / names[-1]).hosts[0] == (FIRST if place == folder else FAR)

    damaged = folder / names[-1] / "part-000.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    second = run(world, 3, *on_both, "--resume", "auto")
    assert f"{names[-1]} on {FIRST} is passed over: part-000.safetensors does not match its digest" in second.err
    assert f"going on from {names[-1]}" in second.err
    assert f"it is on {FAR}" in second.err

    shutil.rmtree(folder)  # as if the first host had been replaced
    third = run(world, 4, *on_both, "--resume", "auto")
    assert f"it is on {FAR}" in third.err
    assert third.out == undisturbed.out, "with the bits of a run that was never interrupted"

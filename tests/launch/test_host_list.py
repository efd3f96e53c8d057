"""Which hosts a run has, who is placed where, what ssh's words mean: pure."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.launch.on_hosts import HostPlacement
from shoal.launch.remote.host_facts import HostFacts, advice, differences
from shoal.launch.remote.host_list import ChosenHosts, HostSlots, choose_hosts, parse_hostfile, parse_hosts, shares
from shoal.launch.remote.passed_on import passed_on
from shoal.launch.remote.remote_shell import Srun, Ssh
from shoal.launch.remote.slurm import allocation

FACTS = HostFacts("1.0", "3.11", "3.15.1", "2.3", "jax 0.9", "x86_64 avx2", "aa11", 8)


def test_hosts_are_named_as_ssh_and_mpirun_know_them() -> None:
    assert parse_hosts("a:4, me@b,[2001:db8::1]:2,2001:db8::2") == (
        HostSlots("a", 4),
        HostSlots("me@b", 1),
        HostSlots("2001:db8::1", 2),
        HostSlots("2001:db8::2", 1),
    )
    text = "a slots=4  # the large one\n\nb:2\nc 3\n"
    assert parse_hostfile(text, "f") == (HostSlots("a", 4), HostSlots("b", 2), HostSlots("c", 3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no host"),
        ("a:0", "'0' is no number of slots"),
        ("a:x", "'x' is no number of slots"),
        ("-oProxyCommand=evil", "'-oProxyCommand=evil' is no host"),
        ("a b", "'a b' is no host"),
        ("a:1,b:2,a:3", "a is named twice"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_hosts(text)


def test_workers_of_one_host_are_neighbours_and_too_few_slots_are_named() -> None:
    hosts = parse_hosts("a:2,b:3,c:1")
    assert shares(hosts, 4) == (("worker-0", "worker-1"), ("worker-2", "worker-3"), ())
    with pytest.raises(UsageError, match=r"-n 7: there are too few slots, 6 in all \(a has 2, b has 3, c has 1\)"):
        shares(hosts, 7)


def test_threads_are_those_that_the_tightest_host_has_cores_for() -> None:
    placement = HostPlacement.of(parse_hosts("a:2,b:4,c:2"), 6, [True, False, False])
    assert placement == HostPlacement(("worker-0", "worker-1"), {"b": tuple(f"worker-{n}" for n in (2, 3, 4, 5))})
    assert placement.threads({"b": 8}, 16) == 2
    assert placement.threads({"b": 2}, 16) == 1


def test_a_difference_names_both_sides_and_what_to_do() -> None:
    assert not differences(FACTS, "b", FACTS)
    other = HostFacts("1.0", "3.11", "3.14.0", "2.3", "jax 0.9", "x86_64 avx2", "bb22", 64)
    found = differences(other, "b", FACTS)
    assert found == (
        "keras is '3.14.0' on b and '3.15.1' on this host",
        "the script is 'bb22' on b and 'aa11' on this host",
    )
    assert "same packages" in advice(found)
    assert "--sync" in advice(found[1:])


@pytest.mark.parametrize(
    ("code", "said", "meaning"),
    [
        (255, "ssh: Could not resolve hostname b: Name or service not known", "there is no such host"),
        (255, "ssh: connect to host b port 22: Connection refused", "nobody listens for ssh there"),
        (255, "root@b: Permission denied (publickey).", "ssh was not let in: it must work without a password"),
        (255, "@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@\nHost key verification failed.", "has changed"),
        (255, "No ED25519 host key is known for b.\nHost key verification failed.", "Connect once by hand, `ssh b`"),
        (255, "ssh: connect to host b port 22: Connection timed out", "a firewall"),
        (126, "bash: line 1: /opt/python: Permission denied", "--remote-python"),
        (127, "bash: line 1: /opt/python: No such file or directory", "--remote-python"),
        (1, "/opt/python: No module named shoal", "Shoal is not installed there"),
        (3, "", "the agent ended with code 3"),
    ],
)
def test_what_ssh_says_is_explained(code: int, said: str, meaning: str) -> None:
    assert meaning in Ssh().explain("b", code, said)


def test_ssh_keeps_the_users_configuration_and_never_asks() -> None:
    words = Ssh().command("b", ["/a python", "-m", "shoal"])
    assert words[words.index("--") :] == ["--", "b", "exec '/a python' -m shoal"]
    options = words[: words.index("--")]
    assert "BatchMode=yes" in options
    assert not any("HostKey" in word or "KnownHosts" in word for word in options)


def test_a_connection_that_ssh_shares_does_not_hide_a_cut_cable() -> None:
    words = Ssh().command("b", [])
    assert {"ServerAliveInterval=2", "ServerAliveCountMax=4", "ControlPath=none"} <= set(words)


def test_only_variables_that_change_what_is_computed_go_to_other_hosts() -> None:
    environ = {
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": "f",
        "AWS_SECRET": "s",
        "HOME": "/me",
        "TF_CONFIG": "{}",
        "MINE": "1",
    }
    assert passed_on(environ, ["MINE"]) == {"KERAS_BACKEND": "jax", "XLA_FLAGS": "f", "MINE": "1"}
    with pytest.raises(UsageError, match="--env YOURS: there is no such variable"):
        passed_on(environ, ["YOURS"])


# As Slurm 22.05 sets them in a batch script of `sbatch --nodes=3 --ntasks-per-node=4`, the last node with fewer.
BATCH = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "gpu[08-09],big-1", "SLURM_TASKS_PER_NODE": "4(x2),2"}
NODES = (HostSlots("gpu08", 4), HostSlots("gpu09", 4), HostSlots("big-1", 2))


def test_an_allocation_names_its_nodes_and_tasks() -> None:
    assert allocation(BATCH) == NODES
    assert allocation({**BATCH, "SLURM_STEP_ID": "4294967290"}) == NODES, "a shell of salloc"
    assert allocation({**BATCH, "SLURM_STEP_ID": "0"}) is None, "a task that srun has started"
    assert allocation({}) is None
    racks = {**BATCH, "SLURM_JOB_NODELIST": "r[1-2]n[1,3]", "SLURM_TASKS_PER_NODE": "1(x4)"}
    assert [host.name for host in allocation(racks) or ()] == ["r1n1", "r1n3", "r2n1", "r2n3"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"SLURM_TASKS_PER_NODE": "4(x2)"}, "names 3 nodes, SLURM_TASKS_PER_NODE=4.x2. has tasks of 2"),
        ({"SLURM_TASKS_PER_NODE": "many"}, "is no list of numbers of tasks"),
        ({"SLURM_JOB_NODELIST": "gpu[1-"}, "is no list of nodes"),
        ({"SLURM_JOB_NODELIST": "a b"}, "is no list of nodes"),
    ],
)
def test_an_allocation_that_is_not_understood_is_named(changed: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        allocation({**BATCH, **changed})


def test_what_the_user_names_counts_more_than_an_allocation_and_one_node_is_this_one() -> None:
    named = (HostSlots("a", 2),)
    assert choose_hosts(named, NODES, None) == ChosenHosts(named, False, 2)
    assert choose_hosts(None, NODES, None) == ChosenHosts(NODES, True, 10)
    assert choose_hosts(None, NODES, 3) == ChosenHosts(NODES, True, 3)
    assert choose_hosts(None, NODES[:1], None) == ChosenHosts(None, False, 4)
    assert choose_hosts(None, NODES[:1], 8) == ChosenHosts(None, False, 8), "workers need not be tasks"
    assert choose_hosts(None, None, None) == ChosenHosts(None, False, 1)
    for hosts in (named, None):
        assert choose_hosts(hosts, None, 0).workers == 0, "which is refused, not filled in"


def test_srun_starts_one_agent_on_one_node() -> None:
    words = Srun().command("gpu08", ["python", "-m", "shoal"])
    assert {"--nodes=1", "--ntasks=1", "--nodelist=gpu08", "--overlap"} <= set(words)
    assert words[-4:] == ["--", "python", "-m", "shoal"]
    assert "Invalid node" in Srun().explain("gpu08", 1, "srun: error: Invalid node name specified")

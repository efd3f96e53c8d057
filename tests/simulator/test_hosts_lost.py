"""Hosts die, are cut off, slow, and come back: one history of what the run's members were told, whoever told it."""

from __future__ import annotations

from random import Random

import pytest

from shoal.cluster.succession.electorate import Electorate

from .hosts import HostFault, HostPlan, HostSimulation, Wrong

RUNS = 15
FOUND_WITHIN = 300  # runs in which a mutant must be found


def one_at_a_time(seed: int) -> HostPlan:
    """A host is lost, cut off, slow or its coordinator crashes; it is there again before the next trouble."""
    random, hosts = Random(seed), 3 + seed % 3
    faults, at = [], 3.0
    for _ in range(4):
        host = "a" if random.random() < 0.4 else random.choice("abcde"[:hosts])
        kind, undo = random.choice((("kill", "return"), ("cut", "heal"), ("slow", "fast"), ("crash", "crash")))
        faults += [HostFault(kind, host, at), HostFault(undo, host, at + random.uniform(2.0, 14.0))]
        at += 30.0 + random.random()
    return HostPlan(seed, hosts, tuple(faults), seconds=at + 10.0)


def chaos(seed: int) -> HostPlan:
    """Anything at any time: perhaps nothing can go on, but nothing that was told is taken back."""
    random, hosts = Random(seed), 2 + seed % 4
    kinds = ("kill", "return", "cut", "heal", "slow", "fast", "crash", "cut", "heal")
    faults = [
        HostFault(random.choice(kinds), random.choice("abcde"[:hosts]), random.uniform(2.0, 60.0)) for _ in range(24)
    ]
    return HostPlan(seed, hosts, tuple(faults), seconds=80.0, lives=False, first_decides=seed % 3 > 0)


def cuts(seed: int) -> HostPlan:
    """Hosts are cut off one after the other, for longer than it takes to elect, and to leave the electorate."""
    random, hosts = Random(seed), 3 + seed % 2
    faults = []
    for at in range(3, 63, 6):
        host = random.choice("abcd"[:hosts])
        faults += [HostFault("cut", host, at), HostFault("heal", host, at + random.uniform(1.0, 25.0))]
        if random.random() < 0.4:
            faults.append(HostFault("crash", random.choice("abcd"[:hosts]), at + random.random()))
        if random.random() < 0.4:
            faults.append(HostFault("slow", random.choice("abcd"[:hosts]), at + random.random()))
    return HostPlan(seed, hosts, tuple(faults), seconds=80.0, lives=False)


def splits(seed: int) -> HostPlan:
    """The run falls into two parts, perhaps into halves, again and again; each part for longer than a change takes."""
    random, hosts = Random(seed), 2 + seed % 4
    faults: list[HostFault] = []
    for at in range(3, 93, 30):
        apart = random.sample("abcde"[:hosts], random.randint(1, hosts // 2))
        faults += [HostFault("cut", host, at) for host in apart]
        late = random.choice("abcde"[:hosts])  # cut off, or there again, a little later
        faults.append(HostFault(random.choice(("cut", "heal", "crash")), late, at + random.uniform(1.0, 16.0)))
        faults += [HostFault("heal", host, at + 24.0) for host in "abcde"[:hosts]]
    return HostPlan(seed, hosts, tuple(faults), seconds=110.0)


def silent(seed: int) -> HostPlan:
    """Hosts die one after the other without a word, each after the one before has left the electorate."""
    random, hosts = Random(seed), 3 + seed % 3
    lost = random.sample("abcde"[:hosts], hosts - 2)
    faults = [HostFault("vanish", host, 3.0 + 25.0 * number) for number, host in enumerate(lost)]
    return HostPlan(seed, hosts, tuple(faults), seconds=25.0 * len(lost) + 20.0)


@pytest.mark.parametrize("plans", [one_at_a_time, chaos, cuts, splits, silent])
def test_what_members_were_told_is_one_history_whatever_happens_to_hosts(plans: object) -> None:
    for seed in range(RUNS):
        run = HostSimulation(plans(seed))  # type: ignore[operator]
        try:
            run.play()
        except Wrong as wrong:
            raise AssertionError(f"{plans.__name__}({seed}): {wrong}") from wrong  # type: ignore[attr-defined]


def test_when_the_first_host_dies_another_coordinates_within_seconds() -> None:
    for seed in range(RUNS):
        run = HostSimulation(HostPlan(seed, 3, (HostFault("kill", "a", 5.0),), seconds=30.0))
        run.play()
        assert max(run.elected) > 1
        assert max(run.gaps) < 9.0, f"seed {seed}: {max(run.gaps)}"


def test_a_host_that_died_without_a_word_leaves_the_electorate() -> None:
    faults = (HostFault("vanish", "b", 5.0), HostFault("vanish", "c", 25.0))
    run = HostSimulation(HostPlan(1, 3, faults, seconds=50.0))
    run.play()
    assert run.elected == {1: "a"}
    coordinator = run.hosts["a"].coordinator
    assert coordinator is not None
    assert coordinator.copies.electorate == Electorate(("a",))


def test_of_two_hosts_the_first_goes_on_alone_and_the_second_never_does() -> None:
    for kind in ("kill", "cut"):
        run = HostSimulation(HostPlan(1, 2, (HostFault(kind, "b", 5.0),), seconds=30.0))
        run.play()
        assert run.elected == {1: "a"}
    run = HostSimulation(HostPlan(1, 2, (HostFault("kill", "a", 5.0),), seconds=60.0, lives=False))
    run.play()
    assert run.elected == {1: "a"}
    assert run.told_at < 6.0, "nothing counts any more"


def test_of_two_hosts_that_are_to_wait_neither_goes_on_until_both_are_there() -> None:
    faults = (HostFault("cut", "b", 5.0), HostFault("heal", "b", 35.0))
    run = HostSimulation(HostPlan(1, 2, faults, seconds=60.0, first_decides=False))
    run.play()
    assert max(run.gaps) > 29.0


def test_any_two_sets_of_hosts_that_are_enough_have_one_in_common() -> None:
    for first_decides in (True, False):
        for size in range(1, 6):
            voters = tuple("abcde"[:size])
            for one in (Electorate(voters, first_decides=first_decides),):
                sets = [{v for i, v in enumerate(voters) if mask >> i & 1} for mask in range(1 << size)]
                enough = [s for s in sets if one.is_enough(s)]
                assert enough, "all of them are"
                assert all(s & t for s in enough for t in enough)
                smaller = one.changed(voters[1:] or voters)
                assert all(s & t for s in enough for t in sets if smaller.is_enough(t))

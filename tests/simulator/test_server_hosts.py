"""Hosts with servers and workers on them are lost, and come back: no acknowledged update is lost with them."""

from __future__ import annotations

import random

import pytest

from shoal.store.decisions import director, placement
from shoal.store.decisions.placement import Placement

from .elastic import LIMIT, Simulation, play
from .paced_plans import MARKS, fault, paced
from .plan import Plan
from .wrong import Wrong


def hosts_die(seed: int) -> Plan:
    """One after the other, each when copies have had time to come back."""
    chance = random.Random(f"hosts {seed}")
    hosts = chance.choice((2, 2, 3))
    faults = (
        fault(
            "host", chance.choice(("primary", "backup")), chance.choice(MARKS[:6]), 30 + 10 * n + seed % 7, shard=n % 3
        )
        for n in range(14)
    )
    return paced(
        seed,
        hosts=hosts,
        servers=chance.choice((hosts, 4, 5)),
        workers=chance.choice((hosts, 4)),
        shards=3,
        epochs=4,
        batches=16,
        restarts=12,
        late=chance.choice((0.0, 0.05)),
        bound=chance.choice((1, 2, None)),
        slow=chance.choice((1.0, 5.0)),
        faults=tuple(faults),
    )


def test_hosts_are_lost_with_servers_and_workers_and_no_update_with_them():
    runs = [play(hosts_die(seed)) for seed in range(8)]
    assert sum(run.fired.count("host") for run in runs) >= 12
    assert not any("was lost with" in text for run in runs for text in run.history.said)


def test_shards_move_to_a_host_that_has_come_back():
    dawdle = fault("dawdle", "worker-0", "Finish", 22, seconds=2.5)
    run = play(
        paced(
            1,
            hosts=2,
            servers=4,
            workers=2,
            restarts=6,
            epochs=4,
            bound=None,
            faults=(fault("host", "server-1", "Push", 20), dawdle),
        )
    )
    assert run.fired == ["host", "dawdle"]
    said = [text for text in run.history.said if "host" in text]
    assert said[-1] == "the copies of every shard are on different hosts again"
    hosts = run.history.placement.hosts
    assert all(len({hosts[id] for id in view.holders}) == 2 for view in run.history.placement.views)


def _blind(self, workers, servers, expected, now, hosts=None):
    return TAKE(self, workers, servers, expected, now, {})


TAKE = director.Director.take
MUTANTS = {
    "a director that does not hear of hosts": (director.Director, "take", _blind),
    "copies go wherever there is room": (placement._Draft, "_apart", lambda draft, shard: []),
    "copies stay together when a host comes": (placement._Draft, "spread", lambda draft: None),
    "the next view forgets the hosts": (
        Placement,
        "next",
        lambda self, number, servers, hosts=None: NEXT(self, number, servers, {}),
    ),
}
NEXT = Placement.next


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_placement_that_forgets_hosts_loses_updates(monkeypatch, mutant):
    monkeypatch.setattr(*MUTANTS[mutant])

    def search() -> None:
        for seed in range(25):
            Simulation(hosts_die(seed)).play(LIMIT)

    with pytest.raises(Wrong):
        search()

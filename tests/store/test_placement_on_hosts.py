"""The copies of a shard are on different hosts, as far as there are hosts; and move when one comes or goes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shoal.store.decisions import placement as module
from shoal.store.decisions.placement import Placement, setbacks

from .test_placement import brought_up, loads, names, settled, sizes

unhurried = settings(deadline=None)
TWO_EACH = {"server-0": "a", "server-1": "b", "server-2": "a", "server-3": "b"}


def spans(placement: Placement) -> list[int]:
    """Of each shard: on how many hosts there is a copy, or will be."""
    return [len({placement.hosts.get(id, id) for id in view.holders}) for view in placement.views]


def hosts_of(servers: list[str], hosts: Mapping[str, str]) -> set[str]:
    return {hosts[id] for id in servers}


def come_and_go(sizes: list[int], data: st.DataObject) -> None:
    """Servers and whole hosts come and go, newcomers catch up or not; what is promised of every view."""
    count = data.draw(st.integers(1, 6), label="servers")
    servers = names(*range(count))
    hosts = {id: data.draw(st.sampled_from("abcd")) for id in servers}
    replicas = data.draw(st.integers(1, min(3, count)), label="replicas")
    placement = Placement.first(1, servers, replicas, sizes, hosts=hosts)
    assert spans(placement) == [min(replicas, len(hosts_of(servers, hosts)))] * len(sizes)
    number = 1
    for _ in range(data.draw(st.integers(1, 8))):
        lost_host = None
        match data.draw(st.sampled_from(("lose", "lose host", "lose host", "come", "catch up", "settle"))):
            case "lose" if servers:
                servers = [id for id in servers if id != data.draw(st.sampled_from(servers))]
            case "lose host" if servers:
                lost_host = data.draw(st.sampled_from(sorted(hosts_of(servers, hosts))))
                servers = [id for id in servers if hosts[id] != lost_host]
            case "come":
                servers = [*servers, f"server-{count}"]
                hosts[f"server-{count}"] = data.draw(st.sampled_from("abcd"))
                count += 1
            case "catch up":
                placement = brought_up(placement)
            case "settle" if placement.servers:
                placement = settled(placement)
                number = placement.number
                here = len(hosts_of(list(placement.servers), hosts))
                least = min(replicas, here, len(placement.servers))
                assert all(span >= least for span in spans(placement)), "at rest, copies are apart"
                assert not placement.together(least)
        number += 1
        before = placement
        placement = before.next(number, servers, hosts)
        if lost_host is not None:
            safe = {
                view.shard
                for view in before.views
                if {hosts[id] for id in (view.primary, *view.backups) if id is not None} - {lost_host}
            }
            assert safe.isdisjoint(one.shard for one in setbacks(before.views, placement)), "a copy elsewhere took over"
        for old, new in zip(before.views, placement.views, strict=True):
            kept = {hosts[id] for id in old.holders if id in servers}
            at_least = min(len(kept), replicas, len(servers))
            assert len({hosts[id] for id in new.holders}) >= at_least, "nothing was brought together"


@unhurried
@given(sizes, st.data())
def test_copies_are_on_as_many_hosts_as_there_can_be_whoever_comes_and_goes(sizes, data):
    come_and_go(sizes, data)


@unhurried
@given(sizes, st.data())
def test_within_what_hosts_allow_the_servers_are_balanced(sizes, data):
    """Two hosts with as many servers each: every copy has its half of the servers."""
    each = data.draw(st.integers(1, 3))
    hosts = {f"server-{number}": "ab"[number % 2] for number in range(2 * each)}
    held = loads(settled(Placement.first(1, list(hosts), 2, sizes, hosts=hosts)))
    assert max(held.values()) - min(held.values()) <= 2 * max(sizes) + 0.2 * sum(held.values()) / len(held)


def test_the_copies_of_a_host_that_was_lost_come_back_to_it():
    before = settled(Placement.first(1, list(TWO_EACH), 2, (10,) * 8, hosts=TWO_EACH))
    assert spans(before) == [2] * 8
    alone = settled(before.next(before.number + 1, names(0, 2), TWO_EACH))
    assert not setbacks(before.views, alone)
    assert [len(view.holders) for view in alone.views] == [2] * 8
    assert alone.together(2) == list(range(8)), "which is told"
    hosts = TWO_EACH | {"server-4": "b", "server-5": "b"}
    back = settled(alone.next(alone.number + 1, names(0, 2, 4, 5), hosts))
    assert spans(back) == [2] * 8
    assert not back.together(2)
    assert set(loads(back).values()) == {40}
    assert min(loads(back, primaries=True).values()) >= 10, "and each leads some"


def test_one_server_on_the_second_host_has_a_copy_of_everything():
    hosts = {"server-0": "a", "server-1": "a", "server-2": "a", "server-3": "b"}
    held = loads(settled(Placement.first(1, list(hosts), 2, (10,) * 6, hosts=hosts)))
    assert held == {"server-0": 20, "server-1": 20, "server-2": 20, "server-3": 60}


def test_what_comes_back_gets_a_copy_of_everything_even_if_it_then_holds_more_than_others():
    hosts = {"server-0": "a", "server-1": "a", "server-2": "a", "server-3": "b"}
    alone = settled(Placement.first(1, names(0, 1, 2), 2, (10,) * 6, hosts=hosts))
    back = settled(alone.next(alone.number + 1, list(hosts), hosts))
    assert spans(back) == [2] * 6
    assert loads(back)["server-3"] == 60


def test_more_copies_than_hosts_are_on_servers_of_their_own():
    placement = settled(Placement.first(1, list(TWO_EACH), 3, (10,) * 4, hosts=TWO_EACH))
    assert spans(placement) == [2] * 4
    assert placement.together(3) == [0, 1, 2, 3]
    assert placement.together(2) == []


def _anywhere(draft, shard):
    """Any server is as good as one on another host."""
    return []


def _always(draft, view, giver, taker):
    return True


def _no_matter(draft, view, id):
    return 0


@pytest.mark.parametrize(
    ("verb", "wrong"),
    [
        ("_apart", _anywhere),
        ("_stays_apart", _always),
        ("_hosts_without", _no_matter),
        ("spread", lambda draft: None),
    ],
)
def test_a_wrong_placement_is_found(monkeypatch, verb, wrong):
    monkeypatch.setattr(module._Draft, verb, wrong)
    search = settings(deadline=None, database=None, derandomize=True, phases=[Phase.generate], max_examples=600)(
        given(sizes, st.data())(come_and_go)
    )

    def examine():
        test_the_copies_of_a_host_that_was_lost_come_back_to_it()
        test_what_comes_back_gets_a_copy_of_everything_even_if_it_then_holds_more_than_others()
        search()

    with pytest.raises((AssertionError, BaseExceptionGroup)):
        examine()

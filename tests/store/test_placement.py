"""Shards lie where there is room, only backups are promoted, and nothing moves without need."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.store.decisions.placement import Placement, setbacks

unhurried = settings(deadline=None)
EIGHT = (10,) * 8


def names(*numbers: int) -> list[str]:
    return [f"server-{number}" for number in numbers]


def brought_up(placement: Placement) -> Placement:
    """Every newcomer has caught up."""
    for view in placement.views:
        for newcomer in view.newcomers:
            placement = placement.caught_up(placement.number, view.shard, newcomer)
    return placement


def settled(placement: Placement) -> Placement:
    """All that is due has been done. It must not take long."""
    for _ in range(2 + 2 * len(placement.views)):
        placement = brought_up(placement)
        if placement.is_settled:
            return placement
        placement = placement.next(placement.number + 1, placement.servers)
    raise AssertionError(f"never at rest: {placement}")


def loads(placement: Placement, primaries: bool = False) -> dict[str, int]:
    return {
        server: sum(
            placement.sizes[view.shard]
            for view in placement.views
            if server == view.primary or (not primaries and server in view.holders)
        )
        for server in placement.servers
    }


def moved(before: Placement, after: Placement) -> int:
    """How many replicas had to be brought to a server that had none."""
    return sum(len(set(new.holders) - set(old.holders)) for old, new in zip(before.views, after.views, strict=True))


sizes = st.lists(st.integers(1, 100), min_size=1, max_size=12)


@unhurried
@given(sizes, st.integers(1, 5), st.data())
def test_every_shard_has_its_replicas_on_servers_of_their_own(sizes, servers, data):
    replicas = data.draw(st.integers(1, servers))
    placement = Placement.first(1, names(*range(servers)), replicas, sizes)
    for view in placement.views:
        assert len(set(view.holders)) == len(view.holders) == replicas
        assert view.backups == (), "nobody has anything yet but the primary"
        assert (view.number, view.origin) == (1, 1)
    most = max(loads(placement).values())
    assert most <= sum(sizes) * replicas / servers + 2 * max(sizes)


@unhurried
@given(sizes, st.data())
def test_only_a_backup_is_promoted_and_a_shard_goes_back_only_if_it_had_none(sizes, data):
    """Servers come and go, newcomers catch up or not: what is promised of each step from one view to the next."""
    present = data.draw(st.integers(1, 4))
    replicas = data.draw(st.integers(1, present))
    placement = Placement.first(1, names(*range(present)), replicas, sizes)
    number, servers = 1, list(placement.servers)
    for _ in range(data.draw(st.integers(1, 12))):
        before = placement
        match data.draw(st.sampled_from(("lose", "lose", "come", "catch up"))):
            case "lose" if servers:
                servers.remove(data.draw(st.sampled_from(servers)))
            case "come":
                servers.append(f"server-{present}")
                present += 1
            case "catch up":
                before = placement = brought_up(placement)
        number += 1
        placement = before.next(number, servers)
        gone_back = {setback.shard for setback in setbacks(before.views, placement)}
        for old, new in zip(before.views, placement.views, strict=True):
            up_to_date = {old.primary, *old.backups} & set(servers)
            assert new.number == number
            assert set(new.holders) <= set(servers)
            assert len(set(new.holders)) == len(new.holders) >= min(replicas, len(servers))
            if up_to_date:
                assert new.primary in up_to_date
                assert set(new.backups) <= up_to_date
                assert new.shard not in gone_back
            elif servers:
                assert new.shard in gone_back
                assert (new.origin, new.backups) == (number, ())
            else:
                assert new.primary is None
    if servers:
        settled(placement)


@unhurried
@given(sizes, st.integers(2, 5), st.data())
def test_what_is_at_rest_is_balanced_and_stays_as_it_is(sizes, servers, data):
    replicas = data.draw(st.integers(1, servers))
    placement = settled(Placement.first(1, names(*range(servers)), replicas, sizes))
    assert placement.next(9, placement.servers).views == tuple(
        msgspec.structs.replace(view, number=9) for view in placement.views
    )
    held = loads(placement)
    assert max(held.values()) - min(held.values()) <= 2 * max(sizes) + 0.2 * sum(held.values()) / servers


def test_a_lost_server_moves_only_what_it_held():
    before = settled(Placement.first(1, names(0, 1, 2, 3), 2, EIGHT))
    after = before.next(2, names(0, 1, 3))
    assert moved(before, after) == sum("server-2" in view.holders for view in before.views) == 4
    for old, new in zip(before.views, after.views, strict=True):
        if "server-2" not in old.holders:
            assert new == msgspec.structs.replace(old, number=2)


def test_a_lost_primary_is_followed_by_its_backup():
    before = settled(Placement.first(1, names(0, 1, 2), 2, (10,)))
    (old,) = before.views
    (new,) = before.next(2, [server for server in before.servers if server != old.primary]).views
    assert (new.primary,) == old.backups
    assert len(new.newcomers) == 1


def test_a_new_server_gets_its_part_and_nothing_else_moves():
    before = settled(Placement.first(1, names(0, 1), 2, EIGHT))
    after = before.next(before.number + 1, names(0, 1, 2))
    assert sum(view.newcomers == ("server-2",) for view in after.views) == 5
    assert all(
        set(old.holders) < set(new.holders) or old.holders == new.holders
        for old, new in zip(before.views, after.views, strict=True)
    )
    rest = settled(after)
    assert sorted(loads(rest).values()) == [50, 50, 60]
    assert sorted(loads(rest, primaries=True).values()) == [20, 30, 30]


def test_a_small_gain_moves_nothing():
    before = settled(Placement.first(1, names(0, 1), 1, (50, 50, 1)))
    assert moved(before, before.next(2, names(0, 1))) == 0
    assert before.is_settled


def test_a_newcomer_is_a_backup_only_when_it_has_caught_up_in_this_view():
    placement = Placement.first(1, names(0, 1), 2, (10,))
    (view,) = placement.views
    (newcomer,) = view.newcomers
    assert placement.caught_up(0, 0, newcomer) == placement, "that was said of another view"
    assert placement.caught_up(1, 0, "server-9") == placement
    (view,) = placement.caught_up(1, 0, newcomer).views
    assert (view.backups, view.newcomers) == ((newcomer,), ())


def test_a_shard_whose_replicas_are_all_lost_goes_back():
    before = settled(Placement.first(1, names(0, 1), 1, (10, 10)))
    after = before.next(2, names(1))
    (setback,) = setbacks(before.views, after)
    view = after.views[setback.shard]
    assert (view.primary, view.origin, setback.lost) == ("server-1", 2, ("server-0",))
    assert before.keeps(1)
    assert not after.keeps(1)


def test_without_any_server_the_shards_wait_for_one():
    before = settled(Placement.first(1, names(0), 1, (10,)))
    nowhere = before.next(2, [])
    assert [view.primary for view in nowhere.views] == [None]
    (view,) = nowhere.next(3, names(7)).views
    assert (view.primary, view.origin) == ("server-7", 3)


def test_a_placement_is_written_down_and_read_again():
    placement = Placement.first(1, names(0, 1, 2), 2, EIGHT)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(placement), type=Placement) == placement


def test_bad_input_is_named():
    with pytest.raises(UsageError, match="this run has none"):
        Placement.first(1, [], 1, (10,))
    with pytest.raises(UsageError, match="3 replicas of every shard can't be kept on 2 servers"):
        Placement.first(1, names(0, 1), 3, (10,))
    with pytest.raises(UsageError, match="0 replicas"):
        Placement.first(1, names(0), 0, (10,))
    with pytest.raises(UsageError, match="no shards"):
        Placement.first(1, names(0), 1, ())

"""A server that nobody is connected to: what it makes of letters and messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from shoal.store.decisions.director_messages import FROM_DIRECTOR, ShardsPlaced
from shoal.store.decisions.placement import Placement, ShardView
from shoal.store.server import Server
from shoal.store.values.messages import Lacking, Pull, Pulled, Supply, VersionSeen
from shoal.store.values.tensors import Array, ArrayShape, ShardShapes
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.messages import Message

SHAPES = [ShardShapes((ArrayShape("float32", 5),), (ArrayShape("float32", 5),))] * 3


class Values:
    """A shard's tensors, as far as they are asked for here."""

    values: Array = np.zeros(5, np.float32)

    def set_weights(self, weights: Sequence[Array]) -> None:
        self.values = np.array(weights[0])

    def weights(self, asked: Sequence[Array]) -> Sequence[Array]:
        return [self.values]


class Alone:
    """The server, its link to the coordinator, and the shards that it has made."""

    def __init__(self, me: str, listener: Listener, key: RunKey) -> None:
        self.made: dict[int, Values] = {}
        self.server = Server(me, 0, self, listener, key, SHAPES, self._make)
        self.posted: list[tuple[str, Message]] = []
        self.server._links.post = lambda peer, message, *_, **__: self.posted.append((peer, message))

    def place(self, views: Sequence[ShardView], workers: tuple[str, ...] = (), began: int = 0) -> None:
        servers = ("server-0", "server-1", "server-2")
        placement = Placement(views[0].number, servers, 2, (20, 20, 20), tuple(views), began)
        self.server.read(FROM_DIRECTOR.encode(ShardsPlaced(0, placement, workers, {})))
        self.server._read_all()

    def _make(self, shard: int) -> Values:
        self.made[shard] = Values()
        return self.made[shard]

    def read_with(self, reader: object) -> None: ...

    def write(self, content: bytes) -> None: ...


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    key = RunKey(bytes(32))
    with contextlib.closing(Listener(f"unix:{tmp_path}/s.sock", key)) as listener:
        made = Alone("server-2", listener, key)
        with contextlib.closing(made.server):
            yield made


def test_it_has_all_that_it_is_to_hold_before_it_is_counted_for_any_of_it(alone):
    alone.place(
        [
            ShardView(3, 0, "server-1", (), ("server-2",), 1),
            ShardView(3, 1, "server-1", ("server-0",), (), 1),
            ShardView(3, 2, "server-1", (), ("server-2",), 1),
        ]
    )
    assert list(alone.made) == [0, 2]


def test_the_second_of_two_workers_that_supply_a_lost_shard_is_not_heeded(alone):
    alone.place([ShardView(1, shard, "server-2", (), (), 1) for shard in range(len(SHAPES))])
    for value in (1.0, 2.0):  # the first took long, and so another was asked
        alone.server._hear("worker-0", Supply(0, 1, 4), [np.full(5, value, np.float32)])
    assert (alone.made[0].values == 1.0).all()


def test_a_lost_shard_goes_on_from_the_newest_weights_and_not_from_whose_come_first(alone):
    alone.server._links.is_linked = lambda peer: True
    views = [ShardView(2, shard, "server-2", (), (), 2) for shard in range(len(SHAPES))]
    alone.place(views, workers=("worker-0", "worker-1"), began=1)
    alone.server._hear("worker-0", Pull(0, 2, 0), [])
    alone.server._ask_lacking()
    for worker, version in (("worker-0", 4), ("worker-1", 6)):
        alone.server._hear(worker, VersionSeen(0, 2, version), [])
    alone.server._ask_lacking()
    assert [said for said in alone.posted if isinstance(said[1], Lacking)] == [("worker-1", Lacking(0, 2))]
    alone.server._hear("worker-1", Supply(0, 2, 6), [np.full(5, 6.0, np.float32)])
    assert (alone.made[0].values == 6.0).all()
    assert [(peer, message.version) for peer, message in alone.posted if isinstance(message, Pulled)] == [
        ("worker-0", 6)
    ]


def test_a_worker_that_heard_of_the_view_before_the_server_is_asked_for_what_it_has(alone):
    """Both hear of it from the coordinator, and whose thread comes first is chance."""
    alone.server._hear("worker-0", Pull(0, 1, 0), [])
    alone.place([ShardView(1, shard, "server-2", (), (), 1) for shard in range(len(SHAPES))])
    alone.server._ask_lacking()
    assert alone.posted == [("worker-0", Lacking(0, 1))]
    alone.server._hear("worker-0", Supply(0, 1, 0), [np.ones(5, np.float32)])
    assert [type(message) for _, message in alone.posted[1:]] == [Pulled]


def test_what_was_said_in_the_next_view_while_a_shard_was_lacking_is_heard_in_it(alone):
    """Who said it will not say it again."""
    alone.place([ShardView(1, shard, "server-2", (), (), 1) for shard in range(len(SHAPES))])
    alone.server._hear("worker-0", Pull(0, 2, 0), [])
    alone.place([ShardView(2, shard, "server-2", (), (), 2) for shard in range(len(SHAPES))])
    alone.server._ask_lacking()
    assert alone.posted == [("worker-0", Lacking(0, 2))]
    alone.server._hear("worker-0", Supply(0, 2, 0), [np.ones(5, np.float32)])
    assert [type(message) for _, message in alone.posted[1:]] == [Pulled]

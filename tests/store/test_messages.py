"""Every message survives the wire as it is."""

from __future__ import annotations

import pytest

from shoal.store.values.ledger import Ledger, Provenance
from shoal.store.values.messages import (
    Anew,
    CaughtUp,
    Checked,
    Confirmed,
    Differs,
    Lacking,
    List,
    Listed,
    Order,
    Point,
    Pull,
    Pulled,
    Push,
    Pushed,
    ReplicaStanding,
    RequestRefused,
    ShardMessage,
    StoreReason,
    Supply,
    Transfer,
    VersionAsked,
    VersionSeen,
)
from shoal.store.values.operations import Assignment, Batch, Tally
from shoal.wire.messages import MessageCodec

BATCH = Batch(2, 7)
UPDATE = Provenance(BATCH, "worker-1", {"worker-0": 3})
MESSAGES = [
    Pull(1, 4, 9),
    Pulled(1, 4, 9, 12, {"worker-0": 3}),
    Push(1, 4, UPDATE),
    Push(1, 4, Provenance(Assignment(3, 0), "worker-1", {})),
    Pushed(1, 4, BATCH, 13, None),
    List(1, 4, 30),
    Listed(1, 4, 30, 5, 35),
    Lacking(1, 4),
    Supply(1, 4, 12),
    VersionAsked(1, 4),
    VersionSeen(1, 4, 12),
    VersionSeen(1, 4, None),
    ReplicaStanding(1, 4, Point(3, 12)),
    Order(1, 4, Point(4, 13), UPDATE),
    Transfer(1, 4, Point(3, 12), Ledger(2, Tally(6, frozenset({8})), {"worker-0": 12})),
    Confirmed(1, 4, 13),
    Checked(1, 4, Point(3, 12), 2**63),
    Anew(1, 4),
    RequestRefused(1, 5, StoreReason.STALE_VIEW, "you are in view 4"),
    CaughtUp(1, 4, "server-2"),
    Differs(1, 4, "server-2", 12, (1, 2)),
]


def test_these_are_all_messages():
    assert {type(message) for message in MESSAGES} == set(ShardMessage.__subclasses__())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message):
    codec = MessageCodec(*(type(message) for message in MESSAGES))
    assert codec.decode(codec.encode(message)) == message

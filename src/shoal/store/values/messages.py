"""What workers and the replicas of a shard say to each other. Tensors travel beside a message, never inside it.

worker  ──Pull──▶ primary ──Pulled──▶ worker          the weights are beside Pulled
worker  ──Push──▶ primary ──Pushed──▶ worker          the gradients are beside Push
worker  ──List──▶ primary ──Listed──▶ worker          rows of a table that were ever updated, to be saved
                  primary ──Order───▶ others ──Confirmed──▶ primary
                  primary ◀─Standing─ others                 when the view or the connection is new
                  primary ─Transfer─▶ others ──Confirmed──▶ primary
                  primary ◀─Checked── others,  primary ──Anew──▶ one that differs
primary ──CaughtUp, Differs──▶ director
primary ──VersionAsked─▶ workers ──VersionSeen──▶ primary  of a shard that is lost
primary ──Lacking─▶ worker  ──Supply──▶ primary            a shard that nobody has, from a worker's weights
"""

from __future__ import annotations

import enum

import msgspec

from shoal.store.values.ledger import Ledger, Provenance
from shoal.store.values.operations import Operation
from shoal.wire.messages import Message


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A point in a shard's history: how many updates were applied, and in which view the last of them was ordered.

    A view has one primary, and it orders each version once. So two replicas at the same point have the same state.
    """

    view: int
    version: int


class StoreHello(Message, frozen=True):
    """Whoever dials -> whoever listens: who I am. The first word."""

    member: str


class ShardMessage(Message, frozen=True):
    """Base of all that is said about a shard. What carries an older view than the hearer's is refused."""

    shard: int
    view: int  # that the sender is in


# Workers ----------------------------------------------------------------------------------------------


class PullKind(enum.StrEnum):
    """What a worker wants to know of a shard."""

    WEIGHTS = "weights"
    AVERAGES = "averages"  # what the optimizer makes of the weights after the last update


class Pull(ShardMessage, frozen=True):
    """Worker -> primary: give me the weights. Of a table: the rows beside this."""

    number: int  # of the question, among all that this worker asks
    what: PullKind = PullKind.WEIGHTS
    rows: int = 0  # of a table: how many


class Pulled(ShardMessage, frozen=True):
    """Primary -> worker: the weights at this version. Every replica that may ever be promoted has them."""

    number: int  # of the question
    version: int
    made: dict[str, int]  # how many updates of each worker they contain
    what: PullKind = PullKind.WEIGHTS
    rows: int = 0


class Push(ShardMessage, frozen=True):
    """Worker -> primary: apply these gradients. Sent again until it is acknowledged, and applied once."""

    update: Provenance
    rows: int = 0  # of a table: how many have a gradient


class Pushed(ShardMessage, frozen=True):
    """Primary -> worker: this is applied on every replica that may ever be promoted."""

    operation: Operation
    version: int
    staleness: int | None  # None: it had been applied before, and nobody remembers


class List(ShardMessage, frozen=True):
    """Worker -> primary: which rows of this part of a table were ever updated, from the `start`-th on?"""

    start: int


class Listed(ShardMessage, frozen=True):
    """Primary -> worker: so many rows, beside this, of `total`."""

    start: int
    rows: int
    total: int


class VersionAsked(ShardMessage, frozen=True):
    """Primary -> workers: this shard's state is lost. Which version of its weights do you have?"""


class VersionSeen(ShardMessage, frozen=True):
    """Worker -> primary: the newest that I have seen. None: I have none of them."""

    version: int | None


class Lacking(ShardMessage, frozen=True):
    """Primary -> worker: this shard's state is lost, or there never was one. Give me the weights that you have."""


class Supply(ShardMessage, frozen=True):
    """Worker -> primary: these are the newest weights of the shard that I have seen; they are beside it."""

    version: int


# Replicas ---------------------------------------------------------------------------------------------


class ReplicaStanding(ShardMessage, frozen=True):
    """Backup or newcomer -> primary: I am here; send me what comes after."""

    point: Point


class Order(ShardMessage, frozen=True):
    """Primary -> others: apply this update as this version. The gradients are beside it."""

    point: Point
    update: Provenance
    rows: int = 0


class Transfer(ShardMessage, frozen=True):
    """Primary -> one that said its Standing: this is the shard at this point. Its whole state is beside it."""

    point: Point
    ledger: Ledger
    rows: int = 0  # of a table, that were ever updated


class Confirmed(ShardMessage, frozen=True):
    """Backup or newcomer -> primary: I have applied everything up to this version."""

    version: int


class Checked(ShardMessage, frozen=True):
    """Backup or newcomer -> primary: the digest of my state at this point."""

    point: Point
    digest: int


class Anew(ShardMessage, frozen=True):
    """Primary -> one that differs: ask for the whole state."""


# Anybody ----------------------------------------------------------------------------------------------


class StoreReason(enum.StrEnum):
    """Why something was refused."""

    STALE_VIEW = "stale_view"
    NOT_PRIMARY = "not_primary"


class RequestRefused(ShardMessage, frozen=True):
    """Replica -> anybody: no. `view` is the replica's; the coordinator tells everybody in time."""

    reason: StoreReason
    text: str


class CaughtUp(ShardMessage, frozen=True):
    """Primary -> director: from now on nothing is acknowledged that this server has not applied."""

    server: str


class Differs(ShardMessage, frozen=True):
    """Primary -> director: this server's state was not the primary's at this version; it gets it anew."""

    server: str
    version: int
    digests: tuple[int, int]  # the primary's, the other's

"""What the workers of a view say to each other."""

from __future__ import annotations

from shoal.collectives.arrays import ArraySpec
from shoal.wire.messages import Message, MessageCodec


class PeerHello(Message, frozen=True):
    """Higher rank -> lower rank, first thing on a connection: who I am and in which view I am."""

    view: int
    member: str


class Welcome(Message, frozen=True):
    """Lower rank -> higher rank: yes, we are in the same view; all further messages belong to it."""

    view: int
    member: str


class RefusePeer(Message, frozen=True):
    """Either way: no, and why. The sender takes no further part in what was asked."""

    reason: str
    text: str


class SlotsPublished(Message, frozen=True):
    """To all peers: I have come to exchange `number`; my part of it stays as it is until all have reduced it.

    Between hosts the receiver's slice of each of my partial sums travels beside it.
    """

    view: int
    number: int  # counts the exchanges of the view
    what: str  # for example "fit step 12"; every member's must be the same
    note: bytes
    exchange: int = 0  # the number under which the exchange's memory was opened; 0: there is none
    pieces: int = 0  # the step's pieces, and the run of them that I hold
    first: int = 0
    stop: int = 0


class Reduced(Message, frozen=True):
    """To all peers: my slice of exchange `number` is added up. Between hosts it travels beside it."""

    view: int
    number: int
    exchange: int = 0


class Summed(Message, frozen=True):
    """To all peers: what I stand for of my host's pieces is added up; to other hosts' owners it travels beside it."""

    view: int
    number: int
    exchange: int
    sums: int  # partial sums that my host's pieces make


class TotalsArrived(Message, frozen=True):
    """To the peers of my host: what I get of the other hosts' totals lies in the memory that we share."""

    view: int
    number: int


class Aborted(Message, frozen=True):
    """To all peers: I take part in no further exchange of this view, because these members are lost."""

    view: int
    members: tuple[str, ...]
    why: str


class Bulk(Message, frozen=True):
    """To a peer that expects it: the arrays that both agreed on in exchange `number`, beside the header."""

    view: int
    number: int


class Handed(Message, frozen=True):
    """To a peer of the same host: descriptors of the shared memory that exchange `number` opens."""

    view: int
    number: int


class Passed(Message, frozen=True):
    """To one peer that waits for it, within an act: tensors under a name. On a host they lie in a block of mine, whose
    descriptor comes with the first message that names it; between hosts they travel beside it.
    """

    view: int
    name: tuple[int, ...]
    specs: tuple[ArraySpec, ...]
    block: int = 0  # 0: they travel beside it
    nbytes: int = 0  # of the block


CODEC = MessageCodec(
    PeerHello, Welcome, RefusePeer, SlotsPublished, Summed, Reduced, TotalsArrived, Aborted, Bulk, Handed, Passed
)

"""What workers and servers say to the director, and it to them. The coordinator passes them on.

chief   ──Open──▶ director ──Placed──▶ everybody         the shards' places, in every view
server  ──Serve─▶ director                               my script has come to this training
worker  ──Want──▶ director ──Grant──▶ worker             one update each
worker  ──Finish▶ director ──EpochOver─▶ workers         when every batch is counted
worker  ──Halt──▶ director                               deal no more of this epoch
chief   ──Next──▶ director                               all have seen the end of an epoch
chief   ──Close─▶ director ──Closed──▶ servers
chief   ──Pause─▶ director ──AtRest──▶ chief             when all that was dealt is counted: nothing changes any shard
chief   ──GoOn──▶ director                               deal again
chief   ──Kept──▶ director                               there is a checkpoint
primary ──CaughtUp, Differs──▶ director

All may be said twice: a coordinator that is started in the place of one that died hears the last of them again.
"""

from __future__ import annotations

import msgspec

from shoal.store.decisions.placement import Placement
from shoal.store.values.messages import CaughtUp, Differs
from shoal.store.values.operations import Batch
from shoal.wire.messages import Message, MessageCodec


class Left(msgspec.Struct, frozen=True):
    """A shard that a training before this one has left on its servers."""

    shard: int
    call: int  # of that training
    before: int  # the shard's number in it


class Open(Message, frozen=True):
    """Chief -> director: a training begins with these shards, at the first of so many batches of this epoch."""

    call: int  # of the script: which training
    sizes: tuple[int, ...]  # of the shards, in bytes
    epoch: int
    batches: int
    bound: int | None  # of the staleness
    replicas: int
    ahead: int  # updates that a worker may be at
    facts: bytes = b""  # that a worker which comes late must know; the director does not open them
    done: int = 0  # batches of this epoch that counted before, in the run that it goes on from
    kept: int | None = None  # the step of the checkpoint that it goes on from
    tables: tuple[int, ...] = ()  # the shards that are parts of tables: nobody but servers has their rows
    goes_on: tuple[Left, ...] = ()  # shards that servers have: of tables everything, of others all but the weights
    remembers: tuple[int, ...] = ()  # calls that a later one may go on from


class Serve(Message, frozen=True):
    """Server -> director: my script has come to this call; I can hold shards of it."""

    call: int


class WantWork(Message, frozen=True):
    """Worker -> director: I could begin one more update, my `turn`-th of this call, counted from 0."""

    call: int
    turn: int


class Finish(Message, frozen=True):
    """Worker -> director: every shard has acknowledged this update."""

    call: int
    batch: Batch
    number: int
    view: int
    staleness: int | None


class Halt(Message, frozen=True):
    """Worker -> director: deal no more of this epoch."""

    call: int
    epoch: int


class Next(Message, frozen=True):
    """Chief -> director: all workers have seen the end of the epoch before this one."""

    call: int
    epoch: int
    batches: int


class Close(Message, frozen=True):
    """Chief -> director: the training is over, and everybody has what they need of it."""

    call: int


class Pause(Message, frozen=True):
    """Worker -> director: deal no new batch until I say GoOn. My `number`-th pause of this call, counted from 0."""

    call: int
    number: int


class GoOn(Message, frozen=True):
    """Worker -> director: my pause is over."""

    call: int
    number: int


class CheckpointKept(Message, frozen=True):
    """Worker -> director: the checkpoint of this step is on disk."""

    call: int
    step: int


class AtRest(Message, frozen=True):
    """Director -> who asked for a pause: exactly the first so many batches of this epoch are in every shard."""

    call: int
    number: int
    epoch: int
    counted: int


class ShardsPlaced(Message, frozen=True):
    """Director -> everybody: who holds what from now on, who computes, and where the servers are."""

    call: int
    placement: Placement
    workers: tuple[str, ...]
    addresses: dict[str, str]  # of the servers
    facts: bytes = b""  # as they were opened with


class Grant(Message, frozen=True):
    """Director -> worker: compute this batch, from weights of this view or a later one."""

    call: int
    turn: int
    batch: Batch
    number: int  # of the update, for the staleness clock
    view: int


class EpochOver(Message, frozen=True):
    """Director -> workers: every batch of this epoch is counted."""

    call: int
    epoch: int


class TrainingClosed(Message, frozen=True):
    """Director -> servers: this training is over."""

    call: int


TO_DIRECTOR = MessageCodec(
    Open, Serve, WantWork, Finish, Halt, Next, Close, Pause, GoOn, CheckpointKept, CaughtUp, Differs
)
FROM_DIRECTOR = MessageCodec(ShardsPlaced, Grant, EpochOver, TrainingClosed, AtRest)

"""Where a fit stands, in the one encoding that there is: latecomers are told it, and a checkpoint keeps it."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.data.sources import Bookmark
from shoal.planning.replanning import PlanStanding
from shoal.strategies.balance import Balance
from shoal.strategies.piece_choice import PieceChoice
from shoal.training.calls import encode_plain
from shoal.training.data_agreement import DataState


class Position(msgspec.Struct):
    """Where a fit stands, between two steps."""

    epoch: int = 0
    step: int = 0  # of the epoch
    total: int = 0  # steps of this fit, over its epochs
    initial: int = 0  # the first epoch
    seed: int = 0
    pieces: int = 1  # 0: as whoever goes on from here would cut a batch
    balance: Balance = Balance()
    piece_choice: PieceChoice = PieceChoice()
    inner: tuple[int, ...] = ()  # steps of each replica in the next round, where they are uneven; none: all equal
    data: DataState = DataState()  # what the others have
    held_out_data: DataState = DataState()
    stream: Bookmark = Bookmark()  # how far a stream has been read
    held_out: Bookmark = Bookmark()  # the same, of a stream for validation
    call: int = 0  # the number of this fit among the script's calls
    calls: int = 0  # that the script has made, this one included
    trained: int = 0  # steps of the whole run, over all fits
    seen: int = 0  # samples in them
    plan: PlanStanding | None = None  # that is in force, where one was made
    codec: str = ""  # of gradients, with compress="auto"
    stop: bool = False
    logs: dict[str, Any] = {}
    samples: int = 0  # in the epoch so far; with servers that are not synchronous
    extras: list[Any] = []  # the same: sums of logs that are no metric
    loss_scale: float | None = None  # that the next step's losses are scaled by, if servers have the optimizer
    seeds: list[list[int]] = []  # of random numbers, as the fit began; with servers that are not synchronous


def encode(at: Position, arrays: int = 0) -> bytes:
    """`arrays`: how many beside it are the engine's; those behind them are the callbacks'."""
    return encode_plain((at, arrays))


def decode(told: bytes) -> tuple[Position, int]:
    return msgspec.msgpack.decode(told, type=tuple[Position, int])

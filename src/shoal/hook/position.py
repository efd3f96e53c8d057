"""Where a fit stands: what a worker that comes late is told, and a checkpoint keeps."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.strategies.balance import Balance


class Position(msgspec.Struct):
    """Where a fit stands, between two steps."""

    epoch: int = 0
    step: int = 0  # of the epoch
    total: int = 0  # steps of this fit, over its epochs
    initial: int = 0  # the first epoch
    seed: int = 0
    pieces: int = 1  # 0: as whoever goes on from here would cut a batch
    balance: Balance = Balance()
    stream: int = 0  # batches of a stream that are used up
    held_out: int = 0  # the same, of a stream for validation
    call: int = 0  # the number of this fit among the script's calls
    calls: int = 0  # that the script has made, this one included
    trained: int = 0  # steps of the whole run, over all fits
    stop: bool = False
    logs: dict[str, Any] = {}
    samples: int = 0  # in the epoch so far; with servers that are not synchronous
    extras: list[Any] = []  # the same: sums of logs that are no metric
    loss_scale: float | None = None  # that the next step's losses are scaled by, if servers have the optimizer

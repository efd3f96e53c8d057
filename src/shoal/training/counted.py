"""What a piece costs, counted on the way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from shoal.strategies.schema import Array
from shoal.training.engine import Engine
from shoal.training.run import Run


def counted_piece(
    run: Run, engine: Engine, part: int, batch: Any, piece: int, weight: float, rows: int
) -> Sequence[Array]:
    """What the engine gives for a piece."""
    known, begun = engine.compilations, time.perf_counter()
    arrays = engine.piece(part, batch, piece, weight)
    seconds = time.perf_counter() - begun
    if engine.compilations > known:
        run.counters.compiled(engine.compiled_for, seconds)
    else:
        run.counters.piece(rows, seconds)
    return arrays

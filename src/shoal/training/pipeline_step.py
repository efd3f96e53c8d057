"""One worker's part of a pipeline's step: the passes of its pieces through its stages, and what crosses the cuts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from shoal.collectives.group import AbstractGroup
from shoal.data.order import piece_bounds
from shoal.data.sources import Taken
from shoal.observe.phases import Phase
from shoal.strategies.schedule import Action, Held, Pass, actions_of
from shoal.strategies.schema import Array
from shoal.training.run import Run
from shoal.training.stage_engine import AbstractStageEngine
from shoal.training.stage_sums import Filling


class Sent(IntEnum):
    """What a tensor is that goes from one worker to another: the first word of its name."""

    FORWARD = 0
    BACKWARD = 1
    TIED = 2


class PipelineStep:
    """One worker's actions of one step."""

    def __init__(
        self,
        run: Run,
        engine: Any,
        engines: Sequence[AbstractStageEngine],
        spec: Any,
        taken: Taken,
        held: Held,
        group: AbstractGroup,
    ) -> None:
        self._run = run
        self._engine = engine
        self._engines = engines
        self._spec = spec
        self._taken = taken
        self._held = held
        self._group = group
        self._bounds = piece_bounds(taken.size, max(run.stop for runs in held for run in runs))
        self._here: dict[tuple[int, ...], list[Array]] = {}  # what this worker sends to itself
        self.seconds = 0.0  # that computing took

    def compute(self, what: str, fillings: dict[int, Filling], total: int) -> None:
        """All actions in their order. Each stage's sums are filled piece by piece; under -1 are the metrics'."""
        for filling in fillings.values():
            next(filling, None)
        for action in actions_of(self._held, self._group.rank):
            kind, stage, piece = action
            self._run.record(Phase.COMPUTING, f"stage {stage}, {kind} pass of piece {piece}", total)
            if kind is Pass.FORWARD:
                self._forward(stage, piece, what)
            else:
                self._backward(action, what, fillings)

    def _weight(self, piece: int) -> float:
        return (self._bounds[piece + 1] - self._bounds[piece]) / self._taken.size

    def _forward(self, stage: int, piece: int, what: str) -> None:
        engine, so_far = self._engines[stage], np.zeros((), np.float32)
        arrived: dict[int, Array] = {}
        for maker in _sources(engine):
            arrays = self._receive(maker, (Sent.FORWARD, maker, stage, piece), what)
            arrived |= zip(_between(self._engines[maker], stage), arrays, strict=False)
            so_far = arrays[-1] if maker == stage - 1 else so_far
        low, high = self._bounds[piece], self._bounds[piece + 1]
        batch = self._engine.batch(self._spec, self._taken.part(low, high))
        began = time.perf_counter()
        received = [*(arrived[tensor] for tensor, _ in engine.stage.receives), so_far]
        sent = engine.forward(piece, batch, self._weight(piece), received)
        self.seconds += time.perf_counter() - began
        if not engine.is_last:
            values = dict(zip((tensor for tensor, _ in engine.stage.sends), sent, strict=False))
            for taker in _targets(engine):
                arrays = [values[tensor] for tensor in _between(engine, taker)]
                self._send(
                    taker, (Sent.FORWARD, stage, taker, piece), [*arrays, *sent[-1:]] if taker == stage + 1 else arrays
                )

    def _backward(self, action: Action, what: str, fillings: dict[int, Filling]) -> None:
        _, stage, piece = action
        engine = self._engines[stage]
        gradients: dict[int, Array] = {}
        of_losses: list[Array] = []
        for taker in _targets(engine):  # ascending: the gradients of all takers are added in this order
            came = self._receive(taker, (Sent.BACKWARD, taker, stage, piece), what)
            floats = [tensor for tensor in _between(engine, taker) if engine.is_float(tensor)]
            for tensor, array in zip(floats, came, strict=False):
                gradients[tensor] = gradients[tensor] + array if tensor in gradients else array
            of_losses = came[-1:] if taker == stage + 1 else of_losses
        began = time.perf_counter()
        wanted = [gradients[tensor] for tensor, _ in engine.stage.sends if engine.is_float(tensor)]
        if engine.is_last:
            _push(fillings[-1], engine.metrics(piece), self._weight(piece))
        back, arrays = engine.backward(piece, [*wanted, *of_losses])
        self.seconds += time.perf_counter() - began
        floats = [tensor for tensor, _ in engine.stage.receives if engine.is_float(tensor)]
        found = dict(zip(floats, back, strict=False))
        for maker in _sources(engine):
            mine = [found[tensor] for tensor in _between(self._engines[maker], stage) if tensor in found]
            self._send(maker, (Sent.BACKWARD, stage, maker, piece), [*mine, back[-1]] if maker == stage - 1 else mine)
        began = time.perf_counter()
        _push(fillings[stage], arrays, self._weight(piece))
        self.seconds += time.perf_counter() - began

    def _owner(self, stage: int, piece: int) -> int:
        return next(rank for rank, run in enumerate(self._held[stage]) if piece in run)

    def _send(self, stage: int, name: tuple[int, ...], arrays: list[Array]) -> None:
        owner = self._owner(stage, name[-1])
        if owner == self._group.rank:
            self._here[name] = arrays
        else:
            self._group.send([owner], name, arrays)

    def _receive(self, stage: int, name: tuple[int, ...], what: str) -> list[Array]:
        owner = self._owner(stage, name[-1])
        return self._here.pop(name) if owner == self._group.rank else self._group.receive(owner, name, what)


def _push(filling: Filling, arrays: Sequence[Array], weight: float) -> None:
    """The next piece of a sum. Pieces come in ascending order, whatever the schedule."""
    with contextlib.suppress(StopIteration):
        filling.send((arrays, weight))


def _sources(engine: AbstractStageEngine) -> list[int]:
    """The stages that send to this one, ascending; the one before it always does."""
    before = {engine.stage.number - 1} if engine.stage.number else set()
    return sorted({maker for _, maker in engine.stage.receives} | before)


def _targets(engine: AbstractStageEngine) -> list[int]:
    after = set() if engine.is_last else {engine.stage.number + 1}
    return sorted({taker for _, takers in engine.stage.sends for taker in takers} | after)


def _between(maker: AbstractStageEngine, taker: int) -> list[int]:
    """The tensors that go from one stage to another, in their order."""
    return [tensor for tensor, takers in maker.stage.sends if taker in takers]

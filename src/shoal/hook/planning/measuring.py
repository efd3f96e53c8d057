"""A model's own programs, timed: a piece of the whole, the stages of each cut, the updates. Nothing of it counts.

What was measured is put back: weights, optimizer, metrics and seeds are those from before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from shoal.errors import CannotDistribute
from shoal.hook.backends import registry
from shoal.hook.backends.base import AbstractEngine
from shoal.hook.calls import feeds
from shoal.hook.planning.timing import timed, timed_with_first
from shoal.hook.served.sliced_choice import why_not_sliced
from shoal.hook.served.unit_update import KerasUnits
from shoal.hook.stages.engine import AbstractKerasStage
from shoal.hook.stages.stages import KerasStages
from shoal.planning.facts import CutFacts, PieceTime, StageFacts
from shoal.strategies.schema import Array
from shoal.strategies.slicing import cut_into_units
from shoal.training.engine import Engine
from shoal.training.prepared import Prepared
from shoal.training.sliced import spans_of

_GRADIENT = 1e-4  # what updates are timed with: zeros might be quicker than numbers


@contextmanager
def put_back(engine: Engine) -> Iterator[None]:
    """All that an engine's model holds is afterwards what it was."""
    kept = [np.array(array) for array in engine.state()]
    try:
        yield
    finally:
        engine.settle()
        engine.release()
        engine.set_state(kept)


def whole_facts(model: Any, prepared: Prepared, engine: AbstractEngine, sizes: Sequence[int]) -> StageFacts:
    """Of the model in one part, with pieces of these sizes."""
    shape = prepared.shape
    parts = range(len(shape.parts))
    vectors = [part.schema.layout.vector(part.schema.layout.memory()) for part in shape.parts]
    for vector in vectors:
        vector.f32[:] = _GRADIENT
    totals = [shape.parts[number].split(shape.parts[number].schema.views(vectors[number])) for number in parts]

    def update() -> None:
        for number in parts:
            engine.apply(number, totals[number][0], totals[number][1])
        engine.settle()

    def step(batch: Any) -> None:
        for number in parts:
            engine.piece(number, batch, 0, 1.0)
            if len(parts) > 1:
                engine.apply(number, totals[number][0], totals[number][1])

    times = []
    with put_back(engine):
        for size in sizes:
            batch = feeds.example(prepared.source.spec(), size)
            counted = _Counted(lambda batch=batch: step(batch), engine.variables.weights)  # type: ignore[misc]
            first, usual = timed_with_first(counted)
            times.append(PieceTime(size, usual, kept=counted.kept))
        updating = timed(update) if len(parts) == 1 else 0.0
        why_not = why_not_sliced(model, engine.variables, shape)
        slices = 0.0 if why_not else _sliced_update(model, prepared)
    variables = engine.variables
    adopting = 0.0
    if not why_not:
        values = [np.array(engine.read(variable)) for variable in variables.trainable]
        adopting = timed(lambda: engine.adopt(variables.trainable, values))
    return StageFacts(
        tuple(times),
        updating,
        _bytes((*variables.trainable, *variables.states)),
        sum(vector.f32.nbytes for vector in vectors),
        _bytes(variables.optimizer),
        why_not_sliced=why_not or "",
        sliced=slices,
        adopting=adopting,
        compiling=max(0.0, first - usual),
    )


def _sliced_update(model: Any, prepared: Prepared) -> float:
    """Seconds for all units of a sliced update: one of each kind and size is timed."""
    part, optimizer = prepared.shape.only, prepared.optimizer.own
    variables = [prepared.engine.variables.weights[i] for i in part.gradients]
    programs = KerasUnits(optimizer, variables, model.jit_compile)
    programs.begin([prepared.engine.read(variable) for variable in programs.once.values()])
    units = cut_into_units(spans_of(part.schema, programs.kinds))
    seconds: dict[tuple[int, int], float] = {}
    for unit in units:
        if (unit.kind, unit.room) not in seconds:
            held = [_lined_up(unit.room) for _ in range(3 + 2 * len(programs.kept))]
            weights, gradient, new, *kept = held
            half = len(programs.kept)

            def update(kind: int = unit.kind, given: Any = (weights, kept[:half], gradient, new, kept[half:])) -> None:
                programs.update(kind, *given)

            seconds[unit.kind, unit.room] = timed(update)
    programs.forget()
    return sum(seconds[unit.kind, unit.room] for unit in units)


def _lined_up(size: int) -> Array:
    """Memory on a cache line, as the real one."""
    room = np.full(size + 16, _GRADIENT, np.float32)
    start = (-room.ctypes.data % 64) // 4
    return room[start : start + size]


def cut_facts(
    model: Any,
    prepared: Prepared,
    engine: AbstractEngine,
    stages: int,
    sizes: Sequence[int],
    speeds: tuple[float, ...] = (),
) -> CutFacts | str:
    """Of the model in so many stages, for workers of these speeds, with pieces of these sizes; or why it can't be cut
    so.
    """
    try:
        found = KerasStages(model, engine, prepared.shape, stages, speeds)
    except CannotDistribute as error:
        return str(error)
    engines = cast(Sequence[AbstractKerasStage], found.engines)
    times: list[list[PieceTime]] = [[] for _ in range(stages)]
    sends: list[dict[int, float]] = [{} for _ in range(stages)]
    for size in sizes:
        passes = _Passes(engines, feeds.example(prepared.source.spec(), size), size)
        for number in range(stages):
            forward, backward, kept = passes.timed(number)
            times[number].append(PieceTime(size, forward, backward, kept))
        for number, sent in enumerate(passes.sent):
            sends[number] = {taker: nbytes / size for taker, nbytes in sent.items()}
    facts = []
    for number, stage in enumerate(engines):
        updating, kept_by_optimizer = _stage_update(engine, stage)
        weights = _bytes(stage.trainable)
        facts.append(
            StageFacts(
                tuple(times[number]),
                updating,
                _bytes(stage.variables),
                weights,
                kept_by_optimizer,
                tuple(sorted(sends[number].items())),
                "it is a stage",
            )
        )
    return CutFacts(tuple(facts), found.costs, speeds)


def _stage_update(engine: AbstractEngine, stage: AbstractKerasStage) -> tuple[float, int]:
    """Seconds of a stage's update, and bytes that its optimizer keeps."""
    if not stage.trainable:
        return 0.0, 0
    variables = list(stage.trainable)
    before = [np.array(engine.read(variable)) for variable in variables]
    try:
        stage.open()
        gradients = [np.full(tuple(variable.shape), _GRADIENT, np.float32).reshape(-1) for variable in variables]
        states = [np.array(engine.read(variable)).reshape(-1) for variable in stage.changed]
        return timed(lambda: stage.apply(gradients, states)), _bytes(stage.optimizer_variables)
    finally:
        engine.write(variables, before)
        stage.shut()


class _Passes:
    """One piece on its way through all stages and back, in this process."""

    def __init__(self, engines: Sequence[AbstractKerasStage], batch: Any, rows: int) -> None:
        self._engines = engines
        self._rows = rows
        self._batch = batch
        self._received: list[list[Array]] = []
        self._gradients: list[list[Array]] = []
        self.sent: list[dict[int, float]] = []  # bytes, by the stage that takes them
        self._walk()

    def timed(self, number: int) -> tuple[float, float, int]:
        """Seconds of a stage's passes, and bytes that it keeps between them."""
        stage = self._engines[number]

        def forward() -> None:
            stage.forward(0, self._batch, 1.0, self._received[number])

        counted = _Counted(forward, stage.variables)
        ahead = timed(counted)
        kept = counted.kept or stage.kept(0, self._rows)

        def both() -> None:
            forward()
            stage.backward(0, self._gradients[number])

        there_and_back = timed(both)
        stage.forget()
        return ahead, max(0.0, there_and_back - ahead), kept

    def _walk(self) -> None:
        values: dict[int, Array] = {}
        so_far: Array = np.zeros((), np.float32)
        for engine in self._engines:
            given = [*(values[tensor] for tensor, _ in engine.stage.receives), so_far]
            self._received.append(given)
            sent = engine.forward(0, self._batch, 1.0, given)
            names = [tensor for tensor, _ in engine.stage.sends]
            values |= {tensor: np.array(value) for tensor, value in zip(names, sent, strict=False)}
            so_far = np.array(sent[-1]) if sent else so_far
            to: dict[int, float] = {}
            for tensor, takers in engine.stage.sends:
                for taker in takers:
                    to[taker] = to.get(taker, 0.0) + values[tensor].nbytes
            self.sent.append(to)
        back: dict[int, Array] = {}
        of_losses: list[Array] = []
        for engine in reversed(self._engines):
            wanted = [back[tensor] for tensor, _ in engine.stage.sends if engine.is_float(tensor)]
            self._gradients.insert(0, [*wanted, *of_losses])
            came, _ = engine.backward(0, self._gradients[0])
            came = [np.array(gradient) for gradient in came]
            floats = [tensor for tensor, _ in engine.stage.receives if engine.is_float(tensor)]
            for tensor, gradient in zip(floats, came, strict=False):
                back[tensor] = back[tensor] + gradient if tensor in back else gradient
            of_losses = came[-1:]


class _Counted:
    """Something that is done; the first time, what it keeps for its way back is counted."""

    def __init__(self, act: Callable[[], None], weights: Sequence[Any]) -> None:
        self._act = act
        self._weights = weights
        self.kept = 0  # bytes; 0 where the backend can't tell

    def __call__(self) -> None:
        if self.kept:
            self._act()
        else:
            self.kept = registry.current().kept_by(self._act, self._weights)


def _bytes(variables: Sequence[Any]) -> int:
    backend = registry.current()
    return sum(backend.bytes_of(variable) for variable in variables)

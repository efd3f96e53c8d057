"""The sliced update: each worker updates some of the weights, and all read everybody's.

After a step's gradients are summed, each worker applies the optimizer to its slice, a run of units, and writes the
new weights where all workers of its host read them. When all have, the update has committed. It is an act of its own:
the sum has committed before, so whatever happens to whoever, the update is going to happen, and those who are left go
on with the units that a lost one has not done. Workers of other hosts do the same among themselves: each host has all
of the state.

While steps go on, the model's weights lie in the shared memory, and its optimizer's variables are out of date. Before
anybody may look (`show`) the model gets a copy of its own of all that; after that, what the copy has counts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from shoal.collectives.group import AbstractGroup, Result
from shoal.observe.phases import Phase
from shoal.strategies.schema import Array, Schema
from shoal.strategies.slicing import Unit, VariableSpan, cut_into_units, shares_of_units
from shoal.training.callbacks import Callbacks
from shoal.training.engine import Engine, PartShape
from shoal.training.optimizer import TrainedOptimizer
from shoal.training.run import Run
from shoal.training.sliced_state import SlicedState
from shoal.training.updates import AbstractUpdates, PartTotals


class UnitUpdates(Protocol):
    """An optimizer that updates units. The hook has it for Keras's."""

    kinds: list[int]  # how each variable is treated
    kept: list[list[Any]]  # its variables that belong to a weight: for each sort, one for each of the model's
    once: dict[str, Any]  # its other variables

    def begin(self, values: Sequence[Array]) -> None:
        """An update begins. `values`: of `once`, in its order."""

    def update(
        self,
        kind: int,
        weights: Array,
        kept: Sequence[Array],
        gradient: Array,
        new_weights: Array,
        new_kept: Sequence[Array],
    ) -> None:
        """One unit, all of its arrays of one size, from the first three to the last two."""

    def end(self) -> list[Array]:
        """What `once` has after the update, the same on all workers."""

    def forget(self) -> None:
        """The memory that was given so far is not used any more."""


class SlicedUpdates(AbstractUpdates):
    """Every worker updates its slice."""

    is_sliced = True

    def __init__(
        self,
        run: Run,
        engine: Engine,
        shape: PartShape,
        optimizer: TrainedOptimizer,
        units: UnitUpdates,
        callbacks: Callbacks,
    ) -> None:
        self._run = run
        self._engine = engine
        self._shape = shape
        self._optimizer = optimizer
        self._optimizer_units = units
        self._variables = [engine.variables.weights[i] for i in shape.gradients]
        self._spans = spans_of(shape.schema, units.kinds)
        self._units = cut_into_units(self._spans)
        self._state = SlicedState(self._units, len(units.kept))
        self._is_own = True  # whether the model's own copy is what counts
        self._own: list[list[Array]] = []  # its values, while they are brought
        self._looks = callbacks.look_after_batches()
        self._padded: dict[int, list[Array]] = {}  # by room: memory for units that must be filled up

    def open(self, epoch: int, steps: int | None, kept: int | None) -> None:
        pass

    def apply(self, epoch: int, step: int, part: int, totals: PartTotals) -> None:
        once = list(self._optimizer_units.once.values())
        self._optimizer_units.begin([self._engine.read(variable) for variable in once])
        what = f"fit epoch {epoch} step {step}: new weights"

        def act(group: AbstractGroup) -> Result:
            if self._state.open(group):
                self._optimizer_units.forget()
            begun = time.perf_counter()
            speeds = totals.balance.speeds(group.members)
            here = shares_of_units(self._units, [speeds[rank] for rank in group.neighbours])
            for number in here[group.neighbours.index(group.rank)]:
                if not self._state.has_had_update(number):
                    self._update(number, totals.summed)
            self.seconds = time.perf_counter() - begun
            self._run.record(Phase.EXCHANGING)
            group.gather(what, b"")
            return Result([], [])

        if self._is_own:
            sorts = (self._variables, *self._optimizer_units.kept)
            self._own = [[self._engine.read(v).reshape(-1) for v in variables] for variables in sorts]
        self._run.worker_group.commit(act)
        self._own = []
        self._state.commit()
        self._is_own = False
        weights = self._state.weights()
        shaped = [weights[s.start : s.stop].reshape(v.shape) for s, v in zip(self._spans, self._variables, strict=True)]
        self._engine.adopt(self._variables, shaped)
        self._engine.write(once, self._shaped(once, self._optimizer_units.end()))
        changed = [self._engine.variables.weights[i] for i in self._shape.changed]
        self._engine.write(changed, self._shaped(changed, totals.states))
        if self._looks:
            self.show()

    def _update(self, number: int, summed: Array) -> None:
        unit, state = self._units[number], self._state
        weights, new = state.weights()[unit.start : unit.stop], state.new_weights()[unit.start : unit.stop]
        kept = state.kept(number)
        if self._is_own:
            for sort, place in enumerate([weights, *kept]):
                self._bring(unit, self._own[sort], place)
        gradient = summed[unit.start : unit.stop]
        if unit.size == unit.room:
            self._optimizer_units.update(unit.kind, weights, kept, gradient, new, state.next_kept(number))
        else:
            padded = self._padded.setdefault(unit.room, [_line_up(unit.room) for _ in range(3)])
            for place, value in zip(padded, (weights, gradient), strict=False):
                place[: unit.size], place[unit.size :] = value, 0.0
            updated = padded[2]
            self._optimizer_units.update(unit.kind, padded[0], kept, padded[1], updated, state.next_kept(number))
            new[:] = updated[: unit.size]
        state.updated(number)

    def _bring(self, unit: Unit, values: Sequence[Array], into: Array) -> None:
        """What the model's own copy has for a unit."""
        for span, value in zip(self._spans, values, strict=True):
            low, high = max(span.start, unit.start), min(span.stop, unit.stop)
            if low < high:
                into[low - unit.start : high - unit.start] = value[low - span.start : high - span.start]

    def show(self) -> None:
        if self._is_own:
            return
        whole = [
            self._state.weights(),
            *(np.empty(self._units[-1].stop, np.float32) for _ in self._optimizer_units.kept),
        ]
        for number, unit in enumerate(self._units):
            for place, value in zip(whole[1:], self._state.kept(number), strict=True):
                place[unit.start : unit.stop] = value[: unit.size]
        for variables, values in zip((self._variables, *self._optimizer_units.kept), whole, strict=True):
            parts = [values[span.start : span.stop] for span in self._spans]
            self._engine.write(variables, self._shaped(variables, parts))
        self._is_own = True

    def watch(self) -> None:
        self.show()

    def took(self) -> None:
        self._is_own = True

    def finish(self, is_trained: bool) -> None:
        self.show()
        if is_trained:
            self._optimizer.finish()

    def close(self) -> None:
        self.show()
        self._optimizer_units.forget()
        self._state.close()

    @staticmethod
    def _shaped(variables: Sequence[Any], values: Sequence[Array]) -> list[Array]:
        return [value.reshape(tuple(variable.shape)) for variable, value in zip(variables, values, strict=True)]


def spans_of(schema: Schema, kinds: Sequence[int]) -> list[VariableSpan]:
    """Where the gradients lie in the exchange's vector of float32."""
    return [VariableSpan(start, stop, kind) for (_, start, stop), kind in zip(schema.places, kinds, strict=False)]


def _line_up(size: int) -> Array:
    """Memory on a cache line."""
    room = np.zeros(size + 16, np.float32)
    start = (-room.ctypes.data % 64) // 4
    return room[start : start + size]

"""The replicas that a worker hosts in a round, each with its own weights, states and optimizers.

The model has room for one of them. A worker with several runs each over some steps, as many as their rows fit into
memory, before it goes to the next: what belongs to a replica is taken out of the model, and put back later. Where the
steps are cut does not matter to any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.collectives.tree import Node
from shoal.strategies.partial_sums import PartialSums
from shoal.strategies.schema import Array, Combine
from shoal.training.counted import counted_piece
from shoal.training.engine import Engine, PartShape, StepShape, Variables
from shoal.training.logs import Logs
from shoal.training.replica_states import ReplicaStates
from shoal.training.run import Run
from shoal.training.seeds import Seeds


def round_shape(variables: Variables, shape: StepShape, moved: bool = True) -> PartShape:
    """What a replica gives out after a round: how far its weights have moved (as gradients), its states, what was added
    to the metrics in all its steps, and the last step's logs that are no metric. Without the first, if not `moved`.
    """
    trainable = len(variables.trainable)
    touched = {i for part in shape.parts for i in (*part.gradients, *part.changed)} | set(shape.derived)
    moves = [(i, _type_of_move(variables.weights[i])) for i in sorted(touched) if i < trainable]
    metrics: list[int] = []
    averaged: list[int] = []
    extras: list[tuple[str, tuple[int, ...]]] = []
    for part in shape.parts:
        entries = part.schema.entries[len(part.gradients) + len(part.changed) :]
        metrics += part.metrics
        averaged += [i for i, entry in zip(part.metrics, entries, strict=False) if entry.combine is Combine.MEAN]
        extras += zip(part.extras, (entry.shape for entry in entries[len(part.metrics) :]), strict=True)
    states = [i for i in sorted(touched) if i >= trainable]
    return PartShape(variables, moves if moved else [], states, sorted(metrics), extras, averaged=averaged)


def fragment_shape(variables: Variables, whole: PartShape, run: range) -> PartShape:
    """Only how far some of the moved weights of a round's shape have moved."""
    moves = [(whole.gradients[place], whole.schema.entries[place].dtype) for place in run]
    return PartShape(variables, moves, [], [], [])


def _type_of_move(variable: Any) -> str:
    return "float64" if str(variable.dtype) == "float64" else "float32"


class InnerSteps:
    """One replica's steps, on whatever the model holds: no other worker has a part in them."""

    def __init__(self, run: Run, engine: Engine, shape: StepShape) -> None:
        self._run = run
        self._engine = engine
        self._shape = shape
        self._sums = [PartialSums(part.schema) for part in shape.parts]
        # Two take turns: an update may still read one. They stay where they are, since backends keep hold of them.
        self._turns = [
            [part.schema.layout.vector(part.schema.layout.memory()) for _ in range(2)] for part in shape.parts
        ]

    def take(self, piece: int, batch: Any, rows: int) -> tuple[dict[int, Array], Logs]:
        """One step, on a piece. What it has added to the metrics, by their places, and logs that are none."""
        self._engine.settle()
        counted: dict[int, Array] = {}
        logs: Logs = {}
        for number, part in enumerate(self._shape.parts):
            arrays = counted_piece(self._run, self._engine, number, batch, piece, 1.0, rows)
            self._turns[number].reverse()
            vector = self._turns[number][0]
            self._sums[number].fill(vector, Node(0, 1), lambda _, arrays=arrays: (arrays, 1.0))  # type: ignore[misc]
            gradients, states, metrics, extras = part.split(part.schema.views(vector))
            counted |= zip(part.metrics, (np.array(metric) for metric in metrics), strict=True)
            logs |= {name: np.array(value) for name, value in extras.items()}
            self._engine.apply(number, gradients, states)
        return counted, logs


class RoundStart(NamedTuple):
    """Where all replicas begin a round."""

    weights: list[Array]  # copies, in the order of what a round may change
    optimizers: list[Array]  # for replicas that have no state of their own yet
    seeds: Seeds


class _Outside(NamedTuple):
    """What belongs to a replica that is not in the model."""

    weights: list[Array]
    optimizers: list[Array]


class HostedReplicas:
    """Those of one worker, in one try of a round."""

    def __init__(
        self,
        engine: Engine,
        steps: InnerSteps,
        shape: PartShape,
        states: ReplicaStates,
        start: RoundStart,
        begin: Callable[[int], list[Array]] | None = None,
    ) -> None:
        """`shape`: of what a replica gives out after the round. `begin`: the moved weights with which each begins;
        None: those that all have.
        """
        self._begin = begin
        self._engine = engine
        self._steps = steps
        self._shape = shape
        self._states = states
        self._start = start
        self._variables = [engine.variables.weights[i] for i in (*shape.gradients, *shape.changed)]
        self._inside: int | None = None  # the replica that the model holds
        self._outside: dict[int, _Outside] = {}
        self._counted: dict[int, dict[int, Array]] = {}
        self._logs: dict[int, Logs] = {}

    def step(self, replica: int, number: int, piece: int, batch: Any, rows: int) -> None:
        """A step of the replica, on a piece of batch `number` of the round, whose random numbers it draws."""
        self._enter(replica)
        self._engine.seeds = self._start.seeds.after(number)
        counted, logs = self._steps.take(piece, batch, rows)
        total = self._counted.setdefault(replica, {})
        for place, change in counted.items():
            total[place] = total[place] + change if place in total else change
        self._logs[replica] = logs

    def result(self, replica: int) -> list[Array]:
        """What the replica gives out after its last step, in schema order."""
        weights = self._outside_of(replica).weights
        count, shape = len(self._shape.gradients), self._shape
        entries = shape.schema.entries
        pairs = zip(self._start.weights[:count], weights[:count], entries[:count], strict=True)
        moves = [np.subtract(begun, ended, dtype=np.dtype(entry.dtype)) for begun, ended, entry in pairs]
        counted, logs = self._counted.get(replica, {}), self._logs.get(replica, {})
        rest = entries[count + len(shape.changed) :]
        found = [counted.get(place) for place in shape.metrics] + [logs.get(name) for name in shape.extras]
        # A replica without a row in this round has counted nothing.
        blank = [
            np.zeros(entry.shape, entry.dtype) if one is None else one for one, entry in zip(found, rest, strict=True)
        ]
        return [*moves, *weights[count:], *blank]

    def keep(self, replica: int) -> None:
        """Leaves what the next round needs of it where others find it."""
        outside = self._outside_of(replica)
        self._states.write(replica, outside.optimizers, outside.weights)

    def _enter(self, replica: int) -> None:
        if self._inside == replica:
            return
        self._leave()
        outside = self._outside.pop(replica, None) or self._begun(replica)
        self._engine.write(self._variables, outside.weights)
        self._states.show(outside.optimizers)
        self._inside = replica

    def _leave(self) -> None:
        """Takes what the model holds out of it."""
        if self._inside is not None:
            self._outside[self._inside] = _Outside(
                [np.array(self._engine.read(variable)) for variable in self._variables],
                [np.array(value) for value in self._states.read()],
            )
            self._inside = None

    def _begun(self, replica: int) -> _Outside:
        kept = self._states.of(replica)
        weights = self._start.weights
        if self._begin is not None:
            weights = [*self._begin(replica), *weights[len(self._shape.gradients) :]]
        return _Outside(weights, self._start.optimizers if kept is None else kept)

    def _outside_of(self, replica: int) -> _Outside:
        """Of a replica that does not go on; as it began, if it never has."""
        if self._inside == replica:
            self._leave()
        if replica not in self._outside:
            self._outside[replica] = self._begun(replica)
        return self._outside[replica]

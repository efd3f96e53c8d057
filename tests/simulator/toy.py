"""A model of a few whole numbers, for the real training loop: whatever is lost or done twice changes all of them.

What Keras and a backend would do is done by `ToyEngine`: it hashes where they differentiate. `Reference` trains the
same on one machine, without any of Shoal's loop, and so knows every number that a run must come to.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal.data.order import permutation, piece_bounds
from shoal.errors import Diverged
from shoal.store.decisions.shards import Parameter
from shoal.strategies.schema import Array
from shoal.training.engine import Engine, PartShape, StepShape, Variables
from shoal.training.logs import Logs
from shoal.training.seeds import Seeds

from .plan import Plan

EPOCHS = {"first": 2, "second": 1}
SAMPLES, BATCH = 40, 16  # the last batch is smaller than the others
STEPS = -(-SAMPLES // BATCH)
LOGS = ("loss", "samples", "norm")
GENERATOR = (11, 0)  # the seed and the counter of the model's random numbers, before the first fit

Step = tuple[str, int, int, int]  # fit, epoch, step of the epoch, weights after it


# The numbers ------------------------------------------------------------------------------------------


def gradient(weights: int, moving: int, part: int, chance: Sequence[int], samples: Sequence[int]) -> int:
    return hash((weights, moving, part, *chance, *samples)) % 2**31


def moved(weights: int, samples: Sequence[int]) -> int:
    """What the model assigns itself, as a moving average."""
    return hash((weights, 7, *samples)) % 2**31


def loss(weights: int, samples: Sequence[int]) -> int:
    return hash((weights, 5, *samples)) % 1000


def norm(weights: int, samples: Sequence[int]) -> float:
    """A log that is no metric: its mean over the pieces counts. Their weights are eighths, or finer: sums are exact."""
    return float(hash((weights, 3, *samples)) % 1024)


def updated(weights: int, momentum: int, total: int) -> tuple[int, int]:
    momentum = (momentum * 3 + total) % 2**61
    return (weights * 6364136223846793005 + momentum) % 2**61, momentum


def tested(weights: int, name: str, piece: int) -> int:
    return hash((weights, zlib.crc32(name.encode()), piece)) % 2**31


class Reference:
    """The fits of a script, on one machine."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.steps: list[Step] = []
        self.logs: dict[tuple[str, int, int], Logs] = {}  # by fit, epoch and step
        self.returned: dict[str, list[Any]] = {}  # by fit
        self.samples = 0
        self.at_start: dict[tuple[str, int], Any] = {}  # weights, of epochs that begin with others than the last step's
        self.weights, self.momentum, self.moving = 1, 0, 0
        self._generator = [np.array(GENERATOR)]

    def fit(self, name: str, seed: int) -> None:
        seeds, calls, history, stopped = Seeds(seed, self._generator), 0, [], False
        for epoch in range(EPOCHS[name]):
            order = permutation(seed, epoch, SAMPLES)
            losses = seen = 0
            for step in range(STEPS):
                batch = order[step * BATCH : (step + 1) * BATCH].tolist()
                pieces = [batch[low:high] for low, high in self._bounds(len(batch))]
                losses += sum(loss(self.weights, piece) for piece in pieces)
                seen += len(batch)
                mean = self._step(seeds, pieces, len(batch))
                seeds = seeds.after(1)
                logs = {"loss": losses / seen, "samples": float(seen), "norm": mean}
                self.steps.append((name, epoch, step, self.weights))
                self.logs[name, epoch, step] = logs
                self.samples += len(batch)
                # Callbacks hear of every so many steps, counted from the epoch's start, and of its last.
                if (step + 1) % self.plan.executes and step + 1 < STEPS:
                    continue
                calls += 1
                if stopped := stops(self.plan, name, epoch, step):
                    break
            if self.plan.validates:
                logs = logs | {"val_total": self.evaluated(f"{name} epoch {epoch}: validation")}
            history.append([epoch, logs])
            if stopped:
                break
        self._generator = seeds.states()
        self.returned[name] = [self.weights, calls, history]

    def evaluated(self, name: str) -> int:
        return sum(tested(self.weights, name, piece) for piece in range(self.plan.pieces))

    def _step(self, seeds: Seeds, pieces: Sequence[Sequence[int]], size: int) -> float:
        chances = [seeds.of_piece(piece)[0].tolist() for piece in range(len(pieces))]
        for part in range(self.plan.parts):
            given = zip(chances, pieces, strict=True)
            total = sum(gradient(self.weights, self.moving, part, chance, piece) for chance, piece in given)
            if part == 0:
                self.moving = moved(self.weights, pieces[0])
            if part == self.plan.parts - 1:
                mean = sum(norm(self.weights, piece) * len(piece) / size for piece in pieces)
            self.weights, self.momentum = updated(self.weights, self.momentum, total)
        return mean

    def _bounds(self, size: int) -> list[tuple[int, int]]:
        bounds = piece_bounds(size, self.plan.pieces)
        return list(itertools.pairwise(bounds))


def stops(plan: Plan, name: str, epoch: int, step: int) -> bool:
    """Whether a callback that hears of this step stops the fit."""
    return name == "first" and plan.stop_at is not None and epoch * STEPS + step + 1 >= plan.stop_at


# The model --------------------------------------------------------------------------------------------


class ToyVariable:
    """What a Keras variable is to Shoal."""

    def __init__(self, path: str, values: Sequence[int]) -> None:
        self.path = path
        self.value = np.array(values, np.int64)
        self.shape, self.dtype = self.value.shape, "int64"


class ToyModel:
    """A `Trainee`."""

    def __init__(self, steps_per_execution: int) -> None:
        self.stop_training = False
        self.steps_per_execution = steps_per_execution

    def reset_metrics(self) -> None:
        """Its metrics are the engine's."""


class ToyEngine(Engine):
    """Hashes samples where others differentiate. `work` takes the time that a piece takes."""

    loss_scale = None
    is_outdated = False
    dirties_seeds = False

    def __init__(self, plan: Plan, number: int, work: Callable[[], None]) -> None:
        """`number`: the worker's, to tell who has computed a piece."""
        self.pieces_last = plan.pieces_last
        self._plan = plan
        self._number = number
        self._work = work
        self._given: list[Array] = []  # the last piece's arrays
        # Beside the weights, two gradients that nothing applies: how often each piece was counted, and by whom.
        none = [0] * plan.pieces
        self.weights = ToyVariable("weights", [1])
        self.moving = ToyVariable("moving", [0])
        self.momentum, self.iterations = ToyVariable("momentum", [0]), ToyVariable("iterations", [0])
        self.variables = Variables(
            optimizers=[],
            trainable=[self.weights, ToyVariable("counted", none), ToyVariable("who", none)],
            states=[self.moving],
            seeds=[ToyVariable("seed generator", GENERATOR)],
            metrics=[ToyVariable("loss", [0]), ToyVariable("samples", [0])],
            optimizer=[self.iterations, self.momentum],
        )
        self.seeds = Seeds(0, [])

    # A step -------------------------------------------------------------------------------------------

    def begin(self, seed: int) -> None:
        self.seeds = Seeds(seed, [variable.value for variable in self.variables.seeds])

    def batch(self, spec: Any, rows: Any) -> list[int]:
        found: list[int] = rows[0].tolist()
        return found

    def trace(self, batch: Any) -> StepShape:
        return StepShape(tuple(map(self._part_shape, range(self._plan.parts))), LOGS)

    def _part_shape(self, part: int) -> PartShape:
        """The loss comes with the first part, the rest with the last."""
        first, last = part == 0, part == self._plan.parts - 1
        gradients = [(index, "int64") for index in range(3)]
        metrics = [place for place, comes in enumerate((first, last)) if comes]
        extras = [("norm", ())] if last else []
        return PartShape(self.variables, gradients, [3] if first else [], metrics, extras, weighted=True)

    def rehearse(self, batch: Any, applies: bool = True) -> None:
        """There is nothing to compile."""

    def piece(self, part: int, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        self._work()
        if not self.pieces_last:
            for array in self._given:
                array.fill(-1)  # they were valid until now
        weights, moving = int(self.weights.value[0]), int(self.moving.value[0])
        counted, who = np.zeros(self._plan.pieces, np.int64), np.zeros(self._plan.pieces, np.int64)
        counted[piece], who[piece] = 1, 1 + self._number
        chance = self.seeds.of_piece(piece)[0].tolist()
        given = [np.array([gradient(weights, moving, part, chance, batch)]), counted, who]
        if part == 0:
            given += [np.array([moved(weights, batch)]), np.array([loss(weights, batch)])]
        if part == self._plan.parts - 1:
            given += [np.array([len(batch)]), np.array(norm(weights, batch))]
        self._given = given
        return given

    def apply(self, part: int, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        total = int(gradients[0][0])
        if states:
            self.moving.value[0] = states[0][0]
        weights, momentum = updated(int(self.weights.value[0]), int(self.momentum.value[0]), total)
        self.weights.value[0], self.momentum.value[0] = weights, momentum
        self.iterations.value[0] += 1

    def settle(self) -> None:
        """`apply` has read its totals when it returns."""

    def release(self) -> None:
        """It holds no totals."""

    def put_seeds_back(self) -> None:
        self.write(self.variables.seeds, self.seeds.states())

    # What a fit has changed ---------------------------------------------------------------------------

    def state(self) -> list[Array]:
        variables = self.variables
        listed = (*variables.trainable, *variables.states, *variables.optimizer, *variables.metrics)
        return [*(variable.value for variable in listed), self.seeds.rows()]

    def set_state(self, arrays: Sequence[Array]) -> None:
        variables = self.variables
        listed = (*variables.trainable, *variables.states, *variables.optimizer, *variables.metrics)
        if len(arrays) != len(listed) + 1:
            raise Diverged(f"{len(arrays)} arrays for {len(listed)} variables")
        self.write(listed, arrays[:-1])
        self.seeds = Seeds.of_rows(arrays[-1])

    def progress(self) -> list[Array]:
        return [*(variable.value for variable in self.variables.metrics), self.seeds.rows()]

    def set_progress(self, arrays: Sequence[Array]) -> None:
        self.write(self.variables.metrics, arrays[:-1])
        self.seeds = Seeds.of_rows(arrays[-1])

    def read(self, variable: Any) -> Array:
        value: Array = variable.value
        return value

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.value[...] = value

    def adopt(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        self.write(variables, values)

    def token(self, variable: Any) -> Any:
        return variable.value.copy()

    def differs(self, variable: Any, token: Any) -> bool:
        return not np.array_equal(variable.value, token)

    # The metrics of an epoch --------------------------------------------------------------------------

    def load_metrics(self) -> None:
        """They are where they are."""

    def reset_metrics(self) -> None:
        for variable in self.variables.metrics:
            variable.value[...] = 0

    def add_metrics(self, changes: Sequence[Array], places: Sequence[int] | None = None) -> None:
        metrics = self.variables.metrics
        for place, change in zip(range(len(metrics)) if places is None else places, changes, strict=True):
            metrics[place].value += change

    def metric_changes(self) -> list[Array]:
        return [variable.value for variable in self.variables.metrics]

    def metric_results(self) -> Logs:
        losses, seen = (int(variable.value[0]) for variable in self.variables.metrics)
        return {"loss": losses / max(1, seen), "samples": seen}


class PacedEngine(ToyEngine):
    """Of a model with one variable per shard, trained by whole batches. `give` hears what was computed from what."""

    def __init__(
        self, plan: Plan, number: int, work: Callable[[], None], give: Callable[[int, int, int], None]
    ) -> None:
        super().__init__(plan, number, work)
        self._give = give
        before = self.variables
        self.shards = [ToyVariable(f"weights {shard}", [1 + shard]) for shard in range(plan.shards)]
        self.variables = Variables(
            optimizers=[],
            trainable=self.shards,
            states=[self.moving],
            seeds=before.seeds,
            metrics=before.metrics,
            optimizer=before.optimizer,
        )

    def trace(self, batch: Any) -> StepShape:
        gradients = [(index, "int64") for index in range(self._plan.shards)]
        part = PartShape(self.variables, gradients, [self._plan.shards], [0, 1], [("norm", ())], weighted=True)
        return StepShape((part,), LOGS)

    def piece(self, part: int, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        self._work()
        chance, given = self.seeds.of_piece(piece)[0].tolist(), []
        for shard, variable in enumerate(self.shards):
            weights = int(variable.value[0])
            computed = gradient(weights, shard, self._number, chance, batch)
            self._give(shard, computed, weights)
            given.append(np.array([computed]))
        given += [np.array([moved(0, batch)]), np.array([loss(0, batch)]), np.array([len(batch)]), np.array(1.0)]
        return given


class ToyOptimizer:
    """A `TrainedOptimizer` that this worker has whole."""

    scales_loss = keeps_averages = False
    number_of_loss_scale = None

    def __init__(self, engine: ToyEngine) -> None:
        self.own = engine.momentum  # what stands for the optimizer itself
        self.count = engine.iterations
        self.finished = 0

    def rate(self) -> float | None:
        return None

    def count_updates(self, updates: int) -> None:
        self.count.value[0] += updates

    def remember_loss_scale(self, scale: float) -> None:
        raise AssertionError("it has none")

    def finish(self) -> None:
        self.finished += 1

    def parameters(self, variables: Sequence[Any]) -> list[Parameter]:
        return [Parameter(variable.path, variable.dtype, variable.shape) for variable in variables]

    def refuse_unless_row_wise(self) -> None:
        raise AssertionError("nothing is on servers")

    def known(self, variables: Variables) -> dict[int, Any]:
        return dict(enumerate(variables.optimizer))

    def rates(self) -> list[Any]:
        return []

    def whole(self, trainable: Sequence[Any]) -> list[Any] | None:
        return None


class NoTables:
    """The `Tables` of a model that has none."""

    layers: Sequence[Any] = ()
    are_shown = False

    def __bool__(self) -> bool:
        return False

    def open(self, shards: Any, client: Any) -> None:
        """There is nothing to look at."""

    def close(self) -> None:
        """Nor is there now."""

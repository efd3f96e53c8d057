"""A model of a few whole numbers that is cut into stages, for the real training in stages.

Each stage has a weight, a moving state and, in its optimizer, a momentum; hashes go forward and back. From the first
stage something goes straight to the last. What a worker does not hold is really gone: its variables have no value.
`StagedReference` trains the same on one machine, and knows every number of every stage after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.collectives.abstract import AbstractGroup, Result
from shoal.data.order import permutation
from shoal.errors import Diverged, StageLost
from shoal.strategies.schema import Array
from shoal.strategies.stages import Stage
from shoal.training.engine import PartShape, StepShape, Variables
from shoal.training.logs import Logs
from shoal.training.pipelined import PipelinedTraining
from shoal.training.seeds import Seeds
from shoal.training.stage_engine import AbstractStageEngine, AbstractStages

from .plan import Plan
from .toy import BATCH, EPOCHS, SAMPLES, STEPS, Reference, ToyEngine, ToyVariable, loss, moved, stops, updated

if TYPE_CHECKING:
    from .script import Script

BIG = 2**31


def passed(before: Sequence[int], weights: int, moving: int, chance: Sequence[int], samples: Sequence[int]) -> int:
    """What a stage makes of a piece."""
    return hash((*before, weights, moving, *chance, *samples)) % BIG


def back(behind: int, before: Sequence[int], weights: int, salt: int) -> int:
    """A gradient, from the one of what the stage has made: of its weight, or of what came from an earlier stage."""
    return hash((behind, *before, weights, salt)) % BIG


def sources(stage: int, stages: int) -> list[int]:
    """From which stages it gets something."""
    skips = [0] if stage == stages - 1 and stage > 1 else []
    return [*skips, stage - 1] if stage else []


def digest(weights: Sequence[int]) -> int:
    return hash(tuple(weights)) % 2**61


class StagedReference(Reference):
    """The fits of a script, on one machine."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        count = plan.stages
        self.each = [1 + stage for stage in range(count)]
        self.momenta, self.movings = [0] * count, [0] * count
        self.after: dict[tuple[str, int, int], list[int]] = {}  # the stages' weights after each step
        self.weights = digest(self.each)

    def fit(self, name: str, seed: int) -> None:
        if self.plan.lean:
            self.momenta = [0] * self.plan.stages  # the script compiles again
        seeds, calls, history, stopped = Seeds(seed, self._generator), 0, [], False
        for epoch in range(EPOCHS[name]):
            order = permutation(seed, epoch, SAMPLES)
            losses = seen = 0
            for step in range(STEPS):
                batch = order[step * BATCH : (step + 1) * BATCH].tolist()
                losses += self._pass(seeds, [batch[low:high] for low, high in self._bounds(len(batch))])
                seen += len(batch)
                seeds = seeds.after(1)
                logs: Logs = {"loss": losses / seen, "samples": float(seen)}
                self.weights = digest(self.each)
                self.after[name, epoch, step] = list(self.each)
                self.steps.append((name, epoch, step, self.weights))
                self.logs[name, epoch, step] = logs
                self.samples += len(batch)
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

    def _pass(self, seeds: Seeds, pieces: Sequence[Sequence[int]]) -> int:
        """One step; the losses of its pieces."""
        count, losses = self.plan.stages, 0
        totals = [0] * count
        for number, piece in enumerate(pieces):
            chance = seeds.of_piece(number)[0].tolist()
            made: list[int] = []
            for stage in range(count):
                came = [made[source] for source in sources(stage, count)]
                made.append(passed(came, self.each[stage], self.movings[stage], chance, piece))
            losses += loss(made[-1], piece)
            wanted = [0] * count
            wanted[-1] = loss(made[-1], piece)
            for stage in reversed(range(count)):
                came = [made[source] for source in sources(stage, count)]
                totals[stage] += back(wanted[stage], came, self.each[stage], -1)
                for source in sources(stage, count):
                    wanted[source] += back(wanted[stage], came, self.each[stage], source)
        for stage in range(count):
            self.movings[stage] = moved(self.each[stage], pieces[0])
            self.each[stage], self.momenta[stage] = updated(self.each[stage], self.momenta[stage], totals[stage])
        return losses


class StagedEngine(ToyEngine):
    """Of the whole model: what there is before the first step, and whenever all stages are in one place."""

    def __init__(self, plan: Plan, number: int, work: Callable[[], None]) -> None:
        super().__init__(plan, number, work)
        none, count = [0] * plan.pieces, plan.stages
        self.each = [ToyVariable(f"weights {stage}", [1 + stage]) for stage in range(count)]
        self.movings = [ToyVariable(f"moving {stage}", [0]) for stage in range(count)]
        self.momenta = [ToyVariable(f"momentum {stage}", [0]) for stage in range(count)]
        self.counts = [(ToyVariable("counted", none), ToyVariable("who", none)) for stage in range(count)]
        before = self.variables
        self.variables = Variables(
            optimizers=[],
            trainable=self.each,
            states=self.movings,
            seeds=before.seeds,
            metrics=before.metrics,
            optimizer=[self.iterations, *self.momenta],
        )

    @property
    def number(self) -> int:
        return self._number

    def work(self) -> None:
        self._work()

    def trace(self, batch: Any) -> StepShape:
        return StepShape((PartShape(self.variables, [], [], [0, 1], []),), ("loss", "samples"))

    def digest(self) -> int:
        return digest([int(variable.value[0]) for variable in self.each])

    def forget_optimizer(self) -> None:
        """As a script does that compiles again."""
        for variable in self.momenta:
            variable.value = np.zeros(1, np.int64)


class ToyStage(AbstractStageEngine):
    """One stage, hashed."""

    def __init__(self, engine: StagedEngine, stage: int, stages: int, pieces: int) -> None:
        self._engine = engine
        self._number, self._stages, self._pieces = stage, stages, pieces
        self.is_last = stage == stages - 1
        takers = tuple(taker for taker in range(stages) if stage in sources(taker, stages))
        receives = tuple((source, source) for source in sources(stage, stages))
        self.stage = Stage(stage, (stage, stage + 1), (), receives, ((stage, takers),) if takers else ())
        self.weights, self.moving = engine.each[stage], engine.movings[stage]
        self.trainable = [self.weights, *engine.counts[stage]]
        listed = Variables([], self.trainable, [self.moving], [], [], [])
        self.shape = PartShape(listed, [(place, "int64") for place in range(3)], [3], [], [], weighted=True)
        self.momentum: int | None = None  # of the stage's own optimizer; None: it is not open
        self.on_their_way: dict[int, tuple[list[int], list[int], int]] = {}

    def is_float(self, tensor: int) -> bool:
        return True

    def forward(self, piece: int, batch: Any, weight: float, received: Sequence[Array]) -> list[Array]:
        self._engine.work()
        before = [int(array[0]) for array in received[:-1]]
        chance = self._engine.seeds.of_piece(piece)[0].tolist()
        made = passed(before, int(self.weights.value[0]), int(self.moving.value[0]), chance, batch)
        self.on_their_way[piece] = (before, batch, made)
        return [] if self.is_last else [np.array([made]), received[-1]]

    def metrics(self, piece: int) -> Sequence[Array]:
        _, batch, made = self.on_their_way[piece]
        return [np.array([loss(made, batch)]), np.array([len(batch)])]

    def backward(self, piece: int, gradients: Sequence[Array]) -> tuple[list[Array], Sequence[Array]]:
        self._engine.work()
        before, batch, made = self.on_their_way.pop(piece)
        behind = loss(made, batch) if self.is_last else int(gradients[0][0])
        weights = int(self.weights.value[0])
        counted, who = np.zeros(self._pieces, np.int64), np.zeros(self._pieces, np.int64)
        counted[piece], who[piece] = 1, 1 + self._engine.number
        given = [np.array([back(behind, before, weights, -1)]), counted, who, np.array([moved(weights, batch)])]
        found = [np.array([back(behind, before, weights, source)]) for source, _ in self.stage.receives]
        return [*found, np.float32(0.0)], given

    def forget(self) -> None:
        self.on_their_way.clear()

    def apply(self, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        assert self.momentum is not None, "a stage that is not held is applied"
        self.moving.value[0] = states[0][0]
        self.weights.value[0], self.momentum = updated(int(self.weights.value[0]), self.momentum, int(gradients[0][0]))

    def put_back(self, place: int, value: Array) -> None:
        raise AssertionError("no weights are tied")

    def follow_rate(self, rate: float | None) -> None:
        """It has none."""

    # What it holds ------------------------------------------------------------------------------------

    def open(self, tensors: Mapping[str, Array] | None = None) -> None:
        if tensors is None:
            self.momentum = int(self._engine.momenta[self._number].value[0])
            return
        for variable in (self.weights, self.moving):
            if variable.path not in tensors:
                raise Diverged(variable.path)
            variable.value = np.array(tensors[variable.path])
        self.momentum = int(tensors[self._engine.momenta[self._number].path][0])

    def shut(self) -> None:
        self.forget()
        self.momentum = None

    def give(self, with_optimizer: bool, apart: bool = False) -> dict[str, Array]:
        given = {variable.path: variable.value.copy() for variable in (self.weights, self.moving)}
        if with_optimizer:
            assert self.momentum is not None, "a stage that is not held is given"
            given[self._engine.momenta[self._number].path] = np.array([self.momentum])
        return given

    def show(self, tensors: Mapping[str, Array]) -> None:
        for variable in (self.weights, self.moving, self._engine.momenta[self._number]):
            if variable.path in tensors:
                variable.value[...] = tensors[variable.path]

    def needs(self) -> set[tuple[str, int]]:
        raise AssertionError("there are no checkpoints")

    def finish(self) -> None:
        """It keeps no averages."""


class ToyStages(AbstractStages):
    """Costs differ, so that newcomers have a choice."""

    def __init__(self, engine: StagedEngine, plan: Plan) -> None:
        self._engine = engine
        self.parts = [ToyStage(engine, stage, plan.stages, plan.pieces) for stage in range(plan.stages)]
        self.engines = self.parts
        self.costs = tuple(1.0 + 0.1 * (stage % 2) for stage in range(plan.stages))
        self.fingerprint = b"stages"
        self.described = [f"layer {stage}" for stage in range(plan.stages)]

    def let_go(self, held: Collection[int]) -> None:
        for part in self.parts:
            if part.stage.number not in held:
                part.weights.value = part.moving.value = None  # type: ignore[assignment]
        for variable in self._engine.momenta:
            variable.value = None  # type: ignore[assignment]

    def make_room(self, with_optimizer: bool) -> None:
        variables = [*self._engine.each, *self._engine.movings, *(self._engine.momenta if with_optimizer else ())]
        for variable in variables:
            if variable.value is None:
                variable.value = np.array([-7])

    def shared(self) -> list[Any]:
        return [self._engine.iterations]

    def unheld(self) -> dict[str, Array]:
        return {}


class ObservedPipeline(PipelinedTraining):
    """The product's own, which tells the watcher what it has done; it does nothing else than that one."""

    def observe(self, script: Script, name: str) -> None:
        self._script, self._name = script, name
        script.pipeline = self

    def holds(self) -> tuple[int, ...]:
        """The stages of this worker, as the last commit says."""
        return self._held.placement.of(self._run.me)

    def give(self) -> Result:
        given = super().give()
        where = f"place {self._name} {self._at.epoch} {self._at.step}"
        self._script.sim.watcher.same(self._script, where, (given.values[0], given.values[2]))
        return given

    def take(self, given: Result) -> None:
        super().take(given)
        self._script.knows = True
        self._script.sim.watcher.newcomers += 1
        self._script.sim.mark("let in")

    def _act(self, group: AbstractGroup, what: str, stop: bool) -> Result:
        try:
            return super()._act(group, what, stop)
        except StageLost:
            self._script.sim.watcher.lost_a_stage(self._script)
            raise

    def _apply(self) -> None:
        for stage, totals in self._totals.items():
            counted = totals[1].tolist()
            due = [1] * self._script.plan.pieces
            self._script.sim.watcher.check(counted == due, f"stage {stage}: pieces were counted {counted} times")
        super()._apply()

    def _take_step(self, epoch: int, stop: bool = False) -> Logs | None:
        watcher, step = self._script.sim.watcher, self._at.step
        logs = super()._take_step(epoch, stop)
        if logs is not None:
            key = (self._name, epoch, step)
            due = watcher.reference.after.get(key)
            me, placement = self._script.process.name, self._held.placement
            if watcher.counts(me) and due is not None:
                for stage in placement.of(me):
                    found = int(self._script.engine.each[stage].value[0])
                    watcher.check(
                        found == due[stage], f"{me} has {found} in stage {stage} after {key}, not {due[stage]}"
                    )
            watcher.same(self._script, f"placement after {key}", (placement.computes, placement.keeps))
            watcher.committed_by(self._script, (*key, digest(due) if due else 0), tuple(placement.computes), logs)
        return logs

"""The toy model of toy.py for replicas that train by themselves: its weights move by whole numbers, and means over 2, 4
or 8 replicas are exact. So are the sums, in whatever order.

What a replica's optimizer keeps is the same for all replicas that have taken as many steps: workers of the simulator
share no memory, and where the last two that had a replica's state are lost, another's stands in for it. Unless the plan
says that they are unlike: then no two that follow each other may be lost at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.data.order import permutation, piece_bounds
from shoal.strategies.inner_counts import counts_of, dealt_pieces
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape
from shoal.training.seeds import Seeds

from .plan import Plan
from .staged import StagedReference
from .toy import BATCH, EPOCHS, SAMPLES, STEPS, Reference, ToyEngine, ToyVariable, loss, moved, norm, stops


def gradient(weights: float, moving: int, part: int, chance: Sequence[int], samples: Sequence[int]) -> int:
    return hash((weights, moving, part, *chance, *samples)) % 256


def updated(weights: float, momentum: int, total: int, unlike: bool) -> tuple[float, int]:
    momentum = (momentum * 3 + (total if unlike else 1)) % 1000
    return weights - (total * (1 + momentum) % 509), momentum


def outer_updated(weights: float, rounds: int, move: float) -> tuple[float, int]:
    return weights - move - rounds, rounds + 1


def uneven_counts(total: int, replicas: int, steps: int) -> tuple[int, ...]:
    """What each replica takes of the round that begins after `total` steps: all that there are, at least one each."""
    counts, spare = [1] * replicas, replicas * (steps - 1)
    for turn in range(spare):
        counts[(3 * total + turn // 3) % replicas] += 1
    return tuple(counts)


class _Replica(NamedTuple):
    weights: float
    moving: int
    momentum: int


class LocalReference(Reference):
    """The fits of a script, with all replicas on one machine."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._momenta = [0] * plan.pieces
        self._rounds = 0
        self._last = 0.0  # the norm of the last step
        self.weights: Any = 1.0

    def fit(self, name: str, seed: int) -> None:
        seeds, calls, history, stopped = Seeds(seed, self._generator), 0, [], False
        self._momenta = [self._momenta[0]] * self.plan.pieces  # a fit begins with what the chief's optimizer has
        total = 0
        for epoch in range(EPOCHS[name]):
            order = permutation(seed, epoch, SAMPLES)
            batches = [order[start : start + BATCH].tolist() for start in range(0, SAMPLES, BATCH)]
            step = losses = seen = 0
            while step < STEPS and not stopped:
                count = min(self.plan.every, STEPS - step)
                losses += self._round(seeds, batches[step : step + count], self._counts(total, count))
                seeds, total = seeds.after(count), total + count
                seen += sum(map(len, batches[step : step + count]))
                logs = {"loss": losses / seen, "samples": float(seen), "norm": self._last}
                for done in range(step, step + count):
                    self.steps.append((name, epoch, done, self.weights))
                    self.logs[name, epoch, done] = logs
                step += count
                calls += 1
                stopped = stops(self.plan, name, epoch, step - 1)
            self.samples += seen
            if self.plan.validates:
                logs = logs | {"val_total": self.evaluated(f"{name} epoch {epoch}: validation")}
            history.append([epoch, logs])
            if stopped:
                break
        self._generator = seeds.states()
        self.returned[name] = [self.weights, calls, history]

    def _counts(self, total: int, steps: int) -> tuple[int, ...]:
        """Nothing is known of the first round; the last of an epoch may be shorter."""
        replicas = self.plan.pieces
        if not self.plan.uneven or total == 0:
            return (steps,) * replicas
        return counts_of(uneven_counts(total, replicas, self.plan.every), replicas, steps)

    def _round(self, seeds: Seeds, batches: Sequence[Sequence[int]], counts: tuple[int, ...]) -> int:
        """The losses of a round. All replicas begin with the same weights."""
        replicas = [_Replica(self.weights, self.moving, momentum) for momentum in self._momenta]
        losses, norms = 0, [0.0] * self.plan.pieces
        for number, (batch, runs) in enumerate(zip(batches, dealt_pieces(counts), strict=True)):
            takers = [place for place, run in enumerate(itertools.pairwise(runs)) for _ in range(*run)]
            for piece, ((low, high), place) in enumerate(zip(self._bounds(len(batch)), takers, strict=True)):
                chance = seeds.after(number).of_piece(piece)[0].tolist()
                replicas[place], lost, norms[place] = self._inner(replicas[place], chance, batch[low:high])
                losses += lost
        self._last = sum(found / self.plan.pieces for found in norms)
        move = sum((self.weights - replica.weights) / self.plan.pieces for replica in replicas)
        self.weights, self._rounds = outer_updated(self.weights, self._rounds, move)
        self.moving, self._momenta = replicas[0].moving, [replica.momentum for replica in replicas]
        return losses

    def _inner(self, replica: _Replica, chance: Sequence[int], samples: Sequence[int]) -> tuple[_Replica, int, float]:
        weights, moving, momentum = replica
        lost = loss(int(weights), samples)
        for part in range(self.plan.parts):
            total = gradient(weights, moving, part, chance, samples)
            if part == 0:
                moving = moved(int(weights), samples)
            if part == self.plan.parts - 1:
                found = norm(int(weights), samples)
            weights, momentum = updated(weights, momentum, total, self.plan.unlike)
        return _Replica(weights, moving, momentum), lost, found

    def _bounds(self, size: int) -> list[tuple[int, int]]:
        return list(itertools.pairwise(piece_bounds(size, self.plan.pieces)))


class StreamedReference(LocalReference):
    """The same with replicas that go on with weights of their own. The weights are in the first fragment."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._own: list[float] = []  # each replica's weights, in the middle of an epoch
        self._comes_home = False  # whether the last stretch has exchanged them

    def fit(self, name: str, seed: int) -> None:
        seeds, calls, history, stopped = Seeds(seed, self._generator), 0, [], False
        stretch = self.plan.every // self.plan.streaming
        self._momenta = [self._momenta[0]] * self.plan.pieces
        for epoch in range(EPOCHS[name]):
            self.at_start[name, epoch] = self.weights
            order = permutation(seed, epoch, SAMPLES)
            batches = [order[start : start + BATCH].tolist() for start in range(0, SAMPLES, BATCH)]
            step = losses = seen = 0
            self._own, self._comes_home = [self.weights] * self.plan.pieces, False
            for number, first in enumerate(range(0, STEPS, stretch)):
                taken = batches[first : first + stretch]
                exchanges = number > 0 and (number - 1) % self.plan.streaming == 0
                losses += self._stretch(seeds, taken, exchanges)
                seeds, step = seeds.after(len(taken)), first + len(taken)
                seen += sum(map(len, taken))
                logs = {"loss": losses / seen, "samples": float(seen), "norm": self._last}
                for done in range(first, step):
                    self.steps.append((name, epoch, done, self.weights))
                    self.logs[name, epoch, done] = logs
                calls += 1
                stopped = stops(self.plan, name, epoch, step - 1)
                if stopped:
                    break
            self.weights, self._rounds = outer_updated(self.weights, self._rounds, self._move())
            self.samples += seen
            if self.plan.validates:
                logs = logs | {"val_total": self.evaluated(f"{name} epoch {epoch}: validation")}
            history.append([epoch, logs])
            if stopped:
                break
        self._generator = seeds.states()
        self.returned[name] = [self.weights, calls, history]

    def _move(self) -> float:
        """How far replicas are from the outer weights, on average. What came home before is half of each."""
        if self._comes_home:
            self._own = [(own + self.weights) / 2 for own in self._own]
        self._comes_home = False
        return sum((self.weights - own) / self.plan.pieces for own in self._own)

    def _stretch(self, seeds: Seeds, batches: Sequence[Sequence[int]], exchanges: bool) -> int:
        move = self._move()
        starts = zip(self._own, self._momenta, strict=True)
        replicas = [_Replica(own, self.moving, momentum) for own, momentum in starts]
        losses = 0
        for number, batch in enumerate(batches):
            norms = 0.0
            for place, (low, high) in enumerate(self._bounds(len(batch))):
                chance = seeds.after(number).of_piece(place)[0].tolist()
                replicas[place], lost, found = self._inner(replicas[place], chance, batch[low:high])
                losses += lost
                norms += found / self.plan.pieces
            self._last = norms
        self._own = [replica.weights for replica in replicas]
        self.moving, self._momenta = replicas[0].moving, [replica.momentum for replica in replicas]
        if exchanges:
            self.weights, self._rounds = outer_updated(self.weights, self._rounds, move)
        self._comes_home = exchanges
        return losses


class LocalToyEngine(ToyEngine):
    """Of that model. Two more weights tell how many steps each replica has taken, and who has computed them."""

    def __init__(self, plan: Plan, number: int, work: Callable[[], None]) -> None:
        super().__init__(plan, number, work)
        self._unlike = plan.unlike
        for variable in self.variables.trainable:
            variable.value, variable.dtype = variable.value.astype(np.float64), "float64"

    def _part_shape(self, part: int) -> PartShape:
        shape = super()._part_shape(part)
        gradients = [(index, "float64") for index in shape.gradients]
        extras = [(name, ()) for name in shape.extras]
        return PartShape(self.variables, gradients, shape.changed, shape.metrics, extras, weighted=True)

    def piece(self, part: int, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        given = list(super().piece(part, batch, piece, weight))
        weights, moving = float(self.weights.value[0]), int(self.moving.value[0])
        chance = self.seeds.of_piece(piece)[0].tolist()
        given[0] = np.array([float(gradient(weights, moving, part, chance, batch))])
        given[1:3] = [array.astype(np.float64) for array in given[1:3]]
        return given

    def apply(self, part: int, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        if states:
            self.moving.value[0] = states[0][0]
        total, weights = int(gradients[0][0]), float(self.weights.value[0])
        found = updated(weights, int(self.momentum.value[0]), total, self._unlike)
        self.weights.value[0], self.momentum.value[0] = found
        if part == 0:
            for variable, gradient_of in zip(self.variables.trainable[1:], gradients[1:], strict=True):
                variable.value -= gradient_of
        self.iterations.value[0] += 1


class ToyOuter:
    """An `OuterOptimizer` that counts the rounds. Only the weights are its own: the rest goes back to where it was."""

    def __init__(self, engine: ToyEngine) -> None:
        self._engine = engine
        self.rounds = ToyVariable("rounds", [0])
        self.finished = 0

    def apply(self, moves: Sequence[Array], places: range | None = None, counts: bool = True) -> None:
        if places is not None and 0 not in places:
            return
        weights, rounds = self._engine.weights.value, self.rounds.value
        weights[0], rounds[0] = outer_updated(float(weights[0]), int(rounds[0]), float(moves[0][0]))

    def state(self) -> list[Array]:
        return [self.rounds.value]

    def set_state(self, values: Sequence[Array]) -> None:
        self.rounds.value[...] = values[0]

    def named(self) -> list[Any]:
        return [("rounds", (1,))]

    def finish(self) -> None:
        self.finished += 1


def reference_of(plan: Plan) -> Reference:
    if plan.stages:
        return StagedReference(plan)
    if plan.streaming:
        return StreamedReference(plan)
    return LocalReference(plan) if plan.every else Reference(plan)

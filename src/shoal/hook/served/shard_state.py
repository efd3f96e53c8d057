"""One shard on a parameter server: its tensors, what is added up beside them, and the optimizer that updates them.

All arrays come and go flat, in the order of the shard's ranges, then of what is added; `specs` tells their types and
sizes beforehand. Beside sums that reset with the epoch lies the epoch that they are of. The weights of bfloat16
parameters are numpy arrays of ml_dtypes's bfloat16, which `shoal.collectives.arrays` puts on the wire; gradients in
half precision come as float32.

Where the loss is scaled (float16), an update brings the scale with which it was computed, and whether all of its
gradients, on all shards, are finite: what one shard sees of them does not tell. The scale of the next loss lies beside
the first shard's weights.

Replicas of a shard that apply the same updates in the same order hold the same bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from shoal.collectives.arrays import ArraySpec, specs
from shoal.errors import Diverged
from shoal.hook.backends import registry
from shoal.hook.served.shard_optimizer import count_of, hold, make_optimizer, make_scalable, needs_of
from shoal.store.decisions.shards import Needs, Parameter, Shard
from shoal.store.values.tensors import ArrayShape, Shapes
from shoal.strategies.schema import Array
from shoal.training.store_layout import NO_EPOCH, OF_SCALED, Added


class Specs(NamedTuple):
    """What a shard's arrays look like: those of `weights`, of `apply` and of `state`."""

    weights: list[ArraySpec]
    gradients: list[ArraySpec]
    state: list[ArraySpec]


def parameters_of(trainable: Sequence[Any], optimizer: Any) -> list[Parameter]:
    """The variables as parameters, in their order. Where several have the same path, all but the first get a number."""
    needs = needs_of(optimizer)
    paths = {variable.path for variable in trainable}
    parameters: dict[str, Parameter] = {}
    for variable in trainable:
        name, number = variable.path, 1
        while name in parameters or (number > 1 and name in paths):
            number += 1
            name = f"{variable.path}_{number}"
        # A constraint may look at the whole tensor, as a largest norm does.
        whole = variable.constraint is not None and needs is Needs.SLICES
        dtype = keras.backend.standardize_dtype(variable.dtype)
        parameters[name] = Parameter(name, dtype, tuple(variable.shape), Needs.WHOLE if whole else needs)
    return list(parameters.values())


class ShardState:
    """One shard's tensors and the optimizer that updates them, on the backend's own engine.

    It starts from the model's weights, from its optimizer's state and from zeros for what is added. The model stays
    as it is.
    """

    def __init__(
        self,
        shard: Shard,
        parameters: Sequence[Parameter],
        trainable: Sequence[Any],
        optimizer: Any,
        added: Sequence[Added] = (),
        tells_scale: bool = False,
        scales: bool = False,  # whether updates may come with a factor for their learning rate
        jit_compile: bool | None = None,  # as the model's; None: as Keras chooses where there is no GPU
    ) -> None:
        named = {p.name: (p, variable) for p, variable in zip(parameters, trainable, strict=True)}
        held = [hold(range, *named[range.parameter]) for range in shard.ranges]
        self.held = held
        self._variables = [variable.own for variable in held]
        self._optimizer = make_optimizer(optimizer, held)
        self.scales = scales
        self._factor = make_scalable(self._optimizer) if scales else None
        self._engine = registry.current().shard_engine(self._variables, self._optimizer, jit_compile)
        rate = getattr(self._optimizer, "learning_rate", None)
        self._rate = rate if isinstance(rate, keras.Variable) else None  # else a schedule's
        self.added = tuple(added)
        self._sums = [np.zeros(math.prod(a.shape), np.float64 if "float" in a.dtype else np.int64) for a in added]
        self._epoch = NO_EPOCH  # of the last update
        self._tells_epoch = any(a.resets for a in added)
        self._scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self._tells_scale = tells_scale and self._scaled
        weights = specs(self.weights())
        updated = [_of_update(spec) for spec in weights[: len(held) + len(added)]]
        self.specs = Specs(weights, updated + [OF_SCALED] * self._scaled, specs(self.state()))
        self._rehearse()

    @property
    def learning_rate(self) -> float | None:
        """That of the next update; None where a schedule tells it, and then it can't be set."""
        return None if self._rate is None else float(self._engine.read(self._rate)[0])

    @learning_rate.setter
    def learning_rate(self, rate: float | None) -> None:
        if self._rate is not None and rate is not None:
            value = np.full(1, rate, self._rate.dtype)
            if value != self._engine.read(self._rate):
                self._engine.write([self._rate], [value])

    def apply(self, epoch: int, arrays: Sequence[Array], scale: float = 1.0) -> None:
        """One update: gradients, then what is added. Reads the arrays in place, and no longer when it returns.

        The first update of an epoch resets what resets. To that, a late update of an epoch before adds nothing. `scale`
        scales the learning rate of this update.
        """
        _check("an update", arrays, self.specs.gradients)
        first = len(self._variables)
        second = first + len(self._sums)
        with self._rate_times(scale):
            if self._scaled:
                self._update_scaled(arrays[:first], *arrays[second])
            else:
                self._engine.update(arrays[:first])
        for added, total, change in zip(self.added, self._sums, arrays[first:second], strict=True):
            if added.resets and epoch > self._epoch:
                total[:] = 0
            if not added.resets or epoch >= self._epoch:
                total += change
        self._epoch = max(epoch, self._epoch)

    @contextlib.contextmanager
    def _rate_times(self, scale: float) -> Iterator[None]:
        if scale == 1.0 or self._factor is None:
            yield
            return
        own = np.array(self._engine.read(self._factor))
        self._engine.write([self._factor], [own * own.dtype.type(scale)])
        try:
            yield
        finally:
            self._engine.write([self._factor], [own])

    def _update_scaled(self, gradients: Sequence[Array], scale: np.float32, finite: np.float32) -> None:
        """The optimizer divides by the scale that the gradients have, which stale ones may have from before a change.

        An overflow says that its scale is too large, and no more than that: several that were computed with the same
        one halve it once. It changes nothing else.
        """
        optimizer, engine = self._optimizer, self._engine
        own = engine.read(optimizer.dynamic_scale)[0]
        if not finite:
            counter = np.zeros(1, optimizer.step_counter.dtype)
            lower = np.full(1, min(own, scale / 2), np.float32)
            engine.write([optimizer.step_counter, optimizer.dynamic_scale], [counter, lower])
        elif scale == own:
            engine.update(gradients)
        else:
            engine.write([optimizer.dynamic_scale], [np.full(1, scale)])
            growth = 1.0
            try:
                engine.update(gradients)
                growth = engine.read(optimizer.dynamic_scale)[0] / scale
            finally:
                engine.write([optimizer.dynamic_scale], [np.full(1, own * growth, np.float32)])

    def weights(self) -> list[Array]:
        """Weights and sums, where they lie if that is possible. Look at them before the next update, and let go of
        them: while they are held, some backends update into new memory.
        """
        sums = (total.astype(added.dtype, copy=False) for added, total in zip(self.added, self._sums, strict=True))
        epoch = [self._told_epoch()] if self._tells_epoch else ()
        scale = self._read([self._optimizer.dynamic_scale]) if self._tells_scale else ()
        return [*self._read(self._variables), *sums, *epoch, *scale]

    def set_weights(self, arrays: Sequence[Array]) -> None:
        """Takes over what `weights` gave, and copies it. The rest of the optimizer's state stays."""
        _check("weights", arrays, self.specs.weights)
        first = len(self._variables)
        second = first + len(self._sums)
        self._engine.write(self._variables, arrays[:first])
        self._sums = [value.astype(total.dtype) for total, value in zip(self._sums, arrays[first:second], strict=True)]
        if self._tells_epoch:
            self._epoch = int(arrays[second][0])
        if self._tells_scale:
            self._engine.write([self._optimizer.dynamic_scale], arrays[-1:])

    def assign(self, arrays: Sequence[Array]) -> None:
        """Weights, statistics and, unless it is negative, the optimizer's count. All else goes on."""
        count = len(self._variables)
        self._engine.write(self._variables, arrays[:count])
        for place, value in enumerate(arrays[count:-1]):
            self._sums[place] = value.astype(self._sums[place].dtype)
        if arrays[-1][0] >= 0:
            self._engine.write([count_of(self._optimizer)], [arrays[-1]])

    @property
    def optimizer(self) -> Any:
        """The shard's own."""
        return self._optimizer

    def read(self, variables: Sequence[Any]) -> list[Array]:
        """Values of the optimizer's variables, flat. See `weights` for how long."""
        return self._read(variables)

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Assigns flat values, which it copies, to variables of the optimizer."""
        self._engine.write(variables, values)

    def state(self) -> list[Array]:
        """Everything that the next updates depend on. See `weights` for how long."""
        optimizers = self._read(self._optimizer.variables)
        return [*self._read(self._variables), *self._sums, *optimizers, self._told_epoch()]

    def load(self, arrays: Sequence[Array]) -> None:
        """Goes to where another replica stands, as its `state` told. Diverged if that is another shard's."""
        _check("the state", arrays, self.specs.state)
        first = len(self._variables)
        second = first + len(self._sums)
        self._engine.write([*self._variables, *self._optimizer.variables], [*arrays[:first], *arrays[second:-1]])
        self._sums = [np.array(total) for total in arrays[first:second]]
        self._epoch = int(arrays[-1][0])

    def digest(self) -> int:
        """A number of 63 bits that changes when any bit of the state does. As fast as reading it once."""
        digest = hashlib.blake2b(digest_size=8)
        for array in self.state():
            data = array.view(np.uint8)
            words = data[: data.size // 8 * 8].view(np.uint64)
            digest.update(np.add.reduce(words, dtype=np.uint64).tobytes())
            digest.update(np.bitwise_xor.reduce(words, dtype=np.uint64).tobytes())
            digest.update(data[words.nbytes :].tobytes())
        return int.from_bytes(digest.digest(), "little") >> 1

    def averages(self) -> list[Array]:
        """What `weights` would give if the optimizer had put its averages in their place, if it keeps some; copies.

        Nothing is changed. Without any update there are no averages.
        """
        kept = [np.array(array) for array in self.weights()]
        if not self._engine.read(count_of(self._optimizer))[0]:
            return kept
        count = len(self._variables)
        try:
            self._engine.finalize()
            averages = [np.array(array) for array in self._read(self._variables)]
        finally:
            self._engine.write(self._variables, kept[:count])
        return [*averages, *kept[count:]]

    def _rehearse(self) -> None:
        """Compiles the update: the first one must take no longer than the others, everybody may wait for it then."""
        before = [np.array(array) for array in self.state()]
        gradients = self.specs.gradients[: len(self._variables)]
        self._engine.update([np.zeros(spec.shape, spec.dtype) for spec in gradients])
        self.load(before)

    def _told_epoch(self) -> Array:
        return np.array([self._epoch])

    def _read(self, variables: Sequence[Any]) -> list[Array]:
        return [self._engine.read(variable) for variable in variables]


def _of_update(weights: ArraySpec) -> ArraySpec:
    """How gradients of such weights come, or what is added to such a sum."""
    dtype = np.dtype(weights.dtype)
    if dtype.kind in "iu":
        return ArraySpec("<i8", weights.shape)
    return ArraySpec("<f4", weights.shape) if dtype.itemsize == 2 else weights


def _check(what: str, arrays: Sequence[Array], expected: Sequence[ArraySpec]) -> None:
    given = specs(arrays)
    if given == expected:
        return
    if len(given) != len(expected):
        raise Diverged(f"{what} for this shard has {len(given)} arrays instead of {len(expected)}")
    place = next(i for i, spec in enumerate(given) if spec != expected[i])
    raise Diverged(f"array {place} of {what} for this shard is {given[place]} instead of {expected[place]}")


class ShardTensors:
    """A shard's state, as the store asks for it."""

    rows = 0

    def __init__(self, state: ShardState, restore: Callable[[], object] | None) -> None:
        """`restore` gives the optimizer the state of the last checkpoint, if there is one."""
        self.shard = self._state = state
        self._restore = restore

    def apply(self, epoch: int, gradients: Sequence[Array], rate: float | None, scale: float) -> None:
        if rate is not None:
            self._state.learning_rate = rate
        self._state.apply(epoch, gradients, scale)

    def weights(self, asked: Sequence[Array]) -> Sequence[Array]:
        return self._state.weights()

    def averages(self) -> Sequence[Array]:
        return self._state.averages()

    def set_weights(self, weights: Sequence[Array]) -> None:
        if self._restore is not None:
            self._restore()
        self._state.set_weights(weights)

    def assign(self, assigned: Sequence[Array]) -> None:
        self._state.assign(assigned)

    def state(self) -> Sequence[Array]:
        return self._state.state()

    def state_shapes(self, rows: int) -> Shapes:
        return tuple(ArrayShape(spec.dtype, spec.shape[0]) for spec in self._state.specs.state)

    def load(self, state: Sequence[Array]) -> None:
        self._state.load(state)

    def digest(self) -> int:
        return self._state.digest()

    def listed(self, start: int) -> Sequence[Array]:
        raise AssertionError("only tables have rows to list")

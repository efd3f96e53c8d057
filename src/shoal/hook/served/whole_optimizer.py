"""A shard's optimizer state, named as in a checkpoint: as in the model's own optimizer, were it built.

Nobody builds that one, since nobody is to hold all of its state. An optimizer of the same class, built on variables of
the same names and ranks with one element each, has its variables in the same order. So a checkpoint of a training with
servers reads like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from shoal.checkpoint.addresses import Place
from shoal.checkpoint.read import load
from shoal.checkpoint.tensor_names import OPTIMIZER, Piece, TensorName
from shoal.errors import CannotDistribute
from shoal.hook import keras_private
from shoal.hook.served.shard_optimizer import HeldVariable, another_like, levels, needs_of, scope_of
from shoal.hook.served.shard_state import ShardState
from shoal.store.decisions.shards import Needs
from shoal.strategies.schema import Array
from shoal.training.engine import Variables
from shoal.training.optimizer import Named

_OF_LOSS_SCALE = ("step_counter", "dynamic_scale")  # in this order


class Slot(NamedTuple):
    """A variable of a shard's optimizer, and what it is in the model's."""

    own: Any
    number: int  # among the variables of the model's
    path: str
    shape: tuple[int, ...]  # of the whole
    part: slice | None  # of its elements that are here; None: all

    @property
    def whole(self) -> str:
        return str(TensorName(OPTIMIZER, self.number, self.path))

    @property
    def name(self) -> str:
        """In a checkpoint."""
        if self.part is None:
            return self.whole
        return Piece(self.whole, self.part.start, self.part.stop, self.shape).name


class WholeOptimizer:
    """The order and the names of the model's optimizer's variables."""

    def __init__(self, optimizer: Any, trainable: Sequence[Any]) -> None:
        """`trainable`: all variables that the optimizer would be built on."""
        self._together = needs_of(optimizer) is Needs.TOGETHER
        self._places = {id(variable): place for place, variable in enumerate(trainable)}
        self._trainable = list(trainable)
        self._like = None if self._together else _small(optimizer, trainable)

    def variables(self) -> list[Named] | None:
        """What is in a checkpoint of it; None where only the one server that has it can tell."""
        if self._like is None:
            return None
        shapes: dict[int, tuple[int, ...] | None] = {}
        for listed in _lists(self._like).values():
            for variable, slot in zip(self._trainable, listed, strict=False):
                if isinstance(slot, keras.Variable) and tuple(slot.shape):
                    same = len(slot.shape) == len(variable.shape)
                    shapes[id(slot)] = tuple(variable.shape) if same else None
        return [(v.path, shapes.get(id(v), tuple(v.shape))) for v in self._like.variables]

    def slots(self, own: Any, held: Sequence[HeldVariable]) -> list[Slot]:
        """What a shard's optimizer, built on what it holds, has of the whole."""
        return list(self._of_all(own) if self._like is None else self._of_some(own, held, self._like))

    def never_updated(self, optimizer: Any, trained: Sequence[Any]) -> dict[str, Array]:
        """The state for variables that no shard holds, because they have no gradients: as it is in the beginning."""
        others = {id(variable) for variable in trained}
        held = [
            HeldVariable(
                variable, keras.Variable(np.zeros(variable.shape), dtype=variable.dtype, name=variable.name), None
            )
            for variable in self._trainable
            if id(variable) not in others
        ]
        if not held or self._like is None:
            return {}
        own = another_like(optimizer)
        own.build([one.own for one in held])
        mine = {id(slot) for listed in _lists(own).values() for slot in listed}
        return {
            slot.name: np.asarray(keras.ops.convert_to_numpy(slot.own.value))
            for slot in self.slots(own, held)
            if id(slot.own) in mine
        }

    def _of_all(self, own: Any) -> Iterator[Slot]:
        for index, variable in enumerate(own.variables):
            yield Slot(variable, index, variable.path, tuple(variable.shape), None)

    def _of_some(self, own: Any, held: Sequence[HeldVariable], like: Any) -> Iterator[Slot]:
        index = {id(variable): place for place, variable in enumerate(like.variables)}
        for level, known in zip(levels(own), levels(like), strict=True):
            for name, mine in vars(level).items():
                if isinstance(mine, keras.Variable):
                    whole = vars(known)[name]
                    yield Slot(mine, index[id(whole)], whole.path, tuple(mine.shape), None)
        listed = _lists(like)
        for name, slots in _lists(own).items():
            for one, slot in zip(held, slots, strict=False):
                if isinstance(slot, keras.Variable):
                    whole = listed[name][self._places[id(one.model)]]
                    cut = one.part is not None and tuple(slot.shape) == tuple(one.own.shape)
                    shape = tuple(one.model.shape) if cut else tuple(slot.shape)
                    yield Slot(slot, index[id(whole)], whole.path, shape, one.part if cut else None)


def to_write(whole: WholeOptimizer, state: ShardState, is_first: bool) -> dict[str, Array]:
    """A shard's part of a checkpoint, where it lies: without the learning rate, which workers write. `is_first`: this
    shard writes what all have alike.
    """
    optimizer = state.optimizer
    workers = {id(variable) for variable in rates_of(optimizer)}
    slots = whole.slots(optimizer, state.held)
    mine = {id(slot) for listed in _lists(optimizer).values() for slot in listed}
    chosen = [slot for slot in slots if id(slot.own) not in workers and (is_first or id(slot.own) in mine)]
    values = state.read([slot.own for slot in chosen])
    return {
        slot.name: value if slot.part is not None else value.reshape(slot.shape)
        for slot, value in zip(chosen, values, strict=True)
    }


def read_into(whole: WholeOptimizer, state: ShardState, path: Place) -> None:
    """Gives a shard's optimizer its part of a checkpoint's state. By index: automatic names may differ."""
    slots = whole.slots(state.optimizer, state.held)
    wanted = {slot.number for slot in slots}
    arrays = load(path, lambda name: _number_of(name) in wanted).arrays
    found = {_number_of(name): array for name, array in arrays.items()}
    values = []
    for slot, mine in zip(slots, state.read([slot.own for slot in slots]), strict=True):
        value = found.get(slot.number)
        if value is None or value.shape != slot.shape:
            there = "is not there" if value is None else f"has the shape {value.shape} there"
            raise CannotDistribute(
                f"can't take the optimizer's state from {path}: {slot.whole} of shape {slot.shape} {there}. Resume "
                "with the script, and the arguments, that it comes from."
            )
        flat = value.reshape(-1) if slot.part is None else value.reshape(-1)[slot.part]
        values.append(flat.astype(mine.dtype))  # counters have other types on other backends
    state.write([slot.own for slot in slots], values)


def known_to_workers(variables: Variables) -> dict[int, Any]:
    """The variables that a worker's optimizers have, by their numbers: few, where servers hold the rest.

    Those come first. But one that scales the loss has two more when it is built, before those of the one inside it.
    """
    if len(variables.optimizers) != 1:
        return dict(enumerate(variables.optimizer))
    (optimizer,) = variables.optimizers
    if optimizer.built or not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return dict(enumerate(optimizer.variables))
    inner = optimizer.inner_optimizer.variables
    outer = optimizer.variables[: len(optimizer.variables) - len(inner)]
    return dict(enumerate(outer)) | dict(enumerate(inner, len(outer) + len(_OF_LOSS_SCALE)))


def number_of_loss_scale(optimizer: Any) -> int | None:
    """Among an optimizer's variables; None if it does not scale the loss."""
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return None
    built = 0 if optimizer.built else len(_OF_LOSS_SCALE)
    return len(optimizer.variables) - len(optimizer.inner_optimizer.variables) + built - 1


def rates_of(optimizer: Any) -> list[Any]:
    """The variables that workers set, and servers only follow."""
    rates = (keras_private.rate_of(level) for level in levels(optimizer))
    return [rate for rate in rates if isinstance(rate, keras.Variable)]


def _number_of(name: str) -> int | None:
    """Of an optimizer's variable, by its name in a checkpoint; None for any other."""
    told = TensorName.of(name)
    return told.number if told.kind == OPTIMIZER else None


def _small(optimizer: Any, trainable: Sequence[Any]) -> Any:
    """One like it, built on one element of each variable."""
    small = []
    for variable in trainable:
        with scope_of(variable.path):
            shape = (1,) * len(variable.shape)
            small.append(keras.Variable(np.zeros(shape), dtype=variable.dtype, name=variable.name))
    like = another_like(optimizer)
    like.build(small)
    return like


def _lists(optimizer: Any) -> dict[tuple[int, str], list[Any]]:
    """An optimizer's lists of variables, one for each that it was built on; by its level and the list's name."""
    return {
        (number, name): list(listed)
        for number, level in enumerate(levels(optimizer))
        for name, listed in keras_private.lists_in(level).items()
    }

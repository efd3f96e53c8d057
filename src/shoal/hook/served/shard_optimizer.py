"""A shard's own variables and its own optimizer, made after the model's. Nothing of the model's is changed or shared.

The variables have the names and paths of the model's: optimizers choose by them what not to decay, or what to treat in
another way. An optimizer that has trained before hands on its state, cut like the weights.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from shoal.errors import CannotDistribute
from shoal.hook import keras_private
from shoal.store.decisions.shards import Needs, Parameter, Range
from shoal.strategies.schema import Array

# As read in Keras's source. A subclass of one of these is not one of them.
_BY_ELEMENT = {
    keras.optimizers.Adadelta,
    keras.optimizers.Adagrad,
    keras.optimizers.Adam,
    keras.optimizers.Adamax,
    keras.optimizers.AdamW,
    keras.optimizers.Ftrl,
    keras.optimizers.Lion,
    keras.optimizers.Nadam,
    keras.optimizers.RMSprop,
    keras.optimizers.SGD,
}
_BY_TENSOR = {keras.optimizers.Adafactor, keras.optimizers.Lamb, keras.optimizers.Muon}


class HeldVariable(NamedTuple):
    """A variable of the model, and the shard's own in its place."""

    model: Any
    own: Any
    part: slice | None  # of its elements; None: all, in its own shape


def needs_of(optimizer: Any) -> Needs:
    """How much of the parameters this optimizer must see at once; all of them if it is not one of Keras's."""
    kind = keras_private.public_class_of(optimizer)
    if kind is keras.optimizers.LossScaleOptimizer:
        return needs_of(optimizer.inner_optimizer)  # whether all gradients are finite, a worker tells
    if kind not in _BY_ELEMENT | _BY_TENSOR or optimizer.global_clipnorm:
        return Needs.TOGETHER
    return Needs.WHOLE if kind in _BY_TENSOR or optimizer.clipnorm else Needs.SLICES


def make_scalable(optimizer: Any) -> Any:
    """The variable that scales this optimizer's learning rate: the rate itself, or a new one beside a schedule."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = keras_private.rate_of(inner)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        factor = inner.add_variable((), initializer="ones", dtype="float32", name="factor")
        keras_private.set_rate(inner, _Scaled(rate, factor))
        return factor
    return rate if isinstance(rate, keras.Variable) else None


class _Scaled(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule, and a factor that is one of the optimizer's variables."""

    def __init__(self, schedule: Any, factor: Any) -> None:
        self._schedule = schedule
        self._factor = factor

    def __call__(self, step: Any) -> Any:
        return self._schedule(step) * self._factor

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("a shard's own optimizer is never saved")


@contextlib.contextmanager
def unbuilt(optimizer: Any) -> Iterator[None]:
    """On a worker: keeps Keras from making momenta and the like, which take as much memory as the model or twice as
    much. The servers have them.
    """
    built, optimizer.built = optimizer.built, True
    try:
        yield
    finally:
        optimizer.built = built


class LossScales:
    """Of optimizers whose state is on servers: from a fit for the next one, as long as the script has the optimizer."""

    def __init__(self) -> None:
        self._by_optimizer: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()

    def of(self, optimizer: Any) -> float | None:
        """By which the next loss is to be multiplied; None if it is not scaled, or always by the same."""
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return None
        if optimizer in self._by_optimizer:
            return self._by_optimizer[optimizer]
        scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
        return float(keras.ops.convert_to_numpy(scale))

    def keep(self, optimizer: Any, scale: float) -> None:
        self._by_optimizer[optimizer] = scale


def hold(range: Range, parameter: Parameter, variable: Any) -> HeldVariable:
    """A new variable with the value that the model's has now: flat, unless the range is all of it."""
    part = None if range.stop - range.start == parameter.size else slice(range.start, range.stop)
    value = np.array(_part(_value(variable), part))  # a copy: torch would share the model's memory
    with scope_of(variable.path):
        own = keras.Variable(value, dtype=parameter.dtype, name=variable.name)
    own.constraint = variable.constraint
    return HeldVariable(variable, own, part)


def make_optimizer(optimizer: Any, held: Sequence[HeldVariable], anew: bool = False) -> Any:
    """One of the same class and configuration, built on what is held, in the state that the other has now; `anew`: as
    before its first update.
    """
    own = another_like(optimizer)
    for theirs, mine in zip(levels(optimizer), levels(own), strict=True):
        _exclude_alike(theirs, mine, held)
    own.build([variable.own for variable in held])
    if optimizer.built and not anew:
        _refuse_other_variables(optimizer, held)
        for mine, value in _states(optimizer, own, held):
            mine.assign(value)
    return own


def new_optimizer(optimizer: Any, path: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """One of the same class and configuration on one new variable of this path and shape; and the variable.

    Rows of a table are not decayed: those that nobody uses would have to be, too.
    """
    own = another_like(optimizer)
    with scope_of(path):
        variable = keras.Variable(np.zeros(shape, np.float32), name=path.rpartition("/")[2])
    own.exclude_from_weight_decay([variable])
    own.build([variable])
    return own, variable


def scope_of(path: str) -> contextlib.AbstractContextManager[Any]:
    """In which a variable gets this path, and on TensorFlow the name at which its patterns look."""
    parents, _, name = path.rpartition("/")[0].rpartition("/")
    return keras.name_scope(name, override_parent=parents) if name else contextlib.nullcontext()


def _value(variable: Any) -> Array:
    """Not every backend takes numpy's bfloat16; float32 holds each of its values."""
    value = np.asarray(keras.ops.convert_to_numpy(variable.value))
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else value


def _part(value: Array, part: slice | None) -> Array:
    return value if part is None else value.reshape(-1)[part]


def another_like(optimizer: Any) -> Any:
    """A new one, from the configuration."""
    kind = type(optimizer)
    try:
        config = optimizer.get_config()
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return kind(**config | {"inner_optimizer": another_like(optimizer.inner_optimizer)})
        rate = keras_private.rate_of(optimizer)
        if "learning_rate" in config and rate is not None and not isinstance(rate, keras.Variable):
            # The schedule itself: one that is the user's own may be unknown to Keras by its name.
            config["learning_rate"] = rate
        own = kind.from_config(config)
    except CannotDistribute:
        raise
    except Exception as error:
        raise CannotDistribute(
            f"a server can't make its own {kind.__name__}: {kind.__name__}.from_config(optimizer.get_config()) failed "
            f"with {type(error).__name__}: {error}. Give the class a get_config that returns all arguments of its "
            "__init__."
        ) from error
    _refuse_forgetful(optimizer, own)
    return own


def _refuse_forgetful(optimizer: Any, own: Any) -> None:
    """A configuration that leaves out an argument would train with the argument's default."""
    for name in inspect.signature(type(optimizer).__init__).parameters:
        theirs, mine = vars(optimizer).get(name), vars(own).get(name)
        if isinstance(theirs, bool | int | float) and theirs != mine:
            kind = type(optimizer).__name__
            raise CannotDistribute(
                f"a server can't make its own {kind}: {kind}.get_config does not tell {name!r}, which is {theirs!r} "
                f"here and {mine!r} in an optimizer that is made from it. Add it to get_config."
            )


def _refuse_other_variables(optimizer: Any, held: Sequence[HeldVariable]) -> None:
    found, known = keras_private.has_state_for(optimizer, [variable.model for variable in held])
    if found < len(held) or (needs_of(optimizer) is Needs.TOGETHER and found < known):
        raise CannotDistribute(
            f"a server can't take over the state of this {type(optimizer).__name__}: it was built on other variables "
            "than those that are trained now. Compile the model again, with a new optimizer."
        )


def levels(optimizer: Any) -> list[Any]:
    """An optimizer and those that it wraps."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer, *(getattr(optimizer, "optimizers", ()) if inner is None else (inner,))]


def count_of(optimizer: Any) -> Any:
    """The variable in which an optimizer counts how often it was given gradients."""
    return keras_private.count_of(getattr(optimizer, "inner_optimizer", optimizer))


def rate_variable(optimizer: Any) -> Any | None:
    """The variable that is the learning rate, if no schedule tells it."""
    rate = keras_private.rate_of(getattr(optimizer, "inner_optimizer", optimizer))
    return rate if isinstance(rate, keras.Variable) else None


def refuse_unless_row_wise(optimizer: Any) -> None:
    """Raises for optimizers that can't update some rows of a table alone."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise CannotDistribute(
            "a ShardedEmbedding on servers can't be trained in mixed_float16 yet; use mixed_bfloat16"
        )
    if needs_of(optimizer) is not Needs.SLICES:
        raise CannotDistribute(
            f"a ShardedEmbedding on servers needs an optimizer that treats every number by itself; this {kind} looks "
            "at whole tensors (clipnorm, global_clipnorm, or by its nature). Use Adam, Adagrad, Ftrl, SGD or RMSprop, "
            "with clipvalue if need be."
        )
    if optimizer.use_ema or optimizer.gradient_accumulation_steps:
        raise CannotDistribute(
            f"a ShardedEmbedding on servers can't be trained with use_ema or gradient_accumulation_steps yet ({kind})"
        )


def _exclude_alike(theirs: Any, mine: Any, held: Sequence[HeldVariable]) -> None:
    """What is not decayed there is not decayed here."""
    named, pattern = keras_private.excluded_from_decay(theirs, [variable.model for variable in held])
    excluded = [variable.own for variable, is_excluded in zip(held, named, strict=True) if is_excluded]
    if excluded or pattern is not None:
        mine.exclude_from_weight_decay(excluded, None if pattern is None else [pattern])


def _states(optimizer: Any, own: Any, held: Sequence[HeldVariable]) -> Iterator[tuple[Any, Array]]:
    """The new optimizer's variables, each with its part of the other's."""
    if needs_of(optimizer) is Needs.TOGETHER:
        yield from ((mine, _value(theirs)) for theirs, mine in zip(optimizer.variables, own.variables, strict=True))
        return
    for theirs, mine in zip(levels(optimizer), levels(own), strict=True):
        yield from _states_by_name(theirs, mine, held)


def _states_by_name(optimizer: Any, own: Any, held: Sequence[HeldVariable]) -> Iterator[tuple[Any, Array]]:
    """One level's: single variables, and lists with one for each that is held."""
    places = [keras_private.place_of(optimizer, variable.model) for variable in held]
    for name, mine in vars(own).items():
        if isinstance(mine, keras.Variable):
            yield mine, _value(vars(optimizer)[name])
    theirs = keras_private.lists_in(optimizer)
    for name, slots in keras_private.lists_in(own).items():
        for variable, place, slot in zip(held, places, slots, strict=False):
            if isinstance(slot, keras.Variable):
                yield slot, _part(_value(theirs[name][place]), variable.part)

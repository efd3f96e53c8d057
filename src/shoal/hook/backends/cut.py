"""The cut: a training step is taken apart where its gradients meet an optimizer.

While a cut is open, optimizers hand their gradients over instead of applying them, as often as the step asks. What is
before, between and after (forward, loss, loss scaling, metrics, a custom `train_step`) stays Keras's, and the user's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras

from shoal.errors import CannotDistribute
from shoal.hook.backends.base import updated_by


class Apply(NamedTuple):
    """One time that a step gives gradients to an optimizer."""

    optimizer: Any
    gradients: list[Any]
    variables: list[Any]  # on JAX their values, elsewhere the variables themselves
    state: list[Any]  # on JAX: the values of the optimizer's own variables


# What a step goes on with: on JAX the new values of variables and state, elsewhere nothing.
Given = tuple[list[Any], list[Any]] | None
Take = Callable[[Apply], Given]


class Weighting:
    """The factors of a piece's loss, where a step scales its loss; and whether it did."""

    def __init__(self, weight: Any, scale: Any = None) -> None:
        """`weight`: the piece's share of the step's samples. `scale`: for the optimizer's, if servers tell it."""
        self.weight = weight
        self._scale = scale
        self.done = False

    def of_loss(self, scale_loss: Callable[[Any], Any], loss: Any) -> Any:
        self.done = True
        scale = self._scale
        scaled = scale_loss(loss) if scale is None else keras.ops.multiply(loss, keras.ops.cast(scale, "float32"))
        return scaled * keras.ops.cast(self.weight, loss.dtype)


@contextlib.contextmanager
def cut(model: Any, take: Take, weighting: Weighting, builds: bool = True) -> Iterator[None]:
    """Opens a cut for one call of the model's step. Not reentrant; one thread only.

    `builds`: optimizers that the step applies for the first time get their variables; not where servers have them.

    A piece's weight goes into the loss where Keras's own step scales it: that costs nothing. So it does where the loss
    is scaled for float16: a piece then overflows no sooner than the whole batch would. Other steps may show their loss
    to the user; their gradients are weighted after them. A loss that is a sum over the batch is divided by the weight
    first: then its weighted mean over pieces is the sum.
    """
    base = keras.optimizers.Optimizer
    own = model.optimizer
    replaced: dict[str, Any] = (
        {"stateless_apply": _stateless(take)} if _on_jax() else {"apply": _stateful(take, builds)}
    )
    weighs = own is not None and (is_keras_own(model) or isinstance(own, keras.optimizers.LossScaleOptimizer))
    if weighs:
        scale_loss = own.scale_loss
        own.__dict__["scale_loss"] = lambda loss: weighting.of_loss(scale_loss, loss)
    owners = [*_classes_with(base, *replaced), base]
    shadowed = [(owner, name, owner.__dict__.get(name)) for owner in owners for name in replaced]
    shadowed.append((keras.losses.Loss, "__call__", keras.losses.Loss.__call__))
    for owner in owners:
        for name, method in replaced.items():
            setattr(owner, name, method)
    keras.losses.Loss.__call__ = _of_whole_batch(keras.losses.Loss.__call__, weighting)
    try:
        yield
    finally:
        if weighs:
            del own.__dict__["scale_loss"]
        for owner, name, original in shadowed:
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def is_keras_own(model: Any, step: str = "train_step") -> bool:
    """Whether the step is Keras's: then nothing in it depends on weights that were just updated."""
    return _is_of_keras(getattr(type(model), step))


def step_of(model: Any) -> Callable[..., Any]:
    """What trains on a batch: `train_step`, or what a model with a `make_train_function` of its own makes of it."""
    if _is_of_keras(getattr(type(model), "make_train_function", None)):
        return model.train_step  # type: ignore[no-any-return]
    model.make_train_function()
    function, backend = model.train_function, keras.backend.backend()
    if backend == "jax":
        return lambda state, data: function(state, iter([data]))
    return lambda data: function([data] if backend == "torch" else iter([data]))


def _is_of_keras(method: Any) -> bool:
    return method is None or method.__module__.startswith("keras.")


def train_step_of(model: Any) -> str:
    """For errors."""
    own = getattr(model, "step_name", None)
    return own or f"the `train_step` of {type(model).__name__} {model.name!r}"


def _on_jax() -> bool:
    return bool(keras.backend.backend() == "jax")


def _of_whole_batch(call: Callable[..., Any], weighting: Weighting) -> Callable[..., Any]:
    def of_whole_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = call(self, *args, **kwargs)
        return loss / keras.ops.cast(weighting.weight, loss.dtype) if self.reduction == "sum" else loss

    return of_whole_batch


def _stateless(take: Take) -> Any:
    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        given = take(Apply(self, list(grads), list(trainable_variables), list(optimizer_variables)))
        assert given is not None
        return given

    return stateless_apply


def _stateful(take: Take, builds: bool) -> Any:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        grads = list(grads)
        if not grads:
            return
        if trainable_variables is None:
            if not self.built:
                raise ValueError(
                    "When passing `grads` without `variables`, the optimizer must already be built on a list of "
                    "variables. Call `optimizer.build(trainable_variables)` first."
                )
            trainable_variables = updated_by(self)
        variables = list(trainable_variables)
        if not self.built and builds:
            with _outside_graphs():
                self.build(variables)
            self.built = True
        take(Apply(self, grads, variables, []))

    return apply


def _outside_graphs() -> contextlib.AbstractContextManager[Any]:
    """TensorFlow makes variables only outside of a function that it traces."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    scope: contextlib.AbstractContextManager[Any] = tf.init_scope()
    return scope


def _classes_with(base: Any, *names: str) -> list[Any]:
    """The classes below `base` that define one of the methods themselves: theirs would be called, not the base's."""
    found = []
    for kind in base.__subclasses__():
        found += [kind] if any(name in kind.__dict__ for name in names) else []
        found += _classes_with(kind, *names)
    return found


def refuse(model: Any, what: str) -> CannotDistribute:
    return CannotDistribute(f"{train_step_of(model)} {what}")


def check_known(model: Any, applies: Sequence[Apply], known: Sequence[Any]) -> None:
    """Raises for a step that updates what is no part of the model: nobody would tell a newcomer of it."""
    there = {id(variable) for variable in known}
    for applied in applies:
        for variable in applied.variables:
            if id(variable) not in there:
                raise refuse(
                    model,
                    f"gives the optimizer {applied.optimizer.name!r} gradients of {getattr(variable, 'path', '?')}, "
                    "which is no variable of the model. Make its layer an attribute of the model.",
                )

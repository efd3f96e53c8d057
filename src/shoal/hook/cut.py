"""The cut: a training step ends where its gradients meet the optimizer.

While a cut is open, the model's optimizer hands its gradients over instead of applying them. Everything before
it (forward, loss, loss scaling, metrics, a custom `train_step`) stays Keras's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from shoal.errors import CannotDistribute


class Cut:
    """What the optimizer was given during one training step."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._gradients: list[Any] | None = None
        self.weighted = False  # whether the gradients already carry the piece's weight
        self.given_back: Any = None  # on JAX: the weights that the step got from its optimizer

    def take(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        if self._gradients is not None:
            raise CannotDistribute(
                f"{_train_step_of(self._model)} applies its optimizer more than once in a step. Shoal exchanges "
                "gradients once per step, at the one place where they meet the optimizer. Sum the losses and apply "
                "once, or train this model without `shoal run`."
            )
        if variables is None:
            self._gradients = list(gradients)
            return
        given = {id(variable): gradient for variable, gradient in zip(variables, gradients, strict=True)}
        self._gradients = [given.pop(id(variable), None) for variable in self._model.trainable_variables]
        if given:
            raise CannotDistribute(
                f"{_train_step_of(self._model)} gives the optimizer gradients of variables that are not among the "
                "model's `trainable_variables`. Make their layers attributes of the model."
            )

    @property
    def taken(self) -> bool:
        """Whether the step has reached its optimizer."""
        return self._gradients is not None

    def refuse_late_work(self, what: str) -> None:
        """For a step that goes on, after its optimizer, with weights that are not updated yet."""
        raise CannotDistribute(
            f"{_train_step_of(self._model)} {what}. In a distributed step the update happens after `train_step` has "
            "returned: do such work in a callback's `on_train_batch_end`, or in `call`."
        )

    def gradients(self) -> list[Any]:
        """One per trainable variable of the model, None where there is none."""
        if self._gradients is None:
            raise CannotDistribute(
                f"{_train_step_of(self._model)} never gave gradients to `self.optimizer`. Shoal exchanges them there: "
                "use `self.optimizer.apply_gradients(...)`, `.apply(...)`, or `.stateless_apply(...)` on JAX, once per "
                "step, or train this model without `shoal run`."
            )
        return self._gradients


@contextlib.contextmanager
def cut(
    model: Any, weight: Any, mark: Callable[[Any], Any] = lambda weights: weights, scale: Any = None
) -> Iterator[Cut]:
    """Opens a cut for one call of `model.train_step`. Not reentrant; one thread only.

    `weight` is the piece's share of the step's samples. It goes into the loss where Keras's own step scales it: that
    costs nothing. So it does where the loss is scaled for float16: a piece then overflows no sooner than the whole
    batch would. Other steps may show their loss to the user; their gradients are weighted after them. `mark` is
    applied to the weights that the optimizer gives back on JAX, so that a trace shows who uses them. `scale` scales the
    loss instead of the optimizer, if servers have that.
    """
    opened = Cut(model)
    optimizer = model.optimizer
    scale_loss = optimizer.scale_loss

    def weighted_loss(loss: Any) -> Any:
        opened.weighted = True
        scaled = scale_loss(loss) if scale is None else keras.ops.multiply(loss, keras.ops.cast(scale, "float32"))
        return scaled * keras.ops.cast(weight, loss.dtype)

    replaced: dict[str, Any] = {}
    keras_own = type(model).train_step.__module__.startswith("keras.")
    if keras_own or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        replaced["scale_loss"] = weighted_loss
    if keras.backend.backend() == "jax":
        method = "stateless_apply"

        def own(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
            opened.take(grads, None)
            opened.given_back = mark(trainable_variables)
            return opened.given_back, optimizer_variables
    else:
        method = "apply"

        def own(grads: Any, trainable_variables: Any = None) -> Any:  # type: ignore[misc]
            grads = list(grads)
            opened.take(grads, None if trainable_variables is None else list(trainable_variables))

    def foreign(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise CannotDistribute(
            f"{_train_step_of(model)} applies the optimizer {self.name!r}, which is not the model's own. Shoal can "
            "distribute a `train_step` that applies `self.optimizer` once. Merge the two into one optimizer "
            "(`keras.optimizers.MultiOptimizer`, or a sum of the losses), or train this model without `shoal run`."
        )

    base = keras.optimizers.Optimizer
    shadowed = base.__dict__.get(method)
    replaced[method] = own
    optimizer.__dict__.update(replaced)
    setattr(base, method, foreign)
    try:
        yield opened
    finally:
        for name in replaced:
            del optimizer.__dict__[name]
        if shadowed is None:
            delattr(base, method)
        else:
            setattr(base, method, shadowed)


def _train_step_of(model: Any) -> str:
    return f"the `train_step` of {type(model).__name__} {model.name!r}"

"""Training that goes past Shoal is noticed where weights change: at an optimizer that is applied outside of our calls.

Every worker would train a model of its own, and nobody would say so. While a call of the run is going on
(`run.calls.going_on`), an optimizer that is applied is ours. Loops that have no optimizer of Keras's or torch's can't
be noticed here: the launcher says at the end what was trained.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterable
from typing import Any

import keras

from shoal.errors import CannotDistribute
from shoal.hook.patching.script_line import at_script_line
from shoal.training.run import Run

_METHODS = ("apply_gradients", "apply", "stateless_apply")


def install(run: Run) -> None:
    """From now on. Not where one worker is all there is: what it trains by itself is what is meant."""
    if run.is_single:
        return
    for cls in _optimizer_classes():
        for method in _METHODS:
            if method in cls.__dict__:
                setattr(cls, method, _checked(run, getattr(cls, method), f"optimizer.{method}"))
    if keras.backend.backend() == "torch":
        _watch_torch(run)


def _optimizer_classes() -> set[Any]:
    """All from which somebody could have got the methods."""
    public = (found for found in vars(keras.optimizers).values() if isinstance(found, type))
    optimizers = (found for found in public if issubclass(found, keras.optimizers.Optimizer))
    return {base for optimizer in optimizers for base in optimizer.__mro__}


def _is_ours(run: Run) -> bool:
    """Whether an optimizer that is applied now takes part in the run. On a server it always does."""
    return (run.calls.going_on is not None and not run.calls.between_steps) or run.is_server


def _checked(run: Run, original: Any, name: str) -> Any:
    @functools.wraps(original)
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_ours(run):
            _refuse(name)
        return original(self, *args, **kwargs)

    return apply


def _refuse(name: str) -> None:
    raise CannotDistribute(
        f"{at_script_line()}{name}() outside of fit() would train each worker's copy of the model by itself. Use "
        "fit(), if need be with a `train_step` of your own; or decorate the step function with `@shoal.step` "
        '(docs/guide.md, "Your own loop"); or run this script with one worker.'
    )


# PyTorch's own optimizers -------------------------------------------------------------------------------


def _watch_torch(run: Run) -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    seen: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers that train nothing of Keras's

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if _is_ours(run) or optimizer in seen:
            return
        if _trains_keras(parameter for group in optimizer.param_groups for parameter in group["params"]):
            _refuse(f"torch.optim.{type(optimizer).__name__}.step")
        if not seen:
            name = type(optimizer).__name__
            run.tell(f"{at_script_line()}{name} trains what is no Keras model's: each worker does that by itself.")
        seen.add(optimizer)

    register_optimizer_step_pre_hook(before_step)


def _trains_keras(parameters: Iterable[Any]) -> bool:
    """Whether one of them is the value of a Keras variable. Keras has no list of these; Python has one of all."""
    wanted = {id(parameter) for parameter in parameters}
    return any(issubclass(type(found), keras.Variable) and id(found.value) in wanted for found in gc.get_objects())

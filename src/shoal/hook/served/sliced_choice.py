"""Who updates the weights of a training together: every worker all of them, or each a slice."""

from __future__ import annotations

from typing import Any

from shoal.hook.backends import registry
from shoal.hook.backends.cut import is_keras_own
from shoal.hook.keras_private import layout_of
from shoal.hook.served.unit_update import KerasUnits, why_not_in_units
from shoal.observe.story import StoryKind
from shoal.training.engine import StepShape, Variables
from shoal.training.prepared import Prepared
from shoal.training.run import Run
from shoal.training.sliced import SlicedUpdates
from shoal.training.updates import AbstractUpdates, OwnUpdates

ENCODED = "gradients travel in fewer bytes, and each worker decodes all of them"


def updates_of(run: Run, model: Any, prepared: Prepared, sliced: bool) -> AbstractUpdates:
    """`sliced`: as the user has asked for. Where that is not possible, the user is told why."""
    own = OwnUpdates(prepared.engine, prepared.optimizer)
    if not sliced:
        return own
    why = why_not_sliced(model, prepared.engine.variables, prepared.shape)
    if not prepared.codec.is_identity:
        why = ENCODED
    if why is not None:
        text = f"fit(): the update is not sliced: {why}. Every worker updates all weights"
        run.tell(text)
        run.happened(StoryKind.BALANCE, text)
        return own
    engine, part = prepared.engine, prepared.shape.only
    variables = [engine.variables.weights[i] for i in part.gradients]
    units = KerasUnits(prepared.optimizer.own, variables, model.jit_compile)
    run.happened(StoryKind.BALANCE, "the update is sliced: each worker updates a part of the weights")
    return SlicedUpdates(run, engine, part, prepared.optimizer, units, prepared.callbacks)


def why_not_sliced(model: Any, variables: Variables, shape: StepShape) -> str | None:
    """Why this model's update can't be; None if it can."""
    applied = variables.optimizers
    if len(shape.parts) > 1 or len(applied) != 1 or applied[0] is not model.optimizer:
        return "the step applies several optimizers, or goes on with the updated weights"
    if not is_keras_own(model):
        return "the model has a train_step of its own, which may do more than apply the optimizer"
    if "cpu" not in str(registry.current().device()).lower():
        return "the weights are not in the host's memory"
    if any(layout_of(variable) is not None for variable in variables.trainable):
        return "the weights are on a mesh of devices, over which fsdp divides them and the optimizer's state"
    part = shape.parts[0]
    updated = [variables.weights[i] for i in part.gradients]
    if not updated:
        return "there is nothing to update"
    dtypes = [entry.dtype for entry in part.schema.entries[: len(part.gradients)]]
    return why_not_in_units(model.optimizer, updated, dtypes)

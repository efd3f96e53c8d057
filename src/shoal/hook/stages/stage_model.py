"""One stage of a model in Keras's own terms: what it computes from what it is given, on any backend.

A stage's layers are the model's own, in a `keras.Model` of their own over the same graph. Losses that layers add
(regularisers, `add_loss`) are summed up along the stages: each stage hands on what came to it plus its own, and the
last one adds that to the loss. So they have gradients like everything else that crosses a cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras

from shoal.hook import keras_private
from shoal.hook.backends.base import is_seed
from shoal.hook.backends.cut import Weighting, cut
from shoal.hook.stages.graph import TakenApart
from shoal.strategies.stages import Stage


class StageVariables(NamedTuple):
    """The variables of a stage, each list in the order of the model's own."""

    trainable: list[Any]
    states: list[Any]  # no seeds
    seeds: list[Any]


class StageModel:
    """What a stage computes."""

    def __init__(self, model: Any, apart: TakenApart, stages: Sequence[Stage], number: int) -> None:
        self.model = model
        self.stage = stages[number]
        self.is_last = number == len(stages) - 1
        self._apart = apart
        low, high = self.stage.calls
        taken = {tensor for call in apart.graph.calls[low:high] for tensor in call.takes}
        made = {tensor for call in apart.graph.calls[low:high] for tensor in call.makes}
        self._inputs = [tensor for tensor in self.stage.inputs if tensor in taken]
        self._inputs += [tensor for tensor, _ in self.stage.receives if tensor in taken]
        wanted = [tensor for tensor, _ in self.stage.sends]
        wanted += [tensor for tensor in apart.graph.outputs if self.is_last and tensor in made]
        self._outputs = list(dict.fromkeys(wanted))
        tensors = apart.tensors
        self.part = keras.Model([tensors[i] for i in self._inputs], [tensors[i] for i in self._outputs])
        self.part.autocast = False  # layers cast for themselves, and to what each of them computes in
        self._casts = model.compute_dtype if getattr(model, "autocast", False) else None
        held = {id(variable) for variable in self.part.variables}
        trainable = {id(variable) for variable in self.part.trainable_variables}
        others = [v for v in model.variables if id(v) in held and id(v) not in trainable]
        self.variables = StageVariables(
            [variable for variable in model.trainable_variables if id(variable) in trainable],
            [variable for variable in others if not is_seed(variable)],
            [variable for variable in others if is_seed(variable)],
        )
        before = {
            id(layer)
            for earlier in stages[:number]
            for call in range(*earlier.calls)
            for layer in _with_children(apart.layers[call])
        }
        # What an earlier stage has too is regularised there.
        shared = {id(v) for layer in _layers(apart, self.stage) if id(layer) in before for v in layer.variables}
        regularised = [v for v in self.part.trainable_variables if v.regularizer is not None]
        self._regularised = [id(variable) not in shared for variable in regularised]

    def made_bytes(self, rows: int) -> int:
        """Of the tensors that the stage's layers make from so many rows, as far as their shapes are known."""
        calls = self._apart.graph.calls[slice(*self.stage.calls)]
        made = [self._apart.tensors[tensor] for call in calls for tensor in call.makes]
        each = 2 if "16" in self.model.compute_dtype else 4
        return int(sum(math.prod(axis or 1 for axis in tensor.shape[1:]) * each for tensor in made)) * rows

    def is_float(self, tensor: int) -> bool:
        """Whether a boundary tensor has a gradient."""
        return "float" in str(self._apart.tensors[tensor].dtype)

    def inputs(self, x: Any) -> dict[int, Any]:
        """The model's own inputs that this stage needs, as its `call` would have made them."""
        if not self.stage.inputs:
            return {}
        flat = keras_private.flat_inputs(self._apart.functional, x)
        given = dict(zip(self._apart.graph.inputs, flat, strict=True))
        return {tensor: self._cast(given[tensor]) for tensor in self.stage.inputs}

    def outputs(self, values: dict[int, Any], computed: Sequence[Any]) -> dict[int, Any]:
        """All that is known once the stage's own calls are computed, by number."""
        return values | dict(zip(self._outputs, computed, strict=True))

    def arguments(self, values: dict[int, Any]) -> list[Any]:
        return [values[tensor] for tensor in self._inputs]

    def own_losses(self, losses: Sequence[Any]) -> list[Any]:
        """Of the losses that Keras lists for this stage's layers, those that count here."""
        count = len(losses) - len(self._regularised)
        own = [loss for loss, counts in zip(losses[count:], self._regularised, strict=True) if counts]
        return [*losses[:count], *own]

    def add_up(self, so_far: Any, losses: Sequence[Any]) -> Any:
        """What is handed on to the next stage."""
        for loss in losses:
            so_far = so_far + keras.ops.cast(keras.ops.sum(loss), "float32")
        return so_far

    def loss(self, values: dict[int, Any], so_far: Any, batch: Any, weight: Any) -> Any:
        """In the last stage: the loss to be differentiated. Metrics are told what Keras's own step would tell them."""
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        flat = [values[tensor] for tensor in self._apart.graph.outputs]
        y_pred = keras.tree.pack_sequence_as(self._apart.functional.output, flat)
        rows = keras.ops.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
        with cut(model, lambda apply: None, Weighting(weight)), keras_private.losses_given(model, [so_far]):
            loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            tracker = keras_private.loss_tracker(model)
            if tracker is not None:
                tracker.update_state(loss, sample_weight=rows)
            scaled = model.optimizer.scale_loss(loss)
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return scaled

    def _cast(self, tensor: Any) -> Any:
        if self._casts is None or not keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype)):
            return tensor
        return keras.ops.cast(tensor, self._casts)


def _layers(apart: TakenApart, stage: Stage) -> list[Any]:
    return [layer for call in range(*stage.calls) for layer in _with_children(apart.layers[call])]


def _with_children(operation: Any) -> list[Any]:
    return keras_private.layers_in(operation) if isinstance(operation, keras.layers.Layer) else [operation]

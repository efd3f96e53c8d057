"""A stage on PyTorch: eager. What was received is cut off from where it came from; autograd keeps the rest until the
gradients of what was sent come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import ml_dtypes
import numpy as np
import torch

from shoal.data.structure import flatten, rebuild
from shoal.hook.backends.base import AbstractEngine
from shoal.hook.stages.engine import AbstractKerasStage
from shoal.hook.stages.stage_model import StageModel
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape


class _OnItsWay(NamedTuple):
    """Of a piece on its way."""

    outputs: list[Any]  # with a gradient
    received: list[Any]  # the same
    states: list[Array]
    metrics: list[Array]


class TorchStage(AbstractKerasStage):
    """Keras on PyTorch."""

    def __init__(self, stage_model: StageModel, engine: AbstractEngine, whole: PartShape) -> None:
        super().__init__(stage_model, engine, whole)
        self._flights: dict[int, _OnItsWay] = {}

    def forward(self, piece: int, batch: Any, weight: float, received: Sequence[Array]) -> list[Array]:
        stage, engine, model = self._of, self._engine, self._of.model
        stage.part.train()
        model.train()
        engine.write(stage.variables.seeds, list(self._seeds_of(piece)))
        before = [np.array(engine.read(variable)) for variable in self._changed]
        leaves, skeleton = flatten(batch)
        batch = rebuild(skeleton, [keras.ops.convert_to_tensor(leaf) for leaf in leaves])
        arrived = {tensor: _to_tensor(array) for (tensor, _), array in zip(self.stage.receives, received, strict=False)}
        so_far = _to_tensor(received[-1])
        floats = [arrived[tensor].requires_grad_() for tensor in self._differentiable] + [so_far.requires_grad_()]
        with torch.enable_grad(), torch.random.fork_rng():
            # Dropout without a seed draws from torch's own numbers, not from a generator.
            torch.manual_seed((engine.seeds.of_backend(piece) + self.stage.number) % 2**63)
            values = stage.inputs(keras.utils.unpack_x_y_sample_weight(batch)[0]) | arrived
            values = stage.outputs(values, keras.tree.flatten(stage.part(stage.arguments(values), training=True)))
            handed_on = stage.add_up(so_far, stage.own_losses(stage.part.losses))
            metrics: list[Array] = []
            if stage.is_last:
                model.reset_metrics()
                outputs = [stage.loss(values, handed_on, batch, weight)]
                changes = zip(engine.variables.metrics, self._fresh, strict=True)
                metrics = [np.array(engine.read(v)) - fresh for v, fresh in changes]
            else:
                outputs = [values[tensor] for tensor, _ in self.stage.sends if self.is_float(tensor)] + [handed_on]
        states = [np.array(engine.read(variable)) for variable in self._changed]
        engine.write(self._changed, before)
        self._flights[piece] = _OnItsWay(outputs, floats, states, metrics)
        if stage.is_last:
            return []
        return [_to_numpy(value) for value in (*(values[tensor] for tensor, _ in self.stage.sends), handed_on)]

    def metrics(self, piece: int) -> Sequence[Array]:
        return self._flights[piece].metrics

    def backward(self, piece: int, gradients: Sequence[Array]) -> tuple[list[Array], Sequence[Array]]:
        kept = self._flights.pop(piece)
        given = [None] if self.is_last else [_to_tensor(gradient) for gradient in gradients]
        pairs = [(out, grad) for out, grad in zip(kept.outputs, given, strict=True) if out.requires_grad]
        wanted = [*(variable.value for variable in self.trainable), *kept.received]
        found = torch.autograd.grad([out for out, _ in pairs], wanted, [grad for _, grad in pairs], allow_unused=True)
        full = [torch.zeros_like(one) if grad is None else grad for one, grad in zip(wanted, found, strict=True)]
        count = len(self.trainable)
        mine = [_to_numpy(grad.to_dense() if grad.is_sparse else grad, single=True) for grad in full[:count]]
        return [_to_numpy(grad) for grad in full[count:]], [*mine, *kept.states]

    def forget(self) -> None:
        self._flights.clear()


def _to_tensor(array: Array) -> Any:
    """A copy: the memory may be another worker's."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _to_numpy(tensor: Any, single: bool = False) -> Array:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16 and not single:
        return np.asarray(tensor.contiguous().view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return np.asarray((tensor.float() if single and half else tensor).numpy())

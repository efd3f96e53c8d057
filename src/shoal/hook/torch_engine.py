"""The cut step on PyTorch: eager, so the step simply runs; what it changed is taken out and put back.

Gradients and results are read where they lie: a torch tensor on the CPU and a numpy array share memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch

from shoal.data.structure import flatten, rebuild
from shoal.errors import CannotDistribute
from shoal.hook.assignments import assignments
from shoal.hook.cut import cut
from shoal.hook.engine import AbstractEngine, Logs, StepShape, extra_logs
from shoal.hook.seeds import Seeds
from shoal.strategies.schema import Array


class TorchEngine(AbstractEngine):
    """Keras on PyTorch."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._shape: StepShape | None = None
        self._weighted = False
        self._updated: set[int] = set()

    def read(self, variable: Any) -> Array:
        return _to_numpy(variable.value)

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(np.array(value))

    def adopt(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch could write to memory which is only to be read: it does not
            for variable, value in zip(variables, values, strict=True):
                variable.value.copy_(torch.from_numpy(value))

    def trace(self, batch: Any) -> StepShape:
        self._refuse_buffers()
        names = self.names_of_metrics()
        gradients, states, _, logs = self._train_step(batch, 0, 1.0)
        extras = extra_logs(logs, names, self._updated)
        self._shape = StepShape(
            self.variables,
            [(i, str(g.dtype)) for i, g in enumerate(gradients) if g is not None],
            sorted(states),
            [(name, np.shape(_to_numpy(value))) for name, value in extras.items()],
            tuple(logs),
            self._weighted,
        )
        return self._shape

    def piece(self, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        assert self._shape is not None, "trace() first"
        shape = self._shape
        gradients, states, metrics, logs = self._train_step(batch, piece, weight)
        return [
            *(self._gradient(i, gradients[i]) for i in shape.gradients),
            *(states.get(i, self.read(self.variables.states[i])) for i in shape.changed),
            *metrics,
            *(_to_numpy(logs[name]) for name in shape.extras),
        ]

    def apply(self, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        assert self._shape is not None, "trace() first"
        shaped: list[Any] = [None] * len(self.variables.trainable)
        with torch.no_grad():
            for i, gradient in zip(self._shape.gradients, gradients, strict=True):
                value = self.variables.trainable[i].value
                shaped[i] = torch.from_numpy(gradient).view(value.shape).to(value)
            self.model.optimizer.apply(shaped, self.variables.trainable)
            for i, state in zip(self._shape.changed, states, strict=True):
                value = self.variables.states[i].value
                value.copy_(torch.from_numpy(state).view(value.shape))

    def test(self, batch: Any, seeds: Seeds, number: int) -> tuple[Sequence[Array], Logs]:
        self.model.eval()
        self.write(self.variables.seeds, list(seeds.of_piece(number)))
        self.model.reset_metrics()
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(seeds.of_backend(number))
            logs = self.model.test_step(_to_tensors(batch))
        return self._metric_changes(), logs

    def results(self, metrics: Sequence[Array]) -> Logs:
        self.write(self.variables.metrics, metrics)
        logs: Logs = self.model.get_metrics_result()
        return logs

    def _train_step(
        self, batch: Any, piece: int, weight: float
    ) -> tuple[list[Any], dict[int, Array], list[Array], Logs]:
        variables = self.variables
        before: dict[int, Any] = {}

        def remember(variable: Any) -> None:
            before[id(variable)] = variable.value.detach().clone()

        self.model.train()
        self.write(variables.seeds, list(self.seeds.of_piece(piece)))
        self.model.reset_metrics()
        with (
            torch.random.fork_rng(),  # dropout without a seed draws from torch's own numbers, not from its generator
            cut(self.model, weight, scale=self.loss_scale) as opened,
            assignments(variables, opened, remember) as assigned,
        ):
            torch.manual_seed(self.seeds.of_backend(piece))
            logs = self.model.train_step(_to_tensors(batch))
        states = {}
        with torch.no_grad():
            for i in assigned.states:
                value = variables.states[i].value
                states[i] = _to_numpy(value).copy()
                value.copy_(before[id(variables.states[i])])
        gradients = [None if g is None else _to_single(g) for g in opened.gradients()]
        self._weighted = opened.weighted
        self._updated = assigned.metrics
        return gradients, states, self._metric_changes(), logs

    def _refuse_buffers(self) -> None:
        """A torch module's own buffers (its BatchNorm's statistics) are no Keras variables: who would combine them?"""
        for name, _ in self.model.named_buffers():
            raise CannotDistribute(
                f"{type(self.model).__name__} {self.model.name!r} wraps a torch module with a buffer, {name}, which "
                "Shoal would not combine over workers. Use Keras's own layer, such as keras.layers.BatchNormalization."
            )

    def _metric_changes(self) -> list[Array]:
        return [_to_numpy(v.value) - fresh for v, fresh in zip(self.variables.metrics, self._fresh, strict=True)]

    def _gradient(self, index: int, gradient: Array | None) -> Array:
        """A variable that this piece did not use has a gradient of zero, as in a sum over the whole batch."""
        if gradient is None:
            return np.zeros(tuple(self.variables.trainable[index].shape), np.float32)
        return gradient


def _to_tensors(batch: Any) -> Any:
    leaves, skeleton = flatten(batch)
    return rebuild(skeleton, [keras.ops.convert_to_tensor(leaf) for leaf in leaves])


def _to_numpy(tensor: Any) -> Array:
    tensor = torch.as_tensor(tensor).detach().cpu()
    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _to_single(gradient: Any) -> Array:
    """Half-precision gradients are summed in float32; sparse ones become dense."""
    gradient = gradient.detach()
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    return _to_numpy(gradient.float() if gradient.dtype in (torch.bfloat16, torch.float16) else gradient)

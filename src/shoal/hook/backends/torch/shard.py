"""A shard's update on PyTorch: eager and in place. What was read before it changes with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from shoal.hook import keras_private
from shoal.hook.backends.shard_engine import AbstractShardEngine
from shoal.hook.served.shard_optimizer import levels
from shoal.strategies.schema import Array


class TorchShardEngine(AbstractShardEngine):
    """Keras on PyTorch."""

    def __init__(self, variables: Sequence[Any], optimizer: Any) -> None:
        super().__init__(variables, optimizer)
        # Keras's weight decay on torch fails where there is none to decay, as in a shard of biases.
        for level in levels(optimizer):
            if level.weight_decay is not None and not any(keras_private.decays(level, v) for v in variables):
                level.weight_decay = None

    def read(self, variable: Any) -> Array:
        return _to_numpy(variable.value.detach().cpu().reshape(-1))

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        with torch.no_grad():
            for variable, value in zip(variables, values, strict=True):
                variable.value.copy_(_to_torch(value).view(variable.value.shape))

    def update(self, gradients: Sequence[Array]) -> None:
        with torch.no_grad():
            shaped = [
                _to_torch(gradient).view(variable.value.shape).to(variable.value)
                for gradient, variable in zip(gradients, self._variables, strict=True)
            ]
            self._optimizer.apply(shaped, self._variables)


def _to_numpy(tensor: Any) -> Array:
    """Where it lies; numpy knows bfloat16 only from ml_dtypes, which torch does not know."""
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def _to_torch(array: Array) -> Any:
    """Where it lies; a copy of what is read-only, which torch does not know either."""
    array = array if array.flags.writeable else array.copy()
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)

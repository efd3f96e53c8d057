"""Keras's own distribution for a mesh of ours: what Keras asks while a script makes variables and predicts.

How a variable is split is known when the whole model is. Until then large ones are divided over all devices along their
longest axis, so that a model that fits the mesh, and no single device, can be made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras

from shoal.strategies.mesh.shape import BATCH, MODEL, Mesh

_LARGE = 1 << 20  # elements


class MeshDistribution(keras.distribution.DataParallel):  # type: ignore[misc]
    """Its devices are looked for when a variable is first made: the script may still say which there are."""

    def __init__(self, find: Callable[[], tuple[Mesh, list[str]]]) -> None:
        self._find = find
        self._shape: Mesh | None = None
        self._made: Any = None
        self._batch_dim_name = BATCH
        self._auto_shard_dataset = False
        self._num_processes, self._process_id, self._is_multi_process = 1, 0, False

    @property
    def mesh(self) -> Mesh:
        """With all axes' sizes."""
        self._know()
        assert self._shape is not None
        return self._shape

    @property
    def device_mesh(self) -> Any:
        self._know()
        return self._made

    @property
    def num_model_replicas(self) -> int:
        return self.mesh.batch or 1

    def layout(self, axes: tuple[str | None, ...]) -> Any:
        return keras.distribution.TensorLayout(axes, self.device_mesh)

    def get_data_layout(self, data_shape: Any) -> Any:
        """Rows that do not divide are computed by every device."""
        divides = bool(data_shape) and data_shape[0] is not None and data_shape[0] % (self.mesh.batch or 1) == 0
        axes = [BATCH if divides else None, *(None for _ in data_shape[1:])] if data_shape else []
        return self.layout(tuple(axes))

    def get_variable_layout(self, variable: Any) -> Any:
        shape = tuple(variable.shape)
        axis, ways = (MODEL, self.mesh.model) if self.mesh.model > (self.mesh.batch or 1) else (BATCH, self.mesh.batch)
        places = [i for i, size in enumerate(shape) if size % (ways or 1) == 0]
        if math.prod(shape) < _LARGE or not places:
            return self.layout((None,) * len(shape))
        longest = max(places, key=lambda i: shape[i])
        return self.layout(tuple(axis if i == longest else None for i in range(len(shape))))

    def get_tensor_layout(self, path: str) -> None:
        return None

    def distribute_dataset(self, dataset: Any) -> Any:
        return dataset

    def _know(self) -> None:
        if self._shape is None:
            self._shape, devices = self._find()
            axes = (self._shape.batch or 1, self._shape.model)
            self._made = keras.distribution.DeviceMesh(axes, (BATCH, MODEL), devices)

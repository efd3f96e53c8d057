"""Where the values of a model lie on JAX: on one device, or on a mesh of them. What the engine need not know.

On a CPU arrays are where they are: gradients are looked at, and totals read, in place. Elsewhere they go to the host in
one transfer per type, and come back by copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from shoal.hook.backends import registry
from shoal.hook.keras_private import layout_of, set_values
from shoal.strategies.schema import Array
from shoal.training.engine import aligned


class AbstractPlacement(ABC):
    """Of one model's variables."""

    @abstractmethod
    def tie(self, variables: Sequence[Any]) -> None:
        """Programs are compiled anew for inputs of another kind: weights that lie from the start as the update leaves
        them spare the second compilation.
        """

    @abstractmethod
    def put(self, variables: Sequence[Any], values: Sequence[Array]) -> list[Any]:
        """Values of these variables, of their types, where they belong."""

    @abstractmethod
    def batch(self, batch: Any) -> Any:
        """The rows of a piece, or whatever else a step computes on."""

    @abstractmethod
    def whole(self, weights: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Traced: weights as a step computes with them."""

    @abstractmethod
    def shardings(self, variables: Sequence[Any]) -> Any:
        """For `jax.jit`: how results that become these variables', or their gradients, lie. None: as it comes."""

    @abstractmethod
    def to_host(self, arrays: Sequence[Any]) -> list[Array]:
        """What a piece gives out, on the host."""

    @abstractmethod
    def totals(self, views: Sequence[Array], variables: Sequence[Any]) -> list[Any]:
        """What was exchanged for these variables, in the order and the flat form of the exchange, for the update."""

    def metrics(self, values: Sequence[Any]) -> list[Any]:
        """Values of metrics' variables, where Keras expects them."""
        return list(values)

    @abstractmethod
    def rehearsal(
        self, values: Sequence[Any], zeros: Sequence[Array], variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Copies of what an update is given, and in the place of totals, arrays that lie as they do."""

    def release(self) -> None:
        """Lets go of the totals of a fit that is over."""
        return  # most keep none


class OneDevice(AbstractPlacement):
    """All on one device."""

    def __init__(self) -> None:
        self._device = registry.current().device()
        self._on_host = registry.current().is_on_host()
        self._borrowed: dict[int, list[Any]] = {}
        self._joined: Any = None  # the program that joins arrays of one type

    def tie(self, variables: Sequence[Any]) -> None:
        if self._on_host:
            set_values(variables, [jax.device_put(variable.value, self._device) for variable in variables])

    def put(self, variables: Sequence[Any], values: Sequence[Array]) -> list[Any]:
        placed: list[Any] = jax.device_put(list(values), self._device)
        return placed

    def batch(self, batch: Any) -> Any:
        return batch

    def whole(self, weights: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return list(weights)

    def shardings(self, variables: Sequence[Any]) -> Any:
        return None

    def to_host(self, arrays: Sequence[Any]) -> list[Array]:
        if self._on_host:
            return [np.asarray(array) for array in arrays]
        return self._in_one_transfer(arrays)

    def _in_one_transfer(self, arrays: Sequence[Any]) -> list[Array]:
        """Joined on the device, by type: a transfer costs more than its bytes."""
        groups: dict[Any, list[int]] = {}
        for number, array in enumerate(arrays):
            groups.setdefault(jnp.result_type(array), []).append(number)
        if self._joined is None:
            self._joined = jax.jit(lambda groups: [jnp.concatenate([a.reshape(-1) for a in one]) for one in groups])
        joined = self._joined([[jnp.asarray(arrays[i]) for i in members] for members in groups.values()])
        for one in joined:
            one.copy_to_host_async()
        found: list[Array] = [np.empty(0)] * len(arrays)
        for one, members in zip(joined, groups.values(), strict=True):
            flat, start = np.asarray(one), 0
            for i in members:
                shape = np.shape(arrays[i])
                stop = start + int(np.prod(shape))
                found[i] = flat[start:stop].reshape(shape)
                start = stop
        return found

    def totals(self, views: Sequence[Array], variables: Sequence[Any]) -> list[Any]:
        """Arrays that lie where the views lie. Making one takes longer than reading most, so they are kept.

        Their contents change with every exchange, which JAX does not expect: only the update program reads
        them, and the engine's `settle` waits for it.
        """
        if not views:
            return []
        key = views[0].ctypes.data
        if key not in self._borrowed:
            self._borrowed[key] = [jnp.from_dlpack(v) if self._on_host and aligned(v) else v for v in views]
        return [
            kept if isinstance(kept, jax.Array) else jnp.array(view)
            for kept, view in zip(self._borrowed[key], views, strict=True)
        ]

    def rehearsal(
        self, values: Sequence[Any], zeros: Sequence[Array], variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        copies = [jnp.array(value, copy=True) for value in values]
        placed: tuple[list[Any], list[Any]] = jax.device_put((copies, list(map(jnp.asarray, zeros))), self._device)
        return placed

    def release(self) -> None:
        self._borrowed.clear()


class OnMesh(AbstractPlacement):
    """On the devices of a mesh, as the variables' layouts say."""

    def __init__(self, mesh: Any, batch_axis: str) -> None:
        """`mesh`: JAX's; rows are divided over `batch_axis` of it."""
        self._mesh = mesh
        self._ways = dict(zip(mesh.axis_names, mesh.devices.shape, strict=True))[batch_axis]
        self._rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(batch_axis))
        self._everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        self._batch_axis = batch_axis

    def tie(self, variables: Sequence[Any]) -> None:
        set_values(variables, [jax.device_put(v.value, self._of(v)) for v in variables])

    def put(self, variables: Sequence[Any], values: Sequence[Array]) -> list[Any]:
        return [jax.device_put(value, self._of(v)) for v, value in zip(variables, values, strict=True)]

    def batch(self, batch: Any) -> Any:
        def place(leaf: Any) -> Any:
            shape = np.shape(leaf)
            divides = bool(shape) and shape[0] % self._ways == 0
            return jax.device_put(leaf, self._rows if divides else self._everywhere)

        return jax.tree.map(place, batch)

    def whole(self, weights: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """What is kept in parts along the batch axis is gathered before it is used: XLA then divides rows, and nothing
        else, over that axis, and the sums are those of plain data parallelism.
        """
        return [
            jax.lax.with_sharding_constraint(weight, self._gathered(self._of(variable)))
            for weight, variable in zip(weights, variables, strict=True)
        ]

    def _gathered(self, sharding: Any) -> Any:
        axes = [None if axis == self._batch_axis else axis for axis in sharding.spec]
        return jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec(*axes))

    def shardings(self, variables: Sequence[Any]) -> Any:
        return [self._of(variable) for variable in variables]

    def to_host(self, arrays: Sequence[Any]) -> list[Array]:
        found: list[Array] = jax.device_get(list(arrays))  # begins all transfers before it waits for one
        return found

    def totals(self, views: Sequence[Array], variables: Sequence[Any]) -> list[Any]:
        # A copy, also on a CPU: the totals are written again by the next exchange.
        return [
            jax.device_put(np.array(view).reshape(variable.shape), self._of(variable))
            for view, variable in zip(views, variables, strict=True)
        ]

    def metrics(self, values: Sequence[Any]) -> list[Any]:
        placed: list[Any] = jax.device_put(list(values), self._everywhere)
        return placed

    def rehearsal(
        self, values: Sequence[Any], zeros: Sequence[Array], variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        copies = [jax.device_put(np.array(value), getattr(value, "sharding", self._everywhere)) for value in values]
        return copies, self.totals(zeros, variables)

    def _of(self, variable: Any) -> Any:
        layout = layout_of(variable)
        return self._everywhere if layout is None else getattr(layout, "backend_layout", layout)


class InGroup(AbstractPlacement):
    """On the devices of this process; pieces are computed by those of all processes of its group, which take batches
    from the host.
    """

    def __init__(self, own: OnMesh) -> None:
        self._own = own

    def tie(self, variables: Sequence[Any]) -> None:
        self._own.tie(variables)

    def put(self, variables: Sequence[Any], values: Sequence[Array]) -> list[Any]:
        return self._own.put(variables, values)

    def batch(self, batch: Any) -> Any:
        return batch

    def whole(self, weights: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return list(weights)

    def shardings(self, variables: Sequence[Any]) -> Any:
        return self._own.shardings(variables)

    def to_host(self, arrays: Sequence[Any]) -> list[Array]:
        return [np.asarray(array) for array in arrays]

    def totals(self, views: Sequence[Array], variables: Sequence[Any]) -> list[Any]:
        return self._own.totals(views, variables)

    def metrics(self, values: Sequence[Any]) -> list[Any]:
        return self._own.metrics(values)

    def rehearsal(
        self, values: Sequence[Any], zeros: Sequence[Array], variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        return self._own.rehearsal(values, zeros, variables)


def placement_of(variables: Sequence[Any], in_group: bool = False) -> AbstractPlacement:
    """By where the variables lie now."""
    for variable in variables:
        layout = layout_of(variable)
        if layout is not None and layout.device_mesh is not None:
            mesh = layout.device_mesh.backend_mesh
            theirs = getattr(keras.distribution.distribution(), "batch_dim_name", "")  # a user may name any axis
            own = OnMesh(mesh, str(theirs) if theirs in mesh.axis_names else mesh.axis_names[0])
            return InGroup(own) if in_group else own
    return OneDevice()

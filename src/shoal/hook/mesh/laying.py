"""A model's variables laid out on the devices of this worker, once it is built: by our own layouts, or by the user's.

Whatever becomes of it is said before the first step: bytes per device, what is split, what is whole and why. A tensor
that was to be split and is not is an error.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Sequence
from typing import Any

import keras

from shoal.errors import CannotDistribute, UsageError
from shoal.hook import keras_private
from shoal.hook.backends.base import updated_by
from shoal.hook.mesh.describing import describe, tensor_of
from shoal.hook.mesh.distribution import MeshDistribution
from shoal.observe.story import StoryKind
from shoal.strategies.abstract import AbstractStrategy
from shoal.strategies.mesh.layouts import Layout, derive
from shoal.strategies.mesh.report import DeviceMemory, told, wants_fsdp
from shoal.strategies.mesh.shape import Mesh
from shoal.strategies.scope import entered
from shoal.training.run import Run


class Meshes:
    """The meshes of this process, of which Keras is told, and the models that were laid out: as long as the script has
    them.
    """

    def __init__(self) -> None:
        self._distributions: dict[Mesh, MeshDistribution] = {}
        self._laid: weakref.WeakKeyDictionary[Any, tuple[MeshDistribution, tuple[int, ...]]] = (
            weakref.WeakKeyDictionary()
        )

    def distribution(self, mesh: Mesh) -> MeshDistribution:
        if mesh not in self._distributions:
            self._distributions[mesh] = MeshDistribution(lambda: _devices_for(mesh))
        return self._distributions[mesh]

    def of(self, model: Any) -> MeshDistribution | None:
        found = self._laid.get(model)
        return found[0] if found is not None else None

    def has(self, model: Any, distribution: MeshDistribution, variables: tuple[int, ...]) -> bool:
        """Whether these variables of the model were laid out so."""
        return self._laid.get(model) == (distribution, variables)

    def keep(self, model: Any, distribution: MeshDistribution, variables: tuple[int, ...]) -> None:
        self._laid[model] = (distribution, variables)


def mesh_of(run: Run, strategy: AbstractStrategy | None) -> Mesh | None:
    """What the strategy says; else what `shoal run` was told."""
    own = strategy.mesh if strategy is not None else None
    return own if own is not None else Mesh.parse(run.mesh) if run.mesh is not None else None


def tell_keras(run: Run) -> None:
    """Of the mesh that counts now, for the variables that are made: this scope's, or, without one, the run's."""
    current = keras.distribution.distribution()
    if current is not None and not isinstance(current, MeshDistribution):
        return  # the user's own
    mesh = None if run.is_server else mesh_of(run, entered())
    if mesh is None and current is None:
        return
    if mesh is not None:
        _refuse_elsewhere(f"a mesh ({mesh})")
    keras.distribution.set_distribution(None if mesh is None else run.memory.of(Meshes).distribution(mesh))


def lay_out(run: Run, strategy: AbstractStrategy, model: Any) -> None:
    """On the devices of this worker, if they are a mesh. Does what is left to do: more of it may be built."""
    current = keras.distribution.distribution()
    if current is not None and not isinstance(current, MeshDistribution):
        _check_users(model, current)
        return
    mesh = None if run.is_server else mesh_of(run, strategy)
    if mesh is None:
        return
    _refuse_elsewhere(f"a mesh ({mesh})")
    if not isinstance(model, keras.Model):
        raise CannotDistribute(
            f"a mesh ({mesh}) is for models that are trained with fit or train_on_batch; a step function of the "
            "script's own has none that Shoal could lay out. Leave the mesh out: --devices-per-worker 1."
        )
    meshes = run.memory.of(Meshes)
    distribution = meshes.distribution(mesh)
    variables = _variables(model)
    if not meshes.has(model, distribution, variables):
        _lay_out(run, model, distribution)
        meshes.keep(model, distribution, variables)


def tell_of_rows(run: Run, model: Any, rows: int, pieces: int) -> None:
    """Where the rows of a piece do not divide among the devices, more devices make nothing faster."""
    distribution = run.memory.of(Meshes).of(model)
    ways = (distribution.mesh.batch or 1) if distribution is not None else 1
    if rows % ways:
        run.tell(
            f"fit(): a piece has {rows} row{'s' if rows > 1 else ''}, which can't be divided among the {ways} devices "
            f"of the batch axis: each computes all of them. Use batches of a multiple of {pieces * ways} samples."
        )


def scope_of(run: Run, model: Any) -> contextlib.AbstractContextManager[Any]:
    """Within it Keras itself computes with a model that was laid out."""
    distribution = run.memory.of(Meshes).of(model)
    return contextlib.nullcontext() if distribution is None else distribution.scope()


def _variables(model: Any) -> tuple[int, ...]:
    optimizer = getattr(model, "optimizer", None)
    return tuple(map(id, (*model.variables, *(optimizer.variables if optimizer is not None else ()))))


def _refuse_elsewhere(what: str) -> None:
    backend = keras.backend.backend()
    if backend != "jax":
        raise CannotDistribute(
            f"{what} needs JAX: on {backend} Keras takes a distribution and ignores it, and every device would hold "
            "the whole model. Use --backend jax; or one device per worker, which is what -n auto gives."
        )


def _devices_for(mesh: Mesh) -> tuple[Mesh, list[str]]:
    import jax

    devices = keras.distribution.list_devices()
    if jax.process_count() > 1:  # the others' compute with these, and hold nothing of Keras's
        devices = [f"{device.platform}:{device.id}" for device in jax.local_devices()]
    return mesh.on(len(devices)), devices


# Our own layouts ----------------------------------------------------------------------------------------


def _lay_out(run: Run, model: Any, distribution: MeshDistribution) -> None:
    import jax

    facts = describe(model)
    mesh = distribution.mesh
    optimizer = _of_optimizer(model)
    fsdp = wants_fsdp(
        mesh.fsdp, _state(derive(facts, mesh, False), mesh, optimizer), _device_memory(jax.local_devices())
    )
    layouts = derive(facts, mesh, fsdp)
    if mesh.model > 1 and not any(layout.is_split for layout in layouts.values()):
        raise UsageError(
            f"no weight of this model can be split over {mesh.model} devices of a model axis: "
            f"{'; '.join(sorted({layout.why for layout in layouts.values()})[:3])}. Use a mesh without a model axis, "
            "which divides rows, and fsdp to divide weights over them."
        )
    by_key = {id(variable): variable for variable in model.variables}
    wanted = {key: layout.axes for key, layout in layouts.items()}
    for variable, weight in optimizer:
        by_key[id(variable)] = variable
        axes = wanted.get(id(weight)) if weight is not None and weight.shape == variable.shape else None
        wanted[id(variable)] = axes or (None,) * len(variable.shape)
    for key, variable in by_key.items():
        axes = wanted.get(key) or (None,) * len(variable.shape)
        if not _lies(variable, distribution, axes):
            _move(variable, distribution.layout(axes))
    _check_split(by_key, wanted, distribution)
    _report(run, distribution, layouts, [variable for variable, _ in optimizer], fsdp)


def _lies(variable: Any, distribution: MeshDistribution, axes: tuple[str | None, ...]) -> bool:
    """Whether it is laid out as wanted already."""
    layout = keras_private.layout_of(variable)
    return layout is not None and layout.device_mesh is distribution.device_mesh and layout.axes == axes


def _move(variable: Any, layout: Any) -> None:
    import jax

    keras_private.lay_out(variable, layout)
    keras_private.set_values([variable], [jax.device_put(variable.value, layout.backend_layout)])


def _check_split(
    by_key: dict[int, Any], wanted: dict[int, tuple[str | None, ...]], distribution: MeshDistribution
) -> None:
    """What was to be split is."""
    mesh = distribution.mesh
    for key, axes in wanted.items():
        variable = by_key.get(key)
        if variable is None or not any(axes):
            continue
        expected = Layout(tensor_of(variable), axes, "").bytes_on_device(mesh)
        found = _bytes_on_first(variable)
        if found != expected:
            raise CannotDistribute(
                f"{variable.path} was to be split as {axes} over a mesh of {mesh}, {expected:,} bytes on each device, "
                f"and takes {found:,}. This is an error of Shoal's: please report it, with the model."
            )


def _bytes_on_first(variable: Any) -> int:
    shards = variable.value.addressable_shards
    return sum(shard.data.nbytes for shard in shards if shard.device == shards[0].device)


def _of_optimizer(model: Any) -> list[tuple[Any, Any]]:
    """The optimizer's variables, each with the weight that it is kept for, if it is for one."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not optimizer.built:
        return []
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    weights = updated_by(optimizer)
    kept_for = {
        id(one): weight
        for kept in keras_private.lists_in(inner).values()
        if len(kept) == len(weights)
        for one, weight in zip(kept, weights, strict=True)
    }
    return [(variable, kept_for.get(id(variable))) for variable in optimizer.variables]


def _state(layouts: dict[int, Layout], mesh: Mesh, optimizer: Sequence[tuple[Any, Any]]) -> int:
    """Bytes of weights, of as many gradients, and of the optimizer that a device holds."""
    weights = sum(layout.bytes_on_device(mesh) for layout in layouts.values())
    each = {key: layout.ways(mesh) for key, layout in layouts.items()}
    kept = sum(tensor_of(one).nbytes // each.get(id(weight), 1) for one, weight in optimizer)
    return 2 * weights + kept


def _device_memory(devices: Sequence[Any]) -> int | None:
    """Bytes of the smallest; None if the devices can't say, as a CPU's."""
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    known = [limit for limit in limits if limit]
    return min(known) if len(known) == len(limits) else None


def _report(
    run: Run, distribution: MeshDistribution, layouts: dict[int, Layout], optimizer: Sequence[Any], fsdp: bool
) -> None:
    mesh = distribution.mesh
    facts = [tensor_of(variable) for variable in optimizer]
    memory = DeviceMemory(
        sum(layout.tensor.nbytes for layout in layouts.values()),
        sum(layout.bytes_on_device(mesh) for layout in layouts.values()),
        sum(tensor.nbytes for tensor in facts),
        sum(map(_bytes_on_first, optimizer)),
    )
    kind = str(distribution.device_mesh.devices.flat[0]).partition(":")[0]
    head, *details = told(mesh, f"{mesh.size} devices ({kind})", memory, list(layouts.values()), fsdp)
    run.tell("\n  ".join([head, *details]))
    run.happened(StoryKind.MESH, "; ".join([head, *details]))


# The user's own -----------------------------------------------------------------------------------------


def _check_users(model: Any, distribution: Any) -> None:
    """A user's own distribution is honoured. A pattern that matches no variable would leave all of them whole."""
    _refuse_elsewhere(f"keras.distribution.{type(distribution).__name__}")
    outside = next((v for v in getattr(model, "trainable_variables", ()) if keras_private.layout_of(v) is None), None)
    if outside is not None:
        raise UsageError(
            f"{outside.path} was made before keras.distribution.set_distribution, so it is not on the mesh. Set the "
            "distribution first, and then build the model."
        )
    patterns = keras_private.layout_map_of(distribution)
    if patterns is None:
        return
    paths = [variable.path for variable in model.variables]
    for pattern, layout in patterns.items():
        if any(layout.axes) and not any(path == pattern or re.fullmatch(pattern, path) for path in paths):
            near = ", ".join(paths[:4])
            raise UsageError(
                f"the LayoutMap's {pattern!r} matches no variable of this model: what was to be split would be whole "
                f"on every device. Keras compares a pattern with the whole path; there are {near}, ... Begin it "
                "with `.*` to match any layer."
            )

"""Whether the devices of each worker are a mesh, and of which shape. Pure."""

from __future__ import annotations

from shoal.errors import UsageError
from shoal.launch.devices.assignment import DeviceAssignment
from shoal.launch.request import LaunchRequest
from shoal.strategies.mesh.shape import Mesh


def choose_mesh(request: LaunchRequest, backend: str, given: DeviceAssignment) -> str | None:
    """In words, with all axes' sizes; None: every worker computes on one device."""
    if request.mesh is None:
        several = given.each > 1 and backend == "jax" and request.strategy in ("allreduce", "auto")
        return str(Mesh(batch=given.each)) if several else None
    if backend != "jax":
        raise UsageError(
            f"--mesh {request.mesh} needs JAX: on {backend} Keras takes a distribution and ignores it, and every "
            "device would hold the whole model. Use --backend jax; or one device per worker, as -n auto has it."
        )
    if request.strategy != "allreduce":
        raise UsageError(f"--mesh {request.mesh} is for --strategy allreduce, not for {request.strategy}.")
    return str(Mesh.parse(request.mesh).on(max(1, given.each)))

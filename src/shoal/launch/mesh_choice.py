"""Whether the devices of each worker are a mesh, and of which shape. Pure."""

from __future__ import annotations

from shoal.errors import UsageError
from shoal.launch.devices.assignment import DeviceAssignment
from shoal.launch.request import LaunchRequest
from shoal.strategies.mesh.shape import Mesh


def choose_mesh(request: LaunchRequest, backend: str, given: DeviceAssignment) -> str | None:
    """In words, with all axes' sizes; None: every worker computes on one device."""
    _check_mesh_hosts(request, backend, given)
    if request.mesh_hosts > 1:
        return str(Mesh(batch=max(1, given.each)))
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


def _check_mesh_hosts(request: LaunchRequest, backend: str, given: DeviceAssignment) -> None:
    """Raises UsageError for a group of processes that can't be."""
    asked = f"--mesh-hosts {request.mesh_hosts}"
    if request.mesh_hosts < 1:
        raise UsageError(f"{asked}: expected the number of processes of each worker, at least 1.")
    if request.mesh_hosts == 1:
        return
    if backend != "jax":
        raise UsageError(f"{asked} needs JAX, whose programs span processes; this run is on {backend}: --backend jax.")
    if request.strategy != "allreduce" or request.sliced:
        what = "sliced updates" if request.sliced else f"--strategy {request.strategy}"
        raise UsageError(f"{asked} is for --strategy allreduce with whole updates, not for {what}.")
    if request.mesh is not None:
        raise UsageError(
            f"{asked} divides the rows of a piece among all devices of a worker's processes, and each process holds "
            f"the whole model. --mesh {request.mesh} is for the devices of one process: leave one of them out."
        )
    if request.hosts is not None or request.ray is not None or request.is_task:
        raise UsageError(f"{asked}: the processes of a worker are started on this host only; leave out the hosts.")
    if given.given:
        raise UsageError(f"{asked}: the processes of a worker share a host, and would share its accelerators, too.")

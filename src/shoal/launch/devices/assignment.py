"""Who gets which devices, and what a worker's environment must say for it. Pure: an inventory in, environments out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.config import Devices
from shoal.errors import UsageError
from shoal.launch.devices.inventory import VISIBLE, DeviceKind, Inventory

SHARED = "shared"
_COUNT = "--xla_force_host_platform_device_count"
_PREALLOCATED = 0.75  # of a GPU's memory, which JAX takes when it starts
# How the chips of one process lie on a TPU host: JAX needs it where a process has not all of them.
_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """The devices of each worker, standbys last; none: they compute on the CPU."""

    kind: DeviceKind = DeviceKind.NONE
    given: tuple[tuple[str, ...], ...] = ()
    virtual: int = 0  # devices that JAX makes of the CPU, for each worker
    sharers: Mapping[str, int] = field(default_factory=dict)  # of each device that several workers have

    @property
    def each(self) -> int:
        """Devices that every worker has at least."""
        return self.virtual or min(map(len, self.given), default=0)


def workers_for(inventory: Inventory, backend: str) -> int:
    """`-n auto`: on JAX one worker for all devices of a host, whose mesh uses them all; elsewhere one per device."""
    per_process = backend == "jax" and not inventory.alone
    return 1 if per_process or not inventory.ids or inventory.unusable else len(inventory.ids)


def assign(
    inventory: Inventory, workers: int, asked: str | None, virtual: int | None, backend: str
) -> DeviceAssignment:
    """`workers`: with standbys. `asked`: what `--devices` says. `virtual`: what `--devices-per-worker` says. UsageError
    if it can't be done.
    """
    if virtual is not None and virtual < 1:
        raise UsageError(f"--devices-per-worker {virtual}: a worker has at least 1 device.")
    if asked is not None and virtual is not None:
        raise UsageError("--devices and --devices-per-worker both say how many devices a worker has: leave one out.")
    if workers == 0:  # all are on other hosts
        return DeviceAssignment(virtual=virtual or 0)
    if asked is None and (not inventory.ids or inventory.unusable):
        return _of_cpu(inventory, virtual, backend)
    if asked == "0":
        return DeviceAssignment(inventory.kind, ((),) * workers)
    if asked is not None and (not inventory.ids or inventory.unusable):
        there = inventory.unusable or "this host has no accelerators that Shoal could find"
        hint = " On a CPU, --devices-per-worker makes virtual devices, on JAX." if backend == "jax" else ""
        raise UsageError(f"--devices {asked}: {there}.{hint}")
    if asked == SHARED:
        return _shared(inventory, workers)
    if asked is None or asked.isdecimal():
        return _divided(inventory, workers, int(asked) if asked is not None else virtual, asked)
    return _listed(inventory, workers, asked)


def _of_cpu(inventory: Inventory, virtual: int | None, backend: str) -> DeviceAssignment:
    if virtual is None or virtual == 1:
        return DeviceAssignment()
    if backend != "jax":
        raise UsageError(
            f"--devices-per-worker {virtual}: {backend} computes on one device per worker. Use more workers, or "
            "--backend jax, which makes virtual devices of a CPU and one mesh of a worker's devices."
        )
    return DeviceAssignment(virtual=virtual)


def _divided(inventory: Inventory, workers: int, each: int | None, asked: str | None) -> DeviceAssignment:
    found = len(inventory.ids)
    if found < workers:
        raise UsageError(
            f"{workers} workers (standbys included) for {found} devices ({inventory}): each needs one of its own. Use "
            f"-n {found}, or --devices {SHARED}, which divides a device's memory, or --devices 0 for the CPU."
        )
    count = each if each is not None else found // workers
    if inventory.alone and count > 1:
        if each is not None:
            raise UsageError(
                f"{count} devices per worker: {inventory.alone[0]} is a part of a GPU (MIG), and a process can use one "
                "of those at most. Use one device per worker."
            )
        count = 1
    if count * workers > found:
        option = f"--devices {asked}" if asked is not None else f"--devices-per-worker {count}"
        raise UsageError(
            f"{option}: {workers} workers with {count} devices each need {count * workers}, and there are {found} "
            f"({inventory})."
        )
    given = tuple(inventory.ids[i * count : (i + 1) * count] for i in range(workers))
    return _checked(DeviceAssignment(inventory.kind, given), inventory)


def _shared(inventory: Inventory, workers: int) -> DeviceAssignment:
    if inventory.kind is DeviceKind.TPU:
        raise UsageError(f"--devices {SHARED}: a TPU chip belongs to one process. Use fewer workers.")
    given = tuple((inventory.ids[number % len(inventory.ids)],) for number in range(workers))
    counts = Counter(id for ids in given for id in ids)
    return DeviceAssignment(inventory.kind, given, sharers={id: count for id, count in counts.items() if count > 1})


def _listed(inventory: Inventory, workers: int, asked: str) -> DeviceAssignment:
    """`0,1;2,3`: the devices of each worker."""
    given = tuple(
        tuple(word.strip() for word in part.split(",") if word.strip()) for part in asked.rstrip(";").split(";")
    )
    unknown = [id for ids in given for id in ids if id not in inventory.ids]
    if unknown or not all(given):
        what = f"there is no device {unknown[0]!r}" if unknown else "a worker's list is empty"
        raise UsageError(
            f"--devices {asked}: {what}; there is {', '.join(inventory.ids)} ({inventory}). Expected a number of "
            f"devices per worker, lists as 0,1;2,3 with one for each worker, or {SHARED}."
        )
    if len(given) != workers:
        raise UsageError(
            f"--devices {asked} has lists for {len(given)} workers, and there are {workers} (standbys included): "
            "separate them by semicolons, one for each."
        )
    twice = [id for id, count in Counter(id for ids in given for id in ids).items() if count > 1]
    if twice:
        owners = [f"worker-{number}" for number, ids in enumerate(given) if twice[0] in ids]
        raise UsageError(
            f"--devices {asked}: device {twice[0]} is given more than once ({', '.join(owners)}). A device belongs to "
            f"one worker; --devices {SHARED} lets several have one, and divides its memory."
        )
    if any(len(ids) > 1 and set(ids) & set(inventory.alone) for ids in given):
        raise UsageError(f"--devices {asked}: a process can use one part of a GPU (MIG) at most.")
    if len({len(ids) for ids in given}) > 1:
        raise UsageError(
            f"--devices {asked}: workers have different numbers of devices, and would not compute the same bits. Give "
            "each as many."
        )
    return _checked(DeviceAssignment(inventory.kind, given), inventory)


def _checked(assignment: DeviceAssignment, inventory: Inventory) -> DeviceAssignment:
    count = assignment.each
    if inventory.kind is DeviceKind.TPU and count != len(inventory.ids) and count not in _BOUNDS:
        raise UsageError(
            f"{count} TPU chips per worker: a process has {', '.join(map(str, _BOUNDS))} of them, or all "
            f"{len(inventory.ids)}."
        )
    return assignment


def assign_like(devices: Devices | None, inventory: Inventory, workers: int, backend: str) -> DeviceAssignment:
    """For workers of another host than the launcher's: as many for each as the run's others have, so that all compute
    the same bits. If those have none, one for each, where there are enough: nobody shares a device by accident.
    """
    if devices is None:
        enough = workers <= len(inventory.ids) and not inventory.unusable
        return assign(inventory, workers, "1", None, backend) if enough else DeviceAssignment()
    if not devices.given:
        return DeviceAssignment(virtual=devices.each)
    return assign(inventory, workers, str(devices.each), None, backend)


def environment_of(
    assignment: DeviceAssignment, number: int, inventory: Inventory, environ: Mapping[str, str]
) -> dict[str, str]:
    """What worker `number` needs in its environment."""
    if assignment.virtual:
        return {"XLA_FLAGS": with_virtual(environ.get("XLA_FLAGS", ""), assignment.virtual)}
    if assignment.kind is DeviceKind.NONE:
        return {}
    ids = assignment.given[number]
    return _visible(assignment.kind, ids, inventory) | _memory(assignment, ids, environ)


def environment_without(assignment: DeviceAssignment) -> dict[str, str]:
    """Of a server: what it does to weights is done on the host."""
    if assignment.kind is DeviceKind.NONE:
        return {}
    return _visible(assignment.kind, (), Inventory())


def _visible(kind: DeviceKind, ids: Sequence[str], inventory: Inventory) -> dict[str, str]:
    if not ids:  # JAX says so of every platform that it finds and can't use
        return {VISIBLE[kind]: "", "JAX_PLATFORMS": "cpu"}
    found = {VISIBLE[kind]: ",".join(ids)}
    if kind is DeviceKind.CUDA and not inventory.narrowed_by:
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi counts; CUDA itself would count by speed
    if kind is DeviceKind.TPU and len(ids) != len(inventory.ids):
        found |= {"TPU_CHIPS_PER_PROCESS_BOUNDS": _BOUNDS[len(ids)], "TPU_PROCESS_BOUNDS": "1,1,1"}
    return found


def _memory(assignment: DeviceAssignment, ids: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """JAX takes most of a GPU's memory when it starts, and TensorFlow all of it: not where others need some."""
    most = max((assignment.sharers.get(id, 1) for id in ids), default=1)
    if most == 1:
        return {}
    fraction = environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{_PREALLOCATED / most:.3f}")
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": fraction, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def with_virtual(flags: str, devices: int) -> str:
    """XLA's flags with so many devices of the CPU; whatever else the user has set there stays."""
    known = re.search(rf"(?<!\S){re.escape(_COUNT)}=(\d+)", flags)
    if known is not None and int(known[1]) != devices:
        raise UsageError(
            f"--devices-per-worker {devices}, but XLA_FLAGS has {known[0]}. Leave one of them out, or make them agree."
        )
    return flags if known is not None else f"{flags} {_COUNT}={devices}".strip()


def told(inventory: Inventory, assignment: DeviceAssignment, members: Sequence[str]) -> str:
    """What was found and given, for people."""
    if assignment.virtual:
        return f"{assignment.virtual} virtual devices of the CPU for each worker"
    if not assignment.given or not any(assignment.given):
        why = f": {inventory.unusable}" if inventory.unusable else ""
        return f"{inventory}, not used{why}" if inventory.ids else ""  # and nothing on a host that has none
    given = [f"{id}: {','.join(ids)}" for id, ids in zip(members, assignment.given, strict=True)]
    return f"{inventory} · {' · '.join(given)}"

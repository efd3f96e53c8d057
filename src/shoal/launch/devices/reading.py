"""Asks this host for its accelerators: its tools, with a deadline, its device files, its environment."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.errors import UsageError
from shoal.launch.devices.inventory import DeviceKind, Inventory, from_nvidia, from_rocm, from_tpu

_PATIENCE = 20.0  # seconds; the first call after a boot loads the driver
# Without these JAX computes on the CPU, whatever the host has.
_PLUGINS = {
    DeviceKind.CUDA: ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    DeviceKind.ROCM: ("jax_rocm60_plugin", "jax_rocm7_plugin", "jax_rocm_plugin"),
    DeviceKind.TPU: ("libtpu",),
}


def read_inventory(environ: Mapping[str, str]) -> Inventory:
    """What this host has and the user has not hidden. UsageError if a tool does not answer."""
    if (listing := _say(["nvidia-smi", "-L"], environ)) and (found := from_nvidia(listing, environ)).ids:
        return found
    listing = _say(["rocm-smi", "--showproductname", "--json"], environ)
    if listing and (found := from_rocm(listing, environ)).ids:
        return found
    return from_tpu(len(_tpu_files()), environ)


def for_backend(inventory: Inventory, backend: str, environ: Mapping[str, str]) -> Inventory:
    """The same, with why the backend can't use it, if that is known."""
    if not inventory.ids or backend != "jax":
        return inventory
    platforms = environ.get("JAX_PLATFORMS", "")
    if platforms and platforms.split(",")[0] == "cpu":
        return replace(inventory, unusable=f"JAX_PLATFORMS is {platforms}")
    if not any(importlib.util.find_spec(plugin) for plugin in _PLUGINS[inventory.kind]):
        return replace(inventory, unusable="the JAX that is installed has no plugin for them")
    return inventory


def _say(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """What a tool prints; nothing where there is none, or it fails, as it does where there is no driver."""
    tool = shutil.which(command[0], path=environ.get("PATH"))
    if tool is None:
        return ""
    try:
        done = subprocess.run([tool, *command[1:]], capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"`{' '.join(command)}` did not answer within {_PATIENCE:.0f} s: nobody knows which devices this host "
            "has. Its driver may hang. To train without them, hide the tool from PATH."
        ) from None
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _tpu_files() -> list[Path]:
    """One for each chip: of the older driver, or of the newer one."""
    older = sorted(Path("/dev").glob("accel[0-9]*"))
    is_tpu_host = Path("/dev/vfio").is_dir() and Path("/run/tpu").exists()
    return older or (sorted(Path("/dev/vfio").glob("[0-9]*")) if is_tpu_host else [])

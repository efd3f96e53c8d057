"""What fixes a run's bits besides its data: members that differ here would compute different sums."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

import msgspec

from shoal.config import RunConfig

# Which of the processor's flags decide the kernels that XLA, oneDNN, MKL and OpenBLAS choose. The
# rest (virtualisation, mitigations) differ between machines that compute alike.
_KERNEL_FLAGS = ("sse4_2", "avx", "f16c", "fma", "amx_", "asimd", "sve", "bf16", "i8mm")
_CPUINFO = Path("/proc/cpuinfo")
_DISTRIBUTIONS = {
    "jax": ("jax",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly", "tf-nightly-cpu"),
    "torch": ("torch",),
    "keras": ("keras", "keras-nightly"),
    "numpy": ("numpy",),
}


class Identity(msgspec.Struct, frozen=True):
    """A run's numeric identity as one member sees it."""

    backend: str
    backend_version: str
    keras: str
    numpy: str
    threads: int
    pieces: int
    instructions: str  # the processor's maker and relevant flags
    mesh: str = "one device"

    @classmethod
    def of_this_process(cls, config: RunConfig) -> Identity:
        """Read from the installed packages and the processor. Imports none of them."""
        return cls(
            backend=config.backend,
            backend_version=installed_version(config.backend),
            keras=installed_version("keras"),
            numpy=installed_version("numpy"),
            threads=config.threads,
            pieces=config.pieces or config.workers,
            instructions=instruction_set(),
            mesh=(config.mesh or "one device") + (f" x {config.mesh_hosts} hosts" if config.mesh_hosts > 1 else ""),
        )

    def differences(self, mine: str, other: Identity, theirs: str) -> tuple[str, ...]:
        """One phrase per field that differs, with both values and whose they are. Empty: they agree."""
        return tuple(
            f"{name.replace('_', ' ')} is {ours!r} on {mine} and {others!r} on {theirs}"
            for name in self.__struct_fields__
            if (ours := getattr(self, name)) != (others := getattr(other, name))
        )


def installed_version(package: str) -> str:
    """The version of the distribution that provides this package, or "unknown"."""
    from importlib import metadata  # slow to import, and needed once per process

    for distribution in _DISTRIBUTIONS[package]:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def instruction_set() -> str:
    """This processor's architecture, and what decides numeric kernels: its maker (for MKL), and flags."""
    try:
        cpuinfo = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    return " ".join([platform.machine(), *kernel_choice(cpuinfo.splitlines())])


def kernel_choice(cpuinfo: Iterable[str]) -> list[str]:
    """The maker and the relevant flags, sorted, of the first processor in /proc/cpuinfo's lines."""
    maker: list[str] = []
    for line in cpuinfo:
        name, _, value = line.partition(":")
        if name.strip() in ("vendor_id", "CPU implementer") and not maker:
            maker = value.split()
        if name.strip() in ("flags", "Features"):
            return maker + sorted(flag for flag in value.split() if flag.startswith(_KERNEL_FLAGS))
    return maker

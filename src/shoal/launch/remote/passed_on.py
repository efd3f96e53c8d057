"""Which of the launcher's variables workers on other hosts get: those that change what is computed, and how. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.errors import UsageError

_PREFIXES = (
    "KERAS_",
    "JAX_",
    "XLA_",
    "TF_",
    "TORCH_",
    "PYTORCH_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "MALLOC_",
    "CUDA_",
    "NCCL_",
    "HF_",
    "LC_",
)
_NAMES = ("PYTHONPATH", "PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONUNBUFFERED", "NPROC", "LANG", "TZ")
# Of one host or of one process: on another they would be wrong.
_NEVER = ("TF_CONFIG", "JAX_COMPILATION_CACHE_DIR", "JAX_PROCESS_ID", "CUDA_VISIBLE_DEVICES", "HF_TOKEN", "KERAS_HOME")


def passed_on(environ: Mapping[str, str], asked: Sequence[str]) -> dict[str, str]:
    """Of these. `asked`: names that the user wants to be passed on, too; UsageError if one is not set."""
    for name in asked:
        if name not in environ:
            raise UsageError(f"--env {name}: there is no such variable in this environment.")
    return {
        name: value
        for name, value in environ.items()
        if name in asked or ((name in _NAMES or name.startswith(_PREFIXES)) and name not in _NEVER)
    }

"""A worker's environment: its threads, its memory, and JAX's compilation cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from shoal.cluster.identity import installed_version, instruction_set

# Who reads which: XLA takes NPROC before it counts cores (the number changes its bits); torch and every OpenMP
# library read OMP; TensorFlow its own two.
_THREAD_VARIABLES = (
    "NPROC",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)

# glibc gives large blocks back to the system and gets them anew, with a page fault for every 4 KiB, step after step:
# thousands of them, or none, depending on how a process's heap happens to lie. One arena that never shrinks has none.
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the most that glibc allows
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


# With it TensorFlow starts a cluster of its own as soon as it is imported, and fails where that does not fit.
_OF_A_CLUSTER = "TF_CONFIG"


def left_over(environ: Mapping[str, str]) -> str:
    """What the user should know about variables that workers do not get; empty if there are none."""
    if _OF_A_CLUSTER not in environ:
        return ""
    return f"{_OF_A_CLUSTER} is set; workers do not see it, since TensorFlow would start a cluster of its own"


def of_worker(environ: Mapping[str, str], threads: int, confined: bool, seed: int) -> dict[str, str]:
    """The launcher's environment and what this worker needs on top. `confined`: set its threads."""
    environment = dict(environ)
    if confined:
        environment.pop(_OF_A_CLUSTER, None)
        environment |= dict.fromkeys(_THREAD_VARIABLES, str(threads))
        environment = KEEP_MEMORY | environment  # what the user set counts more
        # The order of a set of strings must not differ between workers: it may be a vocabulary's.
        environment.setdefault("PYTHONHASHSEED", str(seed))
    if "JAX_COMPILATION_CACHE_DIR" not in environ:  # whatever the backend: a script may choose another itself
        environment["JAX_COMPILATION_CACHE_DIR"] = str(_jax_cache(environ, threads))
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    return environment


def _jax_cache(environ: Mapping[str, str], threads: int) -> Path:
    """Compiled programs differ by version, by threads and by processor: each kind has its own folder."""
    cache = environ.get("XDG_CACHE_HOME")
    home = Path(cache) if cache else Path("~/.cache").expanduser()
    processor = hashlib.sha256(instruction_set().encode()).hexdigest()[:8]
    return home / "shoal" / "jax" / f"{installed_version('jax')}-{threads}t-{processor}"

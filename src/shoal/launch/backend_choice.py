"""Which backend a run trains on: the one that Keras would choose."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from shoal.config import BACKENDS, Backend
from shoal.errors import UsageError
from shoal.launch.script import BACKEND, Reading

# Keras's own default comes first.
_BACKEND_ORDER = ("tensorflow", "jax", "torch")


def choose_backend(asked: str | None, script: Reading, environ: Mapping[str, str]) -> Backend:
    """As Keras would choose: the script, then the environment, then keras.json, then what is installed."""
    if asked:
        backend, source = asked, "--backend"
        if script.backend not in (None, asked):
            raise UsageError(
                f"--backend {asked}, but the script sets KERAS_BACKEND to {script.backend} ({script.where}). Leave "
                "one of them out."
            )
    elif script.backend:
        backend, source = script.backend, script.where
    elif environ.get(BACKEND):
        backend, source = environ[BACKEND], BACKEND
    elif configured := _configured_backend(config_file := _keras_json(environ)):
        backend, source = configured, str(config_file)
    else:
        installed = [name for name in _BACKEND_ORDER if importlib.util.find_spec(name)]
        if not installed:
            raise UsageError("no Keras backend is installed. Install one, for example `pip install shoal[jax]`.")
        backend, source = installed[0], "what is installed"
    if backend not in BACKENDS:
        raise UsageError(
            f"Shoal can't train on the backend {backend!r} (from {source}); it can on {', '.join(BACKENDS)}."
        )
    if importlib.util.find_spec(backend) is None:
        raise UsageError(
            f"the backend {backend} (from {source}) is not installed. "
            f"Install it with `pip install shoal[{backend}]`, or choose another with --backend."
        )
    return cast(Backend, backend)


def _keras_json(environ: Mapping[str, str]) -> Path:
    home = environ.get("KERAS_HOME")
    return (Path(home) if home else Path("~/.keras").expanduser()) / "keras.json"


def _configured_backend(path: Path) -> str | None:
    try:
        backend = json.loads(path.read_text(encoding="utf-8")).get("backend")
    except (OSError, ValueError, AttributeError):
        return None  # as Keras does: no file, or not one of its own
    return backend if isinstance(backend, str) else None

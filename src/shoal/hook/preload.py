"""Everything that a worker imports before its script begins, for a process from which workers are forked."""

from __future__ import annotations

import importlib
import os

from shoal.errors import UsageError
from shoal.hook.on_import import lighten_keras

_preloaded: list[str] = []  # the backend, once it is


def preload() -> None:
    """Imports keras with the backend that the environment says, and what trains on it. Starts no thread."""
    lighten_keras()
    from keras import backend

    importlib.import_module("shoal.hook.patches")
    importlib.import_module(f"shoal.hook.{backend.backend()}_engine")
    if backend.backend() == "jax":
        importlib.import_module("shoal.hook.compile_once")
    else:
        importlib.import_module("shoal.hook.late_tensorflow")
    _preloaded.append(backend.backend())


def check_backend() -> None:
    """Raises where a script has chosen another backend than the one that was imported before it began."""
    chosen = os.environ.get("KERAS_BACKEND")
    if _preloaded and chosen not in (None, _preloaded[0]):
        raise UsageError(
            f"KERAS_BACKEND was set to {chosen} in a module that the script imports; keras had been imported with "
            f"{_preloaded[0]} by then. Say it when you start the run: shoal run --backend {chosen} ..."
        )

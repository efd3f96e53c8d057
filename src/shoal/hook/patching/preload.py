"""Everything that a worker imports before its script begins, for a process from which workers are forked."""

from __future__ import annotations

import importlib

from shoal.hook.patching.on_import import lighten_keras


def preload() -> None:
    """Imports keras with the backend that the environment says, and what trains on it. Starts no thread."""
    lighten_keras()
    importlib.import_module("shoal.hook.patching.patches")
    from shoal.hook.backends import registry

    registry.current().preload()

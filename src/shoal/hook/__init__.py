"""The only room that imports keras or a backend: how a plain Keras script comes to train on many workers."""

from __future__ import annotations

import sys

from shoal.hook.on_import import lighten_keras, when_imported
from shoal.hook.run import Run


def install(run: Run) -> None:
    """From the moment that the script imports keras, its models train in this run."""

    def patch() -> None:
        from keras import backend

        from shoal.hook import compile_once, late_tensorflow, patches

        if backend.backend() == "jax":
            compile_once.install()
        if backend.backend() != "tensorflow":
            late_tensorflow.install()
        patches.install(run)

    when_imported("keras", patch)
    lighten_keras()


def leave_servers() -> None:
    """The script is over: servers that stayed for the sake of its tables may go."""
    if "shoal.hook.fit_store" in sys.modules:
        from shoal.hook.fit_store import leave_last

        leave_last()

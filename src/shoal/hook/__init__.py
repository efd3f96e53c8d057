"""The only room that imports keras or a backend: how a plain Keras script comes to train on many workers."""

from __future__ import annotations

import os
import sys
from typing import Any

from shoal.errors import UsageError
from shoal.hook.patching import library_files
from shoal.hook.patching.on_import import hold_back, lighten_keras, when_imported
from shoal.training.run import Run


def install(run: Run) -> None:
    """From the moment that the script imports keras, its models train in this run."""
    hook = _Hook(run)
    if run.backend is not None and "keras" in sys.modules:  # imported for all workers, before they began
        hook.arrive()
        hold_back("keras")
    when_imported("keras", hook.arrive, before=hook.choose_backend)
    if not run.is_plain:
        when_imported("tf_keras", _refuse_keras_2)
    if run.files is not None:
        library_files.install(run.files)
    lighten_keras()


def check(run: Run) -> None:
    """The script is over. Raises if there is a keras that Shoal knows nothing of: each worker trained by itself."""
    keras = sys.modules.get("keras")
    if not run.is_plain and keras is not None and not _is_hooked(keras):
        raise UsageError(
            "keras was imported in a way that Shoal did not see, so each worker has trained by itself. Something "
            "changes how Python imports modules (sys.meta_path): import keras before that. "
            f"It came from {keras.__spec__}."
        )


def leave_servers(run: Run) -> None:
    """The script is over: servers that stayed for the sake of its tables may go."""
    if "shoal.training.fit_store" in sys.modules:
        from shoal.training.fit_store import leave_last

        leave_last(run)


def end_group(run: Run) -> None:
    """The script is over: so are the other processes of this worker."""
    if run.mesh_hosts > 1 and "shoal.hook.mesh.process_group" in sys.modules:
        from shoal.hook.mesh.process_group import ProcessGroups

        run.memory.of(ProcessGroups).close()


class _Hook:
    """Keras in this process, and the run that its models train in."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._is_installed = False

    def choose_backend(self) -> None:
        """Just before keras is imported: a script that has chosen none gets the run's."""
        if self._run.backend is not None:
            os.environ.setdefault("KERAS_BACKEND", self._run.backend)

    def arrive(self) -> None:
        """Keras has been imported, perhaps not for the first time."""
        import keras

        self._check_backend(keras.backend.backend())
        if _is_hooked(keras) or (self._is_installed and self._run.is_plain):
            return
        if self._is_installed:
            raise UsageError(
                "keras was imported a second time, after it had been removed from sys.modules. Models of the first one "
                "train in this run, those of the second would not: import it once."
            )
        self._is_installed = True
        self._patch(keras)

    def _check_backend(self, imported: str) -> None:
        planned = self._run.backend
        chosen = os.environ.get("KERAS_BACKEND", imported)
        if self._run.is_plain or imported == chosen == planned:
            return
        raise UsageError(
            f"the script chose the backend {chosen if chosen != planned else imported} while it ran; this run was "
            f"started for {planned}. Say it when you start the run, with --backend {chosen}."
        )

    def _patch(self, keras: Any) -> None:
        from shoal.hook.backends import registry
        from shoal.hook.patching import patches

        registry.install()
        if self._run.mesh_hosts > 1 and not self._run.is_server:
            from shoal.hook.mesh.process_group import ProcessGroup, ProcessGroups

            groups, run = self._run.memory.of(ProcessGroups), self._run
            groups.group = ProcessGroup(run.me, run.mesh_hosts, run.give_up)
        patches.install(self._run)
        keras.Model.trains_with_shoal = True
        if not self._run.is_plain:
            keras.config.set_backend = self._set_backend

    def _set_backend(self, backend: str) -> None:
        """Instead of keras.config.set_backend, which would import keras anew."""
        os.environ["KERAS_BACKEND"] = backend
        self._check_backend(backend)


def _is_hooked(keras: Any) -> bool:
    return getattr(getattr(keras, "Model", None), "trains_with_shoal", False)


def _refuse_keras_2() -> None:
    from shoal.hook.patching import keras_2

    keras_2.refuse_training(sys.modules["tf_keras"])

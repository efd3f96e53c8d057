"""Installs the hook when the script imports keras, not before; imports what few scripts use when it is used.

A script may choose its backend by setting KERAS_BACKEND on its first line; importing keras earlier would take that
choice away.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Calls `act` once, right after the module `name` is imported; at once if it already is."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Watch(name, lambda _, loader: _then(loader, act)))


def when_used(name: str) -> None:
    """The module `name`, where it is imported from now on, is loaded by the first who wants something of it."""
    if name not in sys.modules:
        sys.meta_path.insert(0, _Watch(name, _lazily))


def without(name: str, importer: str, unless: Callable[[], bool]) -> None:
    """While the module `importer` is imported there is no module `name`, if it can do without, and nobody has it yet.

    `unless` is asked just before that.
    """
    if importer not in sys.modules:
        sys.meta_path.insert(0, _Watch(importer, lambda _, loader: _hiding(name, loader, unless)))


def lighten_keras() -> None:
    """Before keras is imported: what it imports for the sake of few is left to those."""
    when_used("keras.wrappers")  # for scikit-learn, whose import is a third of Keras's
    without("jax", "keras.src.callbacks.orbax_checkpoint", unless=_runs_on_jax)  # a callback that mends old versions


def _runs_on_jax() -> bool:
    """Asked while keras is being imported: the rest of it is not there yet."""
    backend = sys.modules.get("keras.src.backend")
    return backend is None or bool(backend.backend() == "jax")


class _Watch(importlib.abc.MetaPathFinder):
    """Finds one module as everyone else would, and changes how it is loaded."""

    def __init__(self, name: str, change: Callable[[ModuleSpec, importlib.abc.Loader], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._change(spec, spec.loader)
        return spec


def _then(loader: importlib.abc.Loader, act: Callable[[], None]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        act()

    loader.exec_module = exec_module  # type: ignore[method-assign]


def _hiding(name: str, loader: importlib.abc.Loader, unless: Callable[[], bool]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        if name in sys.modules or unless():
            load(module)
            return
        sys.modules[name] = None  # type: ignore[assignment]  # as Python says that it can't be imported
        try:
            load(module)
        finally:
            del sys.modules[name]

    loader.exec_module = exec_module  # type: ignore[method-assign]


def _lazily(spec: ModuleSpec, loader: importlib.abc.Loader) -> None:
    spec.loader = importlib.util.LazyLoader(loader)

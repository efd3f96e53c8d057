"""Installs the hook when the script imports keras, not before; imports what few scripts use when it is used.

A script may choose its backend by setting KERAS_BACKEND on its first line; importing keras earlier would take that
choice away.

One finder, the first of all, knows the modules that are waited for. Others may ask where a module is without importing
it (TensorFlow asks for keras), import it again (`importlib.reload`), or have finders of their own: it stays, asks them,
and changes what they find.
"""

from __future__ import annotations

import copy
import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from shoal.hook import keras_private

Change = Callable[[ModuleSpec, importlib.abc.Loader], None]  # of how a module is loaded


def when_imported(name: str, act: Callable[[], None], before: Callable[[], None] = lambda: None) -> None:
    """Calls `act` right after the module `name` is imported, every time that it is; at once if it already is.

    `before` is called before it is imported. What either raises, the import raises.
    """
    _finder().change(name, lambda _, loader: _around(loader, before, act))
    if name in sys.modules:
        act()


def when_used(name: str) -> None:
    """The module `name`, where it is imported from now on, is loaded by the first who wants something of it."""
    if name not in sys.modules:
        _finder().change(name, _lazily)


def without(name: str, importer: str, unless: Callable[[], bool]) -> None:
    """While the module `importer` is imported there is no module `name`, if it can do without, and nobody has it yet.

    `unless` is asked just before that.
    """
    if importer not in sys.modules:
        _finder().change(importer, lambda _, loader: _hiding(name, loader, unless))


def replaced(name: str, importer: str, make: Callable[[], ModuleType]) -> None:
    """While the module `importer` is imported, what is made stands for the module `name`, if nobody has that yet."""
    if importer not in sys.modules:
        _finder().change(importer, lambda _, loader: _replacing(name, loader, make))


def hold_back(package: str) -> None:
    """As if nobody had imported the package: who imports it gets what is there, and that is noticed as an import."""
    _finder().hold_back(package)


def lighten_keras() -> None:
    """Before keras is imported: what it imports for the sake of few is left to those."""
    when_used("keras.wrappers")  # for scikit-learn, whose import is a third of Keras's
    without("jax", keras_private.ORBAX_CALLBACK, unless=_may_run_on_jax)
    if "torch" not in sys.modules:  # whose compiler takes longer to import than all the rest of it
        when_imported(keras_private.COMPILE, keras_private.import_dynamo_late)
    for importer in keras_private.DYNAMO_IMPORTERS:
        replaced(keras_private.DYNAMO, importer, keras_private.late_dynamo)


def _may_run_on_jax() -> bool:
    return keras_private.backend_so_far() in (None, "jax")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as everyone else would, and changes how they are loaded."""

    def __init__(self) -> None:
        self._changes: dict[str, list[Change]] = {}
        self._held: dict[str, dict[str, ModuleType]] = {}  # package -> it and the modules in it
        self._asking = threading.local()

    def change(self, name: str, change: Change) -> None:
        changes = self._changes.setdefault(name, [])
        if change not in changes:
            changes.append(change)

    def hold_back(self, package: str) -> None:
        names = [name for name in sys.modules if name == package or name.startswith(f"{package}.")]
        self._held[package] = {name: sys.modules.pop(name) for name in names}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._changes:
            return None
        asking: set[str] = self._asking.__dict__.setdefault("names", set())
        if fullname in asking:
            return None
        asking.add(fullname)  # some finders begin anew, with the first of all
        try:
            spec = self._spec_of_held(fullname) or _ask_others(fullname, path, target)
        finally:
            asking.remove(fullname)
        if spec is not None and spec.loader is not None:
            for change in self._changes[fullname]:
                change(spec, spec.loader)
        return spec

    def _spec_of_held(self, package: str) -> ModuleSpec | None:
        if package not in self._held:
            return None
        spec = copy.copy(self._held[package][package].__spec__)
        assert spec is not None, "a package that was imported has one"
        spec.loader = _Held(self._held, package)
        return spec


class _Held(importlib.abc.Loader):
    """Loads a package that was held back."""

    def __init__(self, held: dict[str, dict[str, ModuleType]], package: str) -> None:
        self._held = held
        self._package = package
        self._spec = held[package][package].__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._held[self._package][self._package]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # Python has put the other one there
        sys.modules.update(self._held.pop(self._package))


def _finder() -> _Finder:
    found = next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)
    if found is None:
        found = _Finder()
        sys.meta_path.insert(0, found)
    return found


def _ask_others(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


def _around(loader: importlib.abc.Loader, before: Callable[[], None], act: Callable[[], None]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        before()
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


def _replacing(name: str, loader: importlib.abc.Loader, make: Callable[[], ModuleType]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        if name in sys.modules:
            load(module)
            return
        made = sys.modules[name] = make()
        try:
            load(module)
        finally:
            if sys.modules.get(name) is made:
                del sys.modules[name]

    loader.exec_module = exec_module  # type: ignore[method-assign]


def _lazily(spec: ModuleSpec, loader: importlib.abc.Loader) -> None:
    if spec.name not in sys.modules:  # a module that is loaded again was used
        spec.loader = importlib.util.LazyLoader(loader)

"""Keras is noticed however a script comes to it. Packages with its name stand for it: imports are Python's matter."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shoal.hook as hook
from shoal.errors import CannotDistribute, UsageError
from shoal.hook.patching.on_import import hold_back, when_imported

PACKAGES = {
    "keras/__init__.py": "from keras import backend, layers\n"
    "from keras.src.models import Model\nconfig = type('config', (), {})\n",
    "keras/backend.py": "import os\nname = os.environ.get('KERAS_BACKEND', 'tensorflow')\ndef backend(): return name\n",
    "keras/layers.py": "",
    "keras/src/__init__.py": "",
    "keras/src/models.py": "class Model: pass\n",
    "keras/src/optimizers.py": "",
    # As TensorFlow does: looks where keras is, then imports a part of it; `tf.keras` comes when it is used.
    "tensorflow/__init__.py": "import importlib.util\nimportlib.util.find_spec('keras')\n"
    "importlib.import_module('keras.src.optimizers')\n"
    "def __getattr__(name):\n    return importlib.import_module('keras')\n",
    "keras_zoo/__init__.py": "import keras.layers\n",
    "tf_keras/__init__.py": "class Model:\n    def fit(self): return 'trained'\nclass optimizers:\n"
    "    class Optimizer:\n        def apply_gradients(self): return 'applied'\n",
}


@dataclass
class Run:
    """As much of a run as the hook asks for."""

    backend: str | None = "tensorflow"
    is_plain: bool = False
    files: None = None
    patched: list[Any] = field(default_factory=list)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A Python that has imported none of the packages."""
    for name, text in PACKAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] in _tops()}
    for name in kept:
        del sys.modules[name]
    finders = list(sys.meta_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    run = Run()
    monkeypatch.setattr(hook._Hook, "_patch", _patch)
    monkeypatch.setattr(hook, "lighten_keras", lambda: None)
    yield run
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.split(".")[0] in _tops()]:
        del sys.modules[name]
    sys.modules.update(kept)
    os.environ.pop("KERAS_BACKEND", None)


def _tops() -> set[str]:
    return {name.split("/")[0] for name in PACKAGES}


def _patch(self: Any, keras: Any) -> None:
    self._run.patched.append(keras.Model)
    keras.Model.trains_with_shoal = True


def in_a_thread() -> None:
    thread = threading.Thread(target=importlib.import_module, args=("keras",))
    thread.start()
    thread.join()


def through_tensorflow() -> None:
    import tensorflow as tf

    assert tf.keras.Model


def after_a_look() -> None:
    spec = importlib.util.find_spec("keras")
    assert spec is not None
    assert spec.origin is not None
    importlib.import_module("keras")


class _FindsAnew(importlib.abc.MetaPathFinder):
    """As packages do that wait for others to be imported: asks everybody, itself not twice."""

    busy = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if self.busy or name != "keras":
            return None
        self.busy = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.busy = False


def behind_another_finder() -> None:
    sys.meta_path.insert(0, _FindsAnew())
    importlib.import_module("keras")


def before_another_finder() -> None:
    sys.meta_path.insert(1, _FindsAnew())
    importlib.import_module("keras")


STYLES: list[Callable[[], Any]] = [
    lambda: importlib.import_module("keras"),
    lambda: importlib.import_module("keras.src.models"),
    lambda: exec("from keras import layers"),
    lambda: importlib.import_module("keras_zoo"),
    in_a_thread,
    through_tensorflow,
    after_a_look,
    behind_another_finder,
    before_another_finder,
    lambda: importlib.reload(importlib.import_module("keras")),
]


@pytest.mark.parametrize("preloaded", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_keras_is_hooked_once_however_it_is_imported(
    world: Run, style: Callable[[], Any], preloaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if preloaded:
        monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
        importlib.import_module("keras")
    hook.install(world)
    assert "keras" not in sys.modules, "as in a Python of its own"
    style()
    assert world.patched == [sys.modules["keras"].Model]
    assert sys.modules["keras.layers"] is sys.modules["keras"].layers
    hook.check(world)


def test_what_was_held_back_is_given_out_whole_and_noticed(world: Run) -> None:
    keras, layers = importlib.import_module("keras"), importlib.import_module("keras.layers")
    spec, seen = keras.__spec__, []
    hold_back("keras")
    when_imported("keras", lambda: seen.append("keras"))
    assert not seen
    assert importlib.import_module("keras.layers") is layers
    assert (sys.modules["keras"], keras.__spec__, seen) == (keras, spec, ["keras"])


def test_a_script_that_chooses_no_backend_gets_the_runs(world: Run) -> None:
    world.backend = "jax"
    hook.install(world)
    assert importlib.import_module("keras").backend.backend() == "jax"


@pytest.mark.parametrize("preloaded", [False, True])
def test_a_script_that_chooses_another_backend_while_it_runs_is_told_where_to_say_it(
    world: Run, preloaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if preloaded:
        importlib.import_module("keras")
    hook.install(world)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(UsageError, match=r"chose the backend torch while it ran.*for tensorflow.*--backend torch"):
        importlib.import_module("keras")


def test_after_keras_is_imported_the_variable_says_nothing_any_more(
    world: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.install(world)
    importlib.import_module("keras")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    hook.check(world)
    assert len(world.patched) == 1


def test_one_worker_may_choose_whatever_it_likes(world: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    world.is_plain = True
    hook.install(world)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert importlib.import_module("keras").backend.backend() == "torch"


def test_a_second_keras_is_refused(world: Run) -> None:
    hook.install(world)
    importlib.import_module("keras")
    for name in [name for name in sys.modules if name.startswith("keras")]:
        del sys.modules[name]
    with pytest.raises(UsageError, match="imported a second time"):
        importlib.import_module("keras")


def test_a_keras_that_came_past_the_hook_ends_the_run(world: Run) -> None:
    hook.install(world)
    hook.check(world)
    sys.modules["keras"] = SimpleNamespace(Model=type("Model", (), {}), __spec__="nowhere")  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"each worker has trained by itself.*came from nowhere"):
        hook.check(world)
    world.is_plain = True
    hook.check(world)


def test_keras_2_may_be_imported_but_not_trained_with(world: Run) -> None:
    hook.install(world)
    tf_keras = importlib.import_module("tf_keras")
    with pytest.raises(CannotDistribute, match=r"test_on_import.py:\d+: fit\(\) of tf_keras.*Keras 2"):
        tf_keras.Model().fit()
    with pytest.raises(CannotDistribute, match=r"apply_gradients\(\) of tf_keras"):
        tf_keras.optimizers.Optimizer().apply_gradients()


def test_without_a_run_keras_2_is_left_alone(world: Run) -> None:
    world.is_plain = True
    hook.install(world)
    assert importlib.import_module("tf_keras").Model().fit() == "trained"

"""Private names of Keras and of the backends are used in one file, which says what happens when one is gone."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.hook import keras_private

SHOAL = Path(__file__).parents[2] / "src" / "shoal"
HOOK = SHOAL / "hook"
ALLOWED = (HOOK / "keras_private.py", HOOK / "data_private.py")

# Private by their place. `tf.__internal__` is found as an attribute.
PLACES = re.compile(r"keras\.src\b|\b(keras|jax|torch|tensorflow)(\.\w+)*\._[a-z]|tensorflow\.python\b|jaxlib\b")
NAME = re.compile(r"_[a-z]\w*")
PYTHONS = {"_replace", "_asdict"}  # of a NamedTuple


def is_private(name: str) -> bool:
    return bool(NAME.fullmatch(name)) or name == "__internal__"


class Found(ast.NodeVisitor):
    """Goes through a file. A private name is ours if a class of this file has it; on `self`, if one of the hook has."""

    def __init__(self, tree: ast.Module, of_hook: set[str]) -> None:
        self._of_file = names_of_classes(tree)
        self._of_hook = of_hook
        self._in_class = [False]
        self._docs = {id(doc) for doc in docstrings(tree)}
        self.names: list[tuple[int, str]] = []
        self.visit(tree)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._in_class.append(True)
        self.generic_visit(node)
        self._in_class.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A function outside of any class that calls its first argument `self` is put into somebody else's."""
        first = node.args.args[0].arg if node.args.args else ""
        foreign = first == "self" and not self._is_method(node)
        self._in_class.append(False if foreign else self._in_class[-1])
        self.generic_visit(node)
        self._in_class.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        on_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and self._in_class[-1]
        ours = self._of_hook if on_self else self._of_file
        if is_private(node.attr) and node.attr not in ours | PYTHONS:
            self._note(node, node.attr)
        self._place(node, dotted(node))
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._place(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._place(node, f"{node.module}.{alias.name}")

    def visit_Constant(self, node: ast.Constant) -> None:
        """As `getattr` and `sys.modules` are asked for them."""
        if isinstance(node.value, str) and id(node) not in self._docs:
            if is_private(node.value):
                self._note(node, node.value)
            self._place(node, node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Pieces of a text are no names; what it is made of may have some."""
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.visit(value)

    def _is_method(self, node: ast.FunctionDef) -> bool:
        return self._in_class[-1] and id(node) in self._methods

    def visit_Module(self, node: ast.Module) -> None:
        classes = (found for found in ast.walk(node) if isinstance(found, ast.ClassDef))
        self._methods = {id(part) for found in classes for part in found.body}
        self.generic_visit(node)

    def _place(self, node: ast.AST, text: str) -> None:
        if PLACES.search(text) and text.isprintable() and " " not in text:
            self._note(node, text)

    def _note(self, node: ast.AST, name: str) -> None:
        self.names.append((getattr(node, "lineno", 0), name))


def names_of_classes(tree: ast.Module) -> set[str]:
    """What the classes of a file define: methods, fields, and what their methods assign to `self`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    found.add(part.name)
                    found |= set(assigned_to_self(part))
                elif isinstance(part, ast.AnnAssign | ast.Assign):
                    targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                    found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def assigned_to_self(method: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            yield from [node.attr] if node.value.id in ("self", "cls") else []


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            yield body[0].value


def dotted(node: ast.expr) -> str:
    """`keras.src.utils`; empty for what begins with anything but a name."""
    if isinstance(node, ast.Attribute):
        return f"{before}.{node.attr}" if (before := dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


@functools.cache
def hook() -> dict[str, ast.Module]:
    """All files that may touch Keras, but for the one that may use its private names."""
    paths = [path for path in (*HOOK.rglob("*.py"), SHOAL / "layers.py") if path not in ALLOWED]
    return {str(path.relative_to(SHOAL)): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(paths)}


@functools.cache
def of_hook() -> set[str]:
    return {name for tree in hook().values() for name in names_of_classes(tree)}


def private_names(tree: ast.Module) -> list[tuple[int, str]]:
    """With their lines."""
    return Found(tree, of_hook() | names_of_classes(tree)).names


def test_private_names_of_keras_and_the_backends_are_in_one_file_only():
    found = {name: names for name, tree in hook().items() if (names := private_names(tree))}
    assert found == {}, "use them through shoal/hook/keras_private.py, which says what to do without them"


@pytest.mark.parametrize(
    "line",
    [
        "model._flatten_layers()",
        "optimizer._learning_rate = 1",
        "variable._value = value",
        'getattr(optimizer, "_iterations", None)',
        'name not in ("_variables",)',
        "def build(self, variables): self._backend_update_step(variables)",
        "class Mine(keras.layers.Layer):\n    def f(self): self._tracker.unlock()",
        "dataset._inputs()",
        "tf.__internal__.autograph",
        "keras.src.utils.is_default(method)",
        "from keras.src.saving import serialization_lib",
        "from keras import _tf_keras",
        "import tensorflow.python.util",
        "from jax._src import compilation_cache",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        'sys.modules["keras.src.backend"]',
    ],
)
def test_one_anywhere_else_is_found(line: str):
    assert private_names(ast.parse(line))


def test_our_own_are_none():
    ours = "class Mine:\n    def __init__(self): self._x = 1\n    def same(self, other): return other._x == self._x"
    theirs = "def f(self):\n    '''`keras.src` is theirs, and so is `_x`.'''\n    return f'{self.x}_x'"
    assert private_names(ast.parse(ours)) == private_names(ast.parse(theirs)) == []


class Keras17:
    """A model, a layer or an optimizer of a Keras that has none of the names."""

    def __init__(self) -> None:
        self.assigned: list[object] = []

    def assign(self, value: object) -> None:
        self.assigned.append(value)


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda it: keras_private.layers_in(it), "Keras17._flatten_layers"),
        (lambda it: keras_private.build_on(it, None), "Keras17._symbolic_build"),
        (lambda it: keras_private.compiled_parts(it), "Keras17._compile_metrics"),
        (lambda it: keras_private.first_epoch(it, 0, is_restored=True), "Keras17._initial_epoch"),
        (lambda it: keras_private.metrics_in_order(it, {}), "Keras17._flatten_metrics_in_order"),
        (lambda it: keras_private.replace_variables(it, [], lambda: None), "Keras17._untrack_variable"),
        (lambda it: keras_private.set_rate(it, None), "Keras17._learning_rate"),
        (lambda it: keras_private.count_of(it), "Keras17._iterations"),
        (lambda it: keras_private.place_of(it, None), "Keras17._get_variable_index"),
        (lambda it: keras_private.has_state_for(it, []), "Keras17._trainable_variables_indices"),
        (lambda it: keras_private.wrap_update(it, lambda update: update), "Keras17._backend_update_step"),
        (lambda it: keras_private.choose_direction(it), "Keras17._set_monitor_op"),
        (lambda it: keras_private.shards_of(it), "_inputs"),
    ],
)
def test_what_can_not_be_done_without_a_name_is_refused_with_the_versions_that_have_it(use, name: str):
    with pytest.raises(UsageError, match=rf"has no {name}, by which Shoal .* Use (Keras 3\.12 to|TensorFlow 2\.21)"):
        use(Keras17())


def test_what_can_be_done_without_a_name_is_done():
    it = Keras17()
    keras_private.set_values([it], [1.0])
    assert it.assigned == [1.0]
    assert keras_private.first_epoch(it, 3, is_restored=False) == 3
    assert keras_private.built_on(it) == []
    assert keras_private.excluded_from_decay(it, [it]) == ([False], None)
    assert keras_private.decays(it, it)
    assert not keras_private.is_default(it.assign)
    keras_private.begin_bar(it)
    keras_private.wait_for_callbacks(it)
    keras_private.track_again(it)

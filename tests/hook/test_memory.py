"""What outlives a call belongs to the process's one memory, not to modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.training.memory import Memory

SHOAL = Path(__file__).parents[2] / "src" / "shoal"
WEAK = ("WeakKeyDictionary", "WeakValueDictionary", "WeakSet")


class Part:
    def __init__(self) -> None:
        self.held: list[int] = []


def test_a_part_is_made_once_for_each_process_and_not_for_another():
    memory, other = Memory(), Memory()
    memory.of(Part).held.append(1)
    assert memory.of(Part).held == [1]
    assert other.of(Part).held == []


def state_of(tree: ast.Module) -> Iterator[str]:
    """What a module remembers by itself: empty containers, weak ones, and names that functions give other values."""
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        called = value.func if isinstance(value, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        empty = isinstance(value, ast.List | ast.Set) and not value.elts
        empty |= isinstance(value, ast.Dict) and not value.keys
        empty |= isinstance(value, ast.Call) and name in ("list", "dict", "set", "defaultdict") and not value.args
        if empty or name in WEAK:
            yield ast.unparse(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield ast.unparse(node)


@pytest.mark.parametrize("room", ["hook", "training"])
def test_no_module_remembers_anything_by_itself(room: str):
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((SHOAL / room).rglob("*.py"))}
    found = {str(path.relative_to(SHOAL)): list(state_of(tree)) for path, tree in trees.items()}
    assert {name: state for name, state in found.items() if state} == {}, "let it be a part of run.memory"


@pytest.mark.parametrize(
    "line",
    [
        "_tables: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()",
        "_staying: list[Any] = []",
        "_seen = set()",
        "def f():\n    global _is_server",
    ],
)
def test_one_that_does_is_found(line: str):
    assert list(state_of(ast.parse(line)))

"""On a worker: what the script that `shoal.run` wrote is made of.

It gathers what a function uses, calls it, and hands on what the function returned.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import linecache
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

from shoal import session
from shoal.launch.plain_data import Travels, check

MAIN = "__shoal_main__"  # what the caller's script is called here: what it guards with `__main__` does not run again


class Call:
    """One call of a function. `names`: those that it finds."""

    def __init__(self, names: dict[str, Any], script: str) -> None:
        self._names = names
        self._travels = Travels(Path(script).parent)
        self._given = self._travels.read("given", share=True)
        sys.argv[:] = self._given["argv"]
        sys.path[1:1] = [folder for folder in self._given["path"] if folder not in sys.path]

    def load(self, name: str, module: str, attribute: str = "") -> None:
        """A module, or something that is defined in one."""
        self._names[name] = _of(importlib.import_module(module), attribute)

    def load_script(self, name: str, file: str, attribute: str) -> None:
        """Something that is defined in the caller's script."""
        if MAIN not in sys.modules:
            spec = importlib.util.spec_from_file_location(MAIN, file)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[MAIN] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[MAIN])
        self._names[name] = _of(sys.modules[MAIN], attribute)

    def give(self, name: str) -> None:
        """Plain data."""
        self._names[name] = self._given["data"][name]

    def make(self, name: str, kind: str) -> None:
        """A dataclass's object, from its fields."""
        made = self._names[kind].__new__(self._names[kind])
        vars(made).update(self._given["data"][name])
        self._names[name] = made

    def define(self, file: str, line: int, text: str) -> None:
        """A function or a class of a notebook. Errors in it show the line that it has there."""
        if not Path(file).exists():
            self._show(file, line, text.splitlines(keepends=True))
        tree = ast.increment_lineno(ast.parse(text), line - 1)
        exec(compile(tree, file, "exec", flags=_annotations_as_text(), dont_inherit=True), self._names)

    def _show(self, file: str, line: int, text: list[str]) -> None:
        """Tracebacks show the lines of a file that is none."""
        lines = linecache.getlines(file)
        lines += ["\n"] * (line - 1 + len(text) - len(lines))
        lines[line - 1 : line - 1 + len(text)] = text
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)

    def answer(self, name: str) -> None:
        """Call it. What it returned is written down by whoever is the chief when all have come to their end."""
        function: Callable[..., Any] = self._names[name]
        given = self._given["args"]
        result = function(**given) if isinstance(given, dict) else function(*given)
        what = f"what {name}() returned"
        check(result, what)
        session.current().at_good_end = lambda: self._travels.write("result", result, what)


def _of(module: Any, attribute: str) -> Any:
    return reduce(getattr, attribute.split("."), module) if attribute else module


def _annotations_as_text() -> int:
    import __future__

    return __future__.annotations.compiler_flag

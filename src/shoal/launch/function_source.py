"""How a function comes to workers: as a script that finds, or defines, all that the function uses, and calls it.

A function of a module is imported there. One of the caller's script is found by running that script under another
name, as multiprocessing does. Of a notebook, or of another function, there is nothing to import: its text is taken
along, with the text of what it uses. That may be modules, whatever can be imported, functions and classes of the
notebook, and plain data. Nothing is pickled.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import linecache
import symtable
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from shoal.errors import UsageError
from shoal.launch import plain_data

_HEAD = '''"""Written by shoal.run: what {name}() uses, and the call."""

from shoal.launch.called import Call

_call = Call(globals(), __file__)
'''


def script_for(function: Any) -> tuple[str, dict[str, Any]]:
    """The text of the script, and the plain data that it is to be given. UsageError if something can't travel."""
    if not isinstance(function, FunctionType):
        raise UsageError(
            f"shoal.run() runs a function that was made with `def`, and got one that {plain_data.describe(function)}. "
            "Wrap it: def train(): ..."
        )
    name = function.__name__
    if name == "<lambda>":
        raise UsageError(
            "shoal.run() can't send a lambda: its text has no beginning and no end. Write def train(): ..."
        )
    collected = _Collected(name)
    collected.take(name, function)
    lines = [*collected.lines, f"_call.answer({name!r})"]
    return _HEAD.format(name=name) + "\n".join(lines) + "\n", collected.data


class _Collected:
    """All that a function uses, each thing after what it uses itself."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._taken: dict[str, Any] = {}
        self.lines: list[str] = []
        self.data: dict[str, Any] = {}

    def take(self, name: str, value: Any, user: FunctionType | type | None = None) -> None:
        """`user`: the function or class that uses it under this name."""
        if name in self._taken:
            if self._taken[name] is not value:
                raise UsageError(
                    f"{self._function}() and what it calls use two different things of the name {name}: on a worker "
                    "they share their names. Rename one."
                )
            return
        self._taken[name] = value
        if (line := _found(name, value)) is not None:
            self.lines.append(line)
        elif (definition := _definition(value)) is None:
            self.lines.append(self._give(name, value, user))
        elif definition.__name__ != name:
            self.take(definition.__name__, value, user)
            self.lines.append(f"{name} = {definition.__name__}")
        else:
            self._define(definition)

    def _give(self, name: str, value: Any, user: FunctionType | type | None) -> str:
        """Plain data, a dataclass of it; or what is in the module of whoever uses it."""
        assert user is not None
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            self.take(type(value).__name__, type(value), user)
            plain_data.check(vars(value), f"{user.__name__}() uses {name}, whose fields")
            self.data[name] = vars(value)
            return f"_call.make({name!r}, {type(value).__name__!r})"
        try:
            plain_data.check(value, f"{user.__name__}() uses {name}, which")
        except UsageError:
            if (line := _loaded(name, value, user.__module__, name)) is None:
                raise
            return line
        self.data[name] = value
        return f"_call.give({name!r})"

    def _define(self, definition: FunctionType | type) -> None:
        text, file, line = _source(definition)
        names = _names_of(definition)
        for name in sorted(_free_names(text)):
            if name in names:
                self.take(name, names[name], definition)
        self.lines.append(f"_call.define({file!r}, {line}, {text!r})")


# Where something can be found -------------------------------------------------------------------------


def _found(name: str, value: Any) -> str | None:
    """The line that finds it on a worker, if it can be found there."""
    if isinstance(value, ModuleType):
        return f"_call.load({name!r}, {value.__name__!r})" if value.__name__ != "__main__" else None
    module = getattr(value, "__module__", None) or ("numpy" if type(value).__name__ == "ufunc" else None)
    path = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return _loaded(name, value, module, path) if isinstance(module, str) and isinstance(path, str) else None


def _loaded(name: str, value: Any, module: str, path: str) -> str | None:
    """The same, for something that would have to be at this place."""
    if not _is_there(module, path, value):
        return None
    if module != "__main__":
        return f"_call.load({name!r}, {module!r}, {path!r})"
    file = getattr(sys.modules["__main__"], "__file__", None)
    return f"_call.load_script({name!r}, {str(Path(file).absolute())!r}, {path!r})" if file else None


def _is_there(module: str, path: str, value: Any) -> bool:
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is value


# What has to be defined -------------------------------------------------------------------------------


def _definition(value: Any) -> FunctionType | type | None:
    """The function or class whose text makes this value: itself, or what its decorators are around."""
    for inner in (getattr(value, "__wrapped__", None), getattr(value, "python_function", None)):
        if isinstance(inner, FunctionType) and (found := _locate(inner)) is not None and found.node.decorator_list:
            return inner
    return value if isinstance(value, FunctionType | type) else None


class _Located(NamedTuple):
    """A definition in a file."""

    node: ast.FunctionDef | ast.ClassDef
    file: str
    lines: list[str]


def _locate(definition: FunctionType | type) -> _Located | None:
    for file in _files_of(definition):
        text = "".join(linecache.getlines(file))
        try:
            node = _node_of(definition, ast.parse(text))
        except SyntaxError:
            continue
        if node is not None:
            return _Located(node, file, text.splitlines(keepends=True))
    return None


def _source(definition: FunctionType | type) -> tuple[str, str, int]:
    """Its text, decorators included, the file it is from, and the line there."""
    found = _locate(definition)
    if found is None:
        raise UsageError(
            f"the text of {definition.__name__} can't be found, so it can't be sent to workers. Define it in a "
            "notebook's cell, in the script, or in a module."
        )
    first = _first_line(found.node)
    return textwrap.dedent("".join(found.lines[first - 1 : found.node.end_lineno])), _shown(found.file), first


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _node_of(definition: FunctionType | type, tree: ast.Module) -> ast.FunctionDef | ast.ClassDef | None:
    """The last definition of that name; of a function, the one at its line."""
    kinds = ast.FunctionDef | ast.ClassDef
    named = [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == definition.__name__]
    if isinstance(definition, FunctionType):
        line = definition.__code__.co_firstlineno
        named = [node for node in named if line in (_first_line(node), node.lineno)]
    return named[-1] if named else None


def _files_of(definition: FunctionType | type) -> Iterator[str]:
    """Where its text may be. Python does not remember where a class is from; its methods do."""
    for function in _functions_of(definition):
        yield function.__code__.co_filename
    if isinstance(definition, type):  # one without methods is in some cell: in the newest
        yield from reversed([file for file in linecache.cache if _cell(file) is not None])


def _names_of(definition: FunctionType | type) -> Mapping[str, Any]:
    """What the names in its text stand for."""
    names: dict[str, Any] = dict(vars(sys.modules.get(definition.__module__, builtins)))
    if isinstance(definition, type):
        names.update({base.__name__: base for base in reversed(definition.__mro__[1:])})
    for function in _functions_of(definition):
        names.update(function.__globals__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        names.update({name: cell.cell_contents for name, cell in cells if name != "__class__" and _is_full(cell)})
    return names


def _functions_of(definition: FunctionType | type) -> Iterator[FunctionType]:
    """Itself, or a class's methods; not those that a decorator (dataclass) has written."""
    members = [definition] if isinstance(definition, FunctionType) else vars(definition).values()
    for member in members:
        function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
        if isinstance(function, FunctionType) and function.__code__.co_filename != "<string>":
            yield function


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False  # it is defined later


def _free_names(text: str) -> set[str]:
    """Names in a text that it does not define itself. What only annotations say is never looked at."""
    bare = ast.unparse(_WithoutAnnotations().visit(ast.parse(text)))
    names: set[str] = set()
    tables = [symtable.symtable(bare, "text", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        is_outermost = table.get_type() == "module"
        names |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if (_is_only_read(symbol) if is_outermost else symbol.is_global())
        }
    return names


def _is_only_read(symbol: symtable.Symbol) -> bool:
    return symbol.is_referenced() and not symbol.is_assigned()


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


# Notebooks --------------------------------------------------------------------------------------------


def _shown(file: str) -> str:
    """How a cell is called in IPython's own tracebacks."""
    number = _cell(file)
    return file if number is None else f"Cell In[{number}]"


def _cell(file: str) -> int | None:
    """The number of the cell that this file stands for, which IPython keeps in a private place; None without it."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    known: Mapping[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return known.get(file)

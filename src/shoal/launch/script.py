"""The script: where it is, and what its text says about its backend before anybody runs it."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from shoal.errors import UsageError

BACKEND = "KERAS_BACKEND"
_IMPORT_KERAS = ("keras", "tensorflow", "tf_keras")  # these, and packages that are named after them
# In a statement that is not understood: sets or removes a variable, or says which backend; reading others is no matter.
_CHANGES_ENVIRONMENT = re.compile(
    r"environ\s*(\[[^]]*\]\s*=[^=]|\.(setdefault|update|pop|clear)\b|\|=)|del\s.*environ|putenv|dotenv|KERAS_BACKEND"
)


# Where it is ------------------------------------------------------------------------------------------


def find_script(script: str, is_module: bool) -> str:
    """The script's absolute path, or the module's name, once it is sure that there is one."""
    if is_module:
        _find_module(script)
        return script
    return _check_script(script)


def script_file(script: str, is_module: bool) -> Path:
    """The file whose text is executed, of what `find_script` has found."""
    if is_module:
        return Path(_find_module(script).origin or "")
    return Path(script) / "__main__.py" if Path(script).is_dir() else Path(script)


def _check_script(script: str) -> str:
    path = Path(script)
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UsageError(f"{script} is a folder without a __main__.py; expected a Python script.")
    if not path.exists():
        raise UsageError(f"there is no script {script} (looked for {path.absolute()}).")
    if not os.access(path, os.R_OK):
        raise UsageError(f"the script {script} can't be read by this user.")
    return str(path.absolute())


def _find_module(name: str) -> ModuleSpec:
    """Look for the module without importing it or its packages."""
    path: list[str] | None = [os.getcwd(), *sys.path]
    spec = None
    for depth, part in enumerate(parts := name.split(".")):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]) if part else "", path)
        if spec is None:
            raise UsageError(f"there is no module {name} on Python's path or in {os.getcwd()}.")
        path = list(spec.submodule_search_locations or ())
    assert spec is not None
    if not path:
        return spec
    main = PathFinder.find_spec(f"{name}.__main__", path)
    if main is None:
        raise UsageError(f"{name} is a package without a __main__.py and can't be run with -m.")
    return main


# What its text says -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """What a script does to its environment before it imports keras, as far as its text tells."""

    backend: str | None = None  # what it sets KERAS_BACKEND to; None: it does not, or the text can't tell
    where: str = ""  # the file and line of that
    leaves_environment: bool = False  # for certain it changes nothing else that backends read when they are imported


def read_script(script: str, is_module: bool, environ: Mapping[str, str]) -> Reading:
    """Follows the statements of the script, and of modules beside it that it imports, up to where keras is imported."""
    if is_module:
        reader = _Reader(Path.cwd(), environ)
        reader.read_packages(script)
    else:
        reader = _Reader(script_file(script, False).parent, environ)
    reader.read(script_file(script, is_module), is_main=True)
    return reader.reading()


class _Unknown(Exception):
    """What an expression is can't be told from the text."""


_UNKNOWN: Any = object()  # the value of a variable


class _Reader:
    """Goes through the text as Python would, and gives up on what it does not understand."""

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self._home = home  # where modules of the script's own are
        self._environ: dict[str, Any] = dict(environ)
        self._changed: set[str] = set()  # variables
        self._is_certain = True
        self._where = ""
        self._read: set[Path] = set()
        self._has_keras = False

    def reading(self) -> Reading:
        chosen = self._environ.get(BACKEND) if BACKEND in self._changed else None
        return Reading(
            chosen if isinstance(chosen, str) else None,
            self._where,
            self._is_certain and self._changed <= {BACKEND} and chosen is not _UNKNOWN,
        )

    def read_packages(self, module: str) -> None:
        """Those of a module, which Python runs before it."""
        self._read_all(self._files(self._home, module.split(".")[:-1]))

    def read(self, path: Path, is_main: bool = False) -> None:
        if path in self._read:
            return
        self._read.add(path)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
            statements = ast.parse(text).body
        except (OSError, SyntaxError, ValueError):
            self._is_certain = False
            return
        _Module(self, path, text, is_main).follow(statements)

    def shown(self, path: Path) -> str:
        return str(path.relative_to(self._home) if path.is_relative_to(self._home) else path)

    # The environment ----------------------------------------------------------------------------------

    def get(self, name: str, default: Any = None) -> Any:
        value = self._environ.get(name, default)
        if value is _UNKNOWN:
            raise _Unknown
        return value

    def has(self, name: str) -> bool:
        return self.get(name) is not None

    def set(self, name: str, value: Any, where: str) -> None:
        """None removes it. What happens once keras is imported does not matter."""
        if self._has_keras:
            return
        self._changed.add(name)
        self._environ[name] = value
        if name == BACKEND:
            self._where = where

    def choose(self, backend: Any, where: str) -> None:
        """By keras.config.set_backend, which matters after the import as well."""
        self._changed.add(BACKEND)
        self._environ[BACKEND] = backend
        self._where = where

    def give_up_on(self, text: str) -> None:
        """A statement that was not understood: it may do something to the environment."""
        if not self._has_keras and _CHANGES_ENVIRONMENT.search(text):
            self._is_certain = False

    # Imports ------------------------------------------------------------------------------------------

    def import_module(self, folder: Path | None, name: str, members: Iterable[str] = ()) -> None:
        """`folder`: where a relative import begins."""
        parts = name.split(".") if name else []
        files = self._files(folder or self._home, parts)
        for member in members:
            files += self._files(folder or self._home, [*parts, member])
        if files:
            self._read_all(files)
        elif folder is None and name.startswith(_IMPORT_KERAS):
            self._has_keras = True

    def _read_all(self, files: Iterable[Path]) -> None:
        for file in files:
            self.read(file)

    def _files(self, folder: Path, parts: list[str]) -> list[Path]:
        """What Python runs to import a module, if it is one of the script's own."""
        found = []
        for part in parts:
            module, folder = folder / f"{part}.py", folder / part
            if (folder / "__init__.py").is_file():
                found.append(folder / "__init__.py")
            elif module.is_file():
                return [*found, module]
            elif not folder.is_dir():
                break
        return found


class _Module:
    """One file's statements, and what its names stand for where that is a constant."""

    def __init__(self, reader: _Reader, path: Path, text: str, is_main: bool) -> None:
        self._reader = reader
        self._path = path
        self._text = text
        self._names: dict[str, Any] = {"__name__": "__main__" if is_main else path.stem}

    def follow(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            try:
                self._follow(statement)
            except _Unknown:
                self._pass_over(statement)

    def _follow(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import(names):
                for name in names:
                    self._reader.import_module(None, name.name)
            case ast.ImportFrom(module, names, level):
                folder = self._path.parents[level - 1] if level else None
                self._reader.import_module(folder, module or "", [name.name for name in names])
            case ast.If(test, body, orelse):
                self.follow(body if self._value(test) else orelse)
            case ast.Assign([ast.Name(name)], value):
                self._names[name] = self._value(value)
            case ast.Assign([ast.Subscript(holder, key)], value) if _is_environ(holder):
                self._set(key, value)
            case ast.Delete([ast.Subscript(holder, key)]) if _is_environ(holder):
                self._reader.set(self._text_of(key), None, self._at(key))
            case ast.AugAssign(holder, ast.BitOr(), ast.Dict(keys, values)) if _is_environ(holder):
                self._update(keys, values)
            case ast.Expr(ast.Call(ast.Attribute(holder, method), arguments, keywords)):
                self._call(holder, method, arguments, keywords)
            case _:
                raise _Unknown

    def _call(self, holder: ast.expr, method: str, arguments: list[ast.expr], keywords: list[ast.keyword]) -> None:
        match method, arguments:
            case "setdefault", [key, value] if _is_environ(holder):
                if not self._reader.has(self._text_of(key)):
                    self._set(key, value)
            case "pop", [key, *_] if _is_environ(holder):
                self._reader.set(self._text_of(key), None, self._at(key))
            case "update", [] if _is_environ(holder):
                for word in keywords:
                    self._set(ast.Constant(word.arg, lineno=word.lineno), word.value)
            case "update", [ast.Dict(keys, values)] if _is_environ(holder) and not keywords:
                self._update(keys, values)
            case "set_backend", [value] if isinstance(holder, ast.Attribute) and holder.attr == "config":
                self._reader.choose(self._value(value), self._at(value))
            case _:
                raise _Unknown

    def _update(self, keys: Iterable[ast.expr | None], values: Iterable[ast.expr]) -> None:
        for key, value in zip(keys, values, strict=True):
            if key is None:
                raise _Unknown
            self._set(key, value)

    def _set(self, key: ast.expr, value: ast.expr) -> None:
        try:
            found = self._value(value)
        except _Unknown:
            found = _UNKNOWN
        self._reader.set(self._text_of(key), found, self._at(key))

    def _pass_over(self, statement: ast.stmt) -> None:
        """What it gives to names is not known any more."""
        self._reader.give_up_on(ast.get_source_segment(self._text, statement) or "")
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._names.pop(node.id, None)

    # Expressions --------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name) if name in self._names:
                return self._names[name]
            case ast.Subscript(holder, key) if _is_environ(holder):
                return self._reader.get(self._text_of(key))
            case ast.Call(ast.Attribute(holder, "get"), [key, *default]) if _is_environ(holder):
                return self._reader.get(self._text_of(key), *map(self._value, default))
            case ast.Call(ast.Attribute(_, "getenv") | ast.Name("getenv"), [key, *default]):
                return self._reader.get(self._text_of(key), *map(self._value, default))
            case ast.Compare(key, [ast.In() | ast.NotIn() as how], [holder]) if _is_environ(holder):
                return self._reader.has(self._text_of(key)) == isinstance(how, ast.In)
            case ast.Compare(left, [ast.Eq() | ast.NotEq() as how], [right]):
                return (self._value(left) == self._value(right)) == isinstance(how, ast.Eq)
            case ast.UnaryOp(ast.Not(), operand):
                return not self._value(operand)
            case _:
                raise _Unknown

    def _text_of(self, node: ast.expr) -> str:
        value = self._value(node)
        if not isinstance(value, str):
            raise _Unknown
        return value

    def _at(self, node: ast.expr) -> str:
        return f"{self._reader.shown(self._path)}:{node.lineno}"


def _is_environ(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(_, "environ") | ast.Name("environ"):
            return True
        case _:
            return False

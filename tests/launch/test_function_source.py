"""The script that brings a function to workers: where things are found, what is defined there, what can't be sent."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.launch import function_source
from shoal.launch.called import Call
from shoal.launch.function_source import script_for
from shoal.launch.plain_data import Travels

RATE = 0.5
UNSENDABLE = object()


def of_module(x: float) -> float:
    return x * RATE


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def called(folder: Path, function: Any, *args: Any) -> Any:
    """What the function returns where nothing is known but the script and what it is given."""
    text, data = script_for(function)
    Travels(folder).write("given", {"data": data, "args": list(args), "path": [], "argv": ["train.py"]}, "args")
    script = folder / "train.py"
    script.write_text(text)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    before = Call.answer
    try:
        Call.answer = lambda self, name: names.update(returned=names[name](*args))  # without a run
        exec(compile(text, str(script), "exec"), names)
    finally:
        Call.answer = before
    return names["returned"]


def test_a_function_of_a_module_is_found_there():
    text, data = script_for(of_module)
    assert f"_call.load('of_module', {__name__!r}, 'of_module')" in text
    assert not data


def test_a_function_within_another_comes_with_all_that_it_uses(tmp_path):
    table = {"a": np.arange(3.0)}
    scale = 2

    def helper(x: NoSuchName) -> float:  # type: ignore[name-defined]  # noqa: F821
        return math.sqrt(x) * scale

    @dataclass
    class Point:
        x: float

        def far(self) -> float:
            return helper(self.x) + UNSENDABLE_NUMBER

    class Nearer(Point):
        def far(self) -> float:
            return super().far() - 1

    @logged
    def inner(x: float, power: float = RATE) -> float:
        def deeper() -> float:
            return Nearer(x).far() + x**power

        return deeper() + float(table["a"].sum()) + np.float64(0) + of_module(2)

    def train(x: float) -> tuple[float, str]:
        RATE = "local"  # of another meaning than the module's
        return inner(x), RATE

    expected = train(16.0)
    assert expected == (8 + 4 + 3 + 1 - 1 + 1, "local")
    text, data = script_for(train)
    assert data.keys() == {"table", "scale", "RATE", "UNSENDABLE_NUMBER"}
    assert "_call.load('math', 'math')" in text
    assert called(tmp_path, train, 16.0) == expected


UNSENDABLE_NUMBER = 1


def test_a_dataclass_is_made_anew_from_its_fields(tmp_path):
    @dataclass(frozen=True)
    class Config:
        rate: float = 0.1

        def double(self) -> float:
            return 2 * self.rate

    config = Config(0.3)

    def train() -> float:
        return config.double()

    assert called(tmp_path, train) == 0.6


def test_what_can_not_travel_but_is_in_a_module_is_taken_from_there(tmp_path):
    def train() -> bool:
        return UNSENDABLE is not None

    text, _ = script_for(train)
    assert f"_call.load('UNSENDABLE', {__name__!r}, 'UNSENDABLE')" in text
    assert called(tmp_path, train) is True


def test_errors_show_the_lines_where_they_were_written(tmp_path):
    def train() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as raised:
        called(tmp_path, train)
    last = raised.traceback[-1]
    assert str(last.path) == __file__
    assert last.lineno + 1 == train.__code__.co_firstlineno + 1


def test_other_names_of_functions_are_known_too(tmp_path):
    def build(x: int) -> int:
        return x + 1

    make = build

    def train(x: int) -> int:
        return make(x) + build(x)

    assert called(tmp_path, train, 1) == 4
    wrapped = logged(build)  # by a call, which the text of build does not tell

    def other() -> Any:
        return wrapped

    with pytest.raises(UsageError, match="can't be found"):
        script_for(other)


def test_functions_that_call_each_other_are_sent_once(tmp_path):
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n > 0 and even(n - 1)

    assert script_for(even)[0].count("_call.define") == 2
    assert called(tmp_path, even, 10) is True


def test_what_can_not_be_sent_is_named():
    model = object()

    def train() -> object:
        return model

    with pytest.raises(UsageError, match=r"train\(\) uses model, which is of the type object, which can't travel"):
        script_for(train)
    with pytest.raises(UsageError, match="can't send a lambda"):
        script_for(lambda: 0)
    with pytest.raises(UsageError, match=r"runs a function that was made with `def`.*type partial of functools"):
        script_for(functools.partial(of_module, 1))
    names: dict[str, Any] = {}
    exec("def train(): pass", names)
    with pytest.raises(UsageError, match="the text of train can't be found"):
        script_for(names["train"])


def test_two_things_of_one_name_are_refused():
    def make(rate: float) -> Any:
        def step() -> float:
            return rate

        return step

    one, other = make(1.0), make(2.0)

    def train() -> float:
        return one() + other()

    with pytest.raises(UsageError, match="use two different things of the name"):
        script_for(train)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(a, b=c): return a + d", {"c", "d"}),
        ("def f():\n    x = 1\n    return [x * y for y in z]", {"z"}),
        ("@g\nclass C(B):\n    n = m\n    def f(self): return self.n + k + len([])", {"g", "B", "m", "k", "len"}),
        ("def f(a: A) -> B:\n    c: C = 1\n    return c", set()),
        ("def f():\n    global g\n    g = h", {"g", "h"}),
        ("async def f(a: A): return await b", {"b"}),
    ],
)
def test_free_names(text, names):
    assert function_source._free_names(text) == names

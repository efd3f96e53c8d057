"""A training step on JAX, taken apart where it applies its optimizers.

A step is a function of the leaves of its state and of its inputs. It is traced once to find out what depends on what;
then each part is a program of its own: the whole step, with the results of the earlier applies as inputs. The compiler
removes what the part does not give out.

    part k      leaves, results of applies 0 … k-1, batch  →  gradients for apply k, and what else is known by then
    update k    the values that apply k was given, summed gradients  →  its results
    the rest    leaves, results of all applies  →  weights that the step itself computes from updated ones
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax.extend.core import ClosedJaxpr, Literal, Primitive

from shoal.errors import CannotDistribute
from shoal.hook.backends.cut import Apply
from shoal.training.logs import Logs

_DATA = 1  # the first bit of what a value depends on: the batch, or anything else that differs from piece to piece

_applied = Primitive("shoal_applied")  # stands in a traced step where an optimizer gave its results
_applied.multiple_results = True
_applied.def_abstract_eval(lambda *avals, **_: avals)

_added = Primitive("shoal_added")  # and where a metric gave the new values of its variables
_added.multiple_results = True
_added.def_abstract_eval(lambda *avals: avals)

Take = Callable[[Apply], tuple[list[Any], list[Any]]]
# The step, with somebody who takes its applies, on leaves and inputs: its logs and the new leaves.
Step = Callable[[Take, Sequence[Any], Any], tuple[Logs, list[Any]]]


class Leaf(NamedTuple):
    """One of the step's leaves, as it came."""

    number: int


class Updated(NamedTuple):
    """What an apply gave."""

    apply: int
    number: int  # among its variables, then its state


class Value(NamedTuple):
    """A value in a traced step."""

    source: Leaf | Updated | None  # None: the step computes it
    depends: int  # bits: on data, then on each of the applies
    dtype: str
    shape: tuple[int, ...]
    adds: bool  # a metric's variable: pieces add to it

    @property
    def on_data(self) -> bool:
        return bool(self.depends & _DATA)

    @property
    def part(self) -> int:
        """The first part that knows it: the one after the last apply that it depends on."""
        return (self.depends >> 1).bit_length()


class TracedApply(NamedTuple):
    """What an optimizer is given."""

    optimizer: Any
    variables: list[Value]
    state: list[Value]
    gradients: list[Value]


class Traced(NamedTuple):
    """What a step does."""

    applies: list[TracedApply]
    leaves: list[Value]  # the new ones
    logs: dict[str, Value]

    def root(self, value: Value) -> int | None:
        """The leaf that a value was, before it was updated; None if the step has made something else of it."""
        match value.source:
            case Leaf(number):
                return number
            case Updated(apply, number):
                given = self.applies[apply]
                return self.root([*given.variables, *given.state][number])
        return None


def trace(step: Step, leaves: Sequence[Any], inputs: Any, differs: Sequence[bool]) -> Traced:
    """What depends on what. `differs`: which of the inputs (a flat list of them) differ from piece to piece."""
    applies: list[Apply] = []
    names: list[str] = []

    def whole(leaves: Sequence[Any], inputs: Any) -> Any:
        def take(apply: Apply) -> tuple[list[Any], list[Any]]:
            given = _applied.bind(*apply.variables, *apply.state, number=len(applies))
            applies.append(apply)
            return given[: len(apply.variables)], given[len(apply.variables) :]

        with _marked_metrics():
            logs, new = step(take, leaves, inputs)
        names.extend(logs)
        told = [(a.variables, a.state, [to_single(gradient) for gradient in a.gradients]) for a in applies]
        return told, new, [jnp.asarray(value) for value in logs.values()]

    closed, shapes = jax.make_jaxpr(whole, return_shape=True)(list(leaves), inputs)
    values = iter(_values(closed.jaxpr, len(leaves), differs, jax.tree.leaves(shapes)))
    told, new, logs = jax.tree.map(lambda _: next(values), shapes)
    if sum(equation.primitive is _applied for equation in closed.jaxpr.eqns) != len(applies):
        raise CannotDistribute("an optimizer is applied inside of jax.jit, a loop or a condition")
    return Traced(
        [TracedApply(apply.optimizer, *given) for apply, given in zip(applies, told, strict=True)],
        new,
        dict(zip(names, logs, strict=True)),
    )


class Programs:
    """The compiled programs of a traced step."""

    def __init__(self, step: Step, traced: Traced, compiled: bool) -> None:
        self._step = step
        self.traced = traced
        self._jit: Any = jax.jit if compiled else _as_is

    def part(
        self, number: int, leaves: Sequence[int], logs: Sequence[str], shardings: Any = None
    ) -> Callable[[Sequence[Any], Sequence[Any], Any], tuple[list[Any], list[Any], list[Any]]]:
        """Gradients of apply `number`, and the new leaves and the logs that are asked for.

        A function of (leaves, results of the applies before it, inputs). `shardings`: how the gradients lie on devices.
        """

        def run(given: Sequence[Any], results: Sequence[Any], inputs: Any) -> tuple[list[Any], list[Any], list[Any]]:
            taken: list[Apply] = []
            told, new = self._step(_taking(results, taken), given, inputs)
            gradients = [to_single(gradient) for gradient in taken[number].gradients] if number < len(taken) else []
            return gradients, [new[i] for i in leaves], [jnp.asarray(told[name]) for name in logs]

        lie = {} if shardings is None or self._jit is _as_is else {"out_shardings": (shardings, None, None)}
        program: Callable[..., tuple[list[Any], list[Any], list[Any]]] = self._jit(run, **lie)
        return program

    def computed(self, number: int) -> Callable[[Sequence[Any], Sequence[Any], Any], list[Any]] | None:
        """What the step itself computes for apply `number`, from what is alike for all pieces; past the last one: for
        its new leaves. None if it computes nothing of the kind. Arguments as for `part`; the batch does not matter.
        """
        if not any(map(is_derived, self._given(number))):
            return None

        def run(given: Sequence[Any], results: Sequence[Any], inputs: Any) -> list[Any]:
            taken: list[Apply] = []
            _, new = self._step(_taking(results, taken), given, inputs)
            values = [*taken[number].variables, *taken[number].state] if number < len(taken) else new
            return [value for value, about in zip(values, self._given(number), strict=True) if is_derived(about)]

        program: Callable[..., list[Any]] = self._jit(run)
        return program

    def resolve(self, number: int, leaves: Sequence[Any], results: Sequence[Any], computed: Sequence[Any]) -> list[Any]:
        """The values that apply `number` is given, or the new leaves; None for what only an exchange can tell."""
        supply = iter(computed)
        return [_resolve(about, leaves, results, supply) for about in self._given(number)]

    def _given(self, number: int) -> list[Value]:
        if number == len(self.traced.applies):
            return self.traced.leaves
        apply = self.traced.applies[number]
        return [*apply.variables, *apply.state]


def is_derived(value: Value) -> bool:
    """Whether the step computes it from updated weights and nothing else: every worker can do that by itself."""
    return value.source is None and not value.on_data and value.part > 0


def _resolve(value: Value, leaves: Sequence[Any], results: Sequence[Any], computed: Iterator[Any]) -> Any:
    match value.source:
        case Leaf(number):
            return leaves[number]
        case Updated(apply, number):
            return results[apply][number]
    return next(computed) if is_derived(value) else None


def _taking(results: Sequence[Any], taken: list[Apply]) -> Take:
    """Gives what earlier applies gave; to later ones what they were given: nothing that depends on it is asked for."""

    def take(apply: Apply) -> tuple[list[Any], list[Any]]:
        number = len(taken)
        taken.append(apply)
        given = results[number] if number < len(results) else [*apply.variables, *apply.state]
        return list(given[: len(apply.variables)]), list(given[len(apply.variables) :])

    return take


def _as_is(function: Any) -> Any:
    """Instead of `jax.jit`, under `run_eagerly`."""
    return function


def to_single(gradient: Any) -> Any:
    """Half-precision gradients are summed in float32."""
    return gradient.astype(jnp.float32) if gradient.dtype in (jnp.bfloat16, jnp.float16) else gradient


@contextlib.contextmanager
def _marked_metrics() -> Iterator[None]:
    """While a step is traced: what metrics make of their variables is marked."""
    original = keras.Metric.stateless_update_state

    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _added.bind(*original(self, *args, **kwargs))

    keras.Metric.stateless_update_state = marked
    try:
        yield
    finally:
        keras.Metric.stateless_update_state = original


def _values(jaxpr: Any, leaves: int, differs: Sequence[bool], shapes: Sequence[Any]) -> Iterator[Value]:
    """What comes out of a traced step."""
    sources: dict[Any, Leaf | Updated] = {variable: Leaf(i) for i, variable in enumerate(jaxpr.invars[:leaves])}
    depends = dict.fromkeys(jaxpr.invars, 0)
    depends |= {variable: int(odd) for variable, odd in zip(jaxpr.invars[leaves:], differs, strict=True)}
    for equation in jaxpr.eqns:
        if equation.primitive is _applied:
            number = equation.params["number"]
            sources |= {variable: Updated(number, i) for i, variable in enumerate(equation.outvars)}
    _follow(jaxpr, depends)
    adds = {v for equation in jaxpr.eqns if equation.primitive is _added for v in equation.outvars}
    for variable, shape in zip(jaxpr.outvars, shapes, strict=True):
        known = not isinstance(variable, Literal)
        source, bits = (sources.get(variable), depends.get(variable, 0)) if known else (None, 0)
        yield Value(source, bits, str(shape.dtype), tuple(shape.shape), known and variable in adds)


def _follow(jaxpr: Any, depends: dict[Any, int]) -> None:
    """From what is known of a program's inputs to what its values depend on."""
    for equation in jaxpr.eqns:
        given = [0 if isinstance(v, Literal) else depends.get(v, 0) for v in equation.invars]
        if equation.primitive is _applied:
            # Results are the same on all workers, whatever the gradients that they were made of depend on.
            found = [2 << equation.params["number"]] * len(equation.outvars)
        elif equation.primitive is _added:
            found = given
        else:
            found = _through(equation, given)
        depends |= zip(equation.outvars, found, strict=True)


def _through(equation: Any, given: Sequence[int]) -> list[int]:
    """What the results of an equation depend on. Functions that it calls once are looked into."""
    inner = next((equation.params[name] for name in ("jaxpr", "call_jaxpr") if name in equation.params), None)
    jaxpr = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
    calls = equation.primitive.name in ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
    if jaxpr is None or not calls or len(jaxpr.invars) != len(given):
        everything = 0
        for bits in given:
            everything |= bits
        return [everything] * len(equation.outvars)
    depends = dict(zip(jaxpr.invars, given, strict=True))
    _follow(jaxpr, depends)
    return [0 if isinstance(v, Literal) else depends.get(v, 0) for v in jaxpr.outvars]

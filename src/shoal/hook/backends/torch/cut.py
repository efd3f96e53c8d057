"""A training step on PyTorch: steps that stop where they apply an optimizer, and what depends on what in them.

A step runs in a greenlet of its own: where it applies an optimizer it stops, and hands its gradients over; when the
update was made it goes on. What several steps share in the meantime (the gradients that torch keeps beside each
weight, torch's random numbers, whether it records gradients at all) is each step's own: it is put aside when the step
stops and brought back when it goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import greenlet  # type: ignore[import-untyped]
import torch

from shoal.hook import keras_private
from shoal.hook.backends.cut import Apply

_Mode: Any = keras_private.dispatch_mode()

_DATA = 1  # the first bit of what a value depends on: the batch, or anything else that differs from piece to piece


class SuspendedStep:
    """One piece's step, on its way from apply to apply."""

    def __init__(self, run: Callable[[Callable[[Apply], None]], Any], weights: Sequence[Any]) -> None:
        """`run` does the step, with somebody who takes its applies. `weights`: the tensors that have gradients."""
        self._weights = weights
        self._greenlet = greenlet.greenlet(lambda: run(self._stop))
        self._outside: greenlet.greenlet | None = None
        with torch.enable_grad():  # it may begin where an update is applied
            self._aside = _Shared.now(weights)
        self.result: Any = None  # of `run`, when it is over

    @property
    def is_over(self) -> bool:
        return bool(self._greenlet.dead)

    def go_on(self) -> Apply | None:
        """To the next apply, or, returning None, to the end."""
        outside = _Shared.now(self._weights)
        self._aside.bring_back(self._weights)
        self._outside = greenlet.getcurrent()
        try:
            given = self._greenlet.switch()
        finally:
            self._aside = _Shared.now(self._weights)
            outside.bring_back(self._weights)
        if self._greenlet.dead:
            self.result = given
            return None
        assert isinstance(given, Apply)
        return given

    def give_up(self) -> None:
        """Another view has begun, or the step is over for everyone."""
        if self._greenlet and not self._greenlet.dead:
            outside = _Shared.now(self._weights)
            with contextlib.suppress(_GivenUp):
                self._greenlet.throw(_GivenUp)
            outside.bring_back(self._weights)

    def _stop(self, apply: Apply) -> None:
        assert self._outside is not None
        self._outside.switch(apply)


class _GivenUp(greenlet.GreenletExit):  # type: ignore[misc]
    """A step that nobody needs any more ends where it stands."""


class _Shared:
    """What steps would take from each other."""

    def __init__(self, gradients: list[Any], records: bool, numbers: Any) -> None:
        self._gradients = gradients
        self._records = records
        self._numbers = numbers

    @classmethod
    def now(cls, weights: Sequence[Any]) -> _Shared:
        return cls([weight.grad for weight in weights], torch.is_grad_enabled(), torch.get_rng_state())

    def bring_back(self, weights: Sequence[Any]) -> None:
        for weight, gradient in zip(weights, self._gradients, strict=True):
            weight.grad = gradient
        torch.set_grad_enabled(self._records)
        torch.set_rng_state(self._numbers)


class Dependence(_Mode):  # type: ignore[misc]
    """While it is open, follows what the memory of tensors depends on: the batch, or the results of applies.

    By memory and not by tensor: views, and what autograd kept, are other tensors on the same memory. All memory that
    was seen is held until the end, so that none of it is used for something else meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bits: dict[int, int] = {}
        self._held: list[Any] = []
        self._written: set[int] = set()

    def through(self, function: Callable[[], Any]) -> Any:
        with self:
            return function()

    def mark(self, tensor: Any, bits: int = _DATA) -> None:
        key = self._key(tensor)
        self._bits[key] = self._bits.get(key, 0) | bits

    def mark_updated(self, tensors: Sequence[Any], apply: int) -> None:
        """An optimizer has updated them: they are alike on all workers again."""
        for tensor in tensors:
            self._bits[self._key(tensor)] = 2 << apply

    def depends_on_data(self, tensor: Any) -> bool:
        return bool(self.of(tensor) & _DATA)

    def part_of(self, tensor: Any) -> int:
        """The first part of the step that knows a value: the one after the last apply that it depends on."""
        return (self.of(tensor) >> 1).bit_length()

    def of(self, tensor: Any) -> int:
        return self._bits.get(self._key(tensor), 0) if isinstance(tensor, torch.Tensor) else 0

    def was_written(self, tensor: Any) -> bool:
        return self._key(tensor) in self._written

    def _key(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        self._held.append(storage)
        return keras_private.memory_of(storage)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = function(*args, **kwargs)
        bits = _DATA if torch.Tag.nondeterministic_seeded in function.tags else 0
        for tensor in _tensors((args, kwargs)):
            bits |= self.of(tensor)
        written = list(_written(function, args, kwargs))
        for tensor in written:
            overwrites = function.overloadpacket is torch.ops.aten.copy_ and tensor is args[0]
            self._bits[self._key(tensor)] = self.of(args[1]) if overwrites else bits
            self._written.add(self._key(tensor))
        known = {self._key(tensor) for tensor in (*_tensors((args, kwargs)), *written)}
        for tensor in _tensors(results):
            if self._key(tensor) not in known:
                self._bits[self._key(tensor)] = bits
        return results


def _written(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    """The tensors that an operation writes to."""
    for place, argument in enumerate(keras_private.arguments_of(function)):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from _tensors(given)


def _tensors(nest: Any) -> Iterator[Any]:
    if isinstance(nest, torch.Tensor):
        yield nest
    elif isinstance(nest, list | tuple):
        for one in nest:
            yield from _tensors(one)
    elif isinstance(nest, dict):
        yield from _tensors(list(nest.values()))

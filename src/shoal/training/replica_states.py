"""What each replica of a local training keeps from round to round: the state of its optimizers.

It lies in memory that all workers of a host share, in two generations (collectives/residual_plan.py): who hosts a
replica in a round reads what the last round left, and writes the other. So a round that is done again begins where it
began before, whoever hosts the replica then, and a killed worker takes nothing with it. If it is alone on its host,
another host has a copy of what its replicas keep, unless nobody wants that. If the only host that had a replica's
state is lost, another replica's stands in for it, for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.collectives.group import AbstractGroup, Residuals, Result
from shoal.strategies.schema import Array
from shoal.training.engine import Engine

_ALIGNMENT = 8  # bytes, of each variable's place
_WORD = 4  # bytes: what is kept of slots is counted in float32


class _Place(NamedTuple):
    """Where a variable's value lies."""

    start: int
    stop: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class ReplicaStates:
    """The optimizers' states of all replicas, as one worker sees them."""

    def __init__(
        self,
        engine: Engine,
        variables: Sequence[Any],
        replicas: int,
        on_lost: Callable[[Sequence[int], int | None], None] = lambda lost, giver: None,
        copies: bool = True,
        weights: Sequence[Any] = (),
    ) -> None:
        """`variables` are the optimizers'. `on_lost` is told which replicas' states were lost, and whose stands in;
        None: nobody's is left, and all begin again with what the model has.
        `weights` are kept too, where replicas do not begin every round with the same.
        """
        self._engine = engine
        self.variables = list(variables)
        self._replicas = replicas
        self._on_lost = on_lost
        self._places: list[_Place] = []
        end = 0
        self.weights = list(weights)
        for variable in (*self.variables, *self.weights):
            value = engine.read(variable)
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + value.nbytes
            self._places.append(_Place(start, end, value.dtype, value.shape))
        self.are_kept = False  # after a round, or from a checkpoint: before that, all have the model's own
        self._kept = Residuals([-(-end // _WORD)], what="the replicas' optimizers", copies=copies)

    def settle(self, group: AbstractGroup, shares: tuple[range, ...]) -> None:
        """Within an act: who hosts a replica in this round has its state. Collective."""
        group.settle(self._kept, shares)
        lost = self._kept.missing(self._replicas)
        if self.are_kept and self._kept.is_empty:
            self.are_kept = False
            self._on_lost(range(self._replicas), None)
        if not lost:
            return
        giver = next(replica for replica in range(self._replicas) if replica not in lost)
        hosts = {replica: rank for rank, share in enumerate(shares) for replica in share}
        given = self._kept.kept(giver) if hosts[giver] == group.rank else None
        takers = {hosts[replica] for replica in lost} - {hosts[giver]}
        taken = group.pass_on(
            "the state that stands in for a lost replica's",
            hosts[giver],
            takers,
            Result([], given) if given is not None else None,
        )
        arrays = given if given is not None else taken.arrays if taken is not None else None
        for replica in lost:
            self._kept.stand_in(replica, arrays if hosts[replica] == group.rank else None)
        self._on_lost(lost, giver)

    def of(self, replica: int) -> list[Array] | None:
        """What counts of a replica that this worker hosts, where it lies; None before its first round is over."""
        kept = self._kept.kept(replica)
        return None if kept is None else self._views(kept[0])[: len(self.variables)]

    def weights_of(self, replica: int) -> list[Array] | None:
        """The same of its weights."""
        kept = self._kept.kept(replica)
        return None if kept is None else self._views(kept[0])[len(self.variables) :]

    def write(self, replica: int, values: Sequence[Array], weights: Sequence[Array]) -> None:
        """Within an act, after all have computed: what the replica's state is after this round. Of the weights those
        that are kept come first.
        """
        _, (after,) = self._kept.begin(replica)
        kept = (*values, *weights[: len(self.weights)])
        for place, value in zip(self._views(after), kept, strict=True):
            np.copyto(place, value)
        self._kept.end(replica)

    def copy(self, group: AbstractGroup, shares: tuple[range, ...]) -> int:
        """After all have written: what a worker keeps that is alone on its host goes to another, too. The bytes of a
        replica's, if somebody's are copied. Collective.
        """
        group.copy(self._kept, shares)
        return sum(self._kept.sizes) * _WORD if self._kept.are_copied else 0

    def commit(self) -> None:
        """The round counts. Everyone says so, also who has missed its end."""
        self._kept.commit(self._replicas)
        self.are_kept = True

    def begin_with(self, group: AbstractGroup, shares: tuple[range, ...], states: Sequence[Sequence[Array]]) -> None:
        """Within an act: all replicas go on from these, which come from a checkpoint. Collective."""
        group.settle(self._kept, shares)
        for replica in shares[group.rank]:
            count = len(self.variables)
            self.write(replica, states[replica][:count], states[replica][count:])
        group.copy(self._kept, shares)

    def read(self) -> list[Array]:
        """What the model's optimizers hold now: look at it, or copy it."""
        return [self._engine.read(variable) for variable in self.variables]

    def show(self, values: Sequence[Array]) -> None:
        """The model's optimizers get this state."""
        self._engine.write(self.variables, values)

    def close(self) -> None:
        self._kept.close()

    def _views(self, memory: Array) -> list[Array]:
        data = memory.view(np.uint8)
        return [data[place.start : place.stop].view(place.dtype).reshape(place.shape) for place in self._places]

"""Training with parameter servers: they hold the weights, and each worker updates them at its own pace."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import msgspec

from shoal.config import Servers
from shoal.errors import UsageError
from shoal.strategies.scope import enter


class ParameterServer(msgspec.Struct, frozen=True):
    """Data parallelism in which no worker waits for another longer than `staleness` demands.

    `staleness` is the number of another worker's updates that the weights of an update may lack: 0 is synchronous,
    float("inf") sets no bound. `replicas` is the number of servers that hold each part of the weights. None: what
    `shoal run` says. With `scale_by_staleness`, an update's learning rate is divided by 1 + its staleness.
    """

    staleness: float | None = None
    replicas: int | None = None
    scale_by_staleness: bool = False

    def __post_init__(self) -> None:
        if self.staleness is not None and not _is_bound(self.staleness):
            raise UsageError(
                f"ParameterServer(staleness={self.staleness}): expected 0, a number of updates, or float('inf') for "
                "no bound. Leave it out for what `shoal run --staleness` says."
            )
        if self.replicas is not None and self.replicas < 1:
            raise UsageError(
                f"ParameterServer(replicas={self.replicas}): expected at least 1. Leave it out for what "
                "`shoal run --replicas` says."
            )

    def scope(self) -> AbstractContextManager[ParameterServer]:
        """Models compiled inside train with this strategy, wherever `fit` is called."""
        return enter(self)

    def servers_for(self, told: Servers | None) -> Servers:
        """The run's servers as this strategy uses them; `told` is the command line's word on them."""
        if told is None:
            raise UsageError(
                "ParameterServer needs at least 1 server; this run has none. "
                "Start one with `shoal run --strategy ps --servers 1 ...`, or use AllReduce, which needs none."
            )
        if self.replicas not in (None, told.replicas):
            raise UsageError(
                f"ParameterServer(replicas={self.replicas}): this run's servers keep {told.replicas}. Start it with "
                f"`shoal run --replicas {self.replicas} ...`, or leave replicas out."
            )
        if self.staleness is None:
            return told
        bound = None if self.staleness == math.inf else int(self.staleness)
        return msgspec.structs.replace(told, staleness=bound)


def _is_bound(staleness: float) -> bool:
    return staleness >= 0 and (staleness == math.inf or float(staleness).is_integer())

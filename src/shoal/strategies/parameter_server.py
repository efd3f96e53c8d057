"""Training with parameter servers: they hold the weights, and each worker updates them at its own pace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from shoal.codecs.choice import codec_of
from shoal.codecs.codec import AbstractCodec
from shoal.codecs.lossy import AbstractLossy
from shoal.config import Servers
from shoal.errors import UsageError
from shoal.strategies.abstract import AbstractStrategy, Told, Trainings
from shoal.strategies.allreduce import AllReduce

T = TypeVar("T")


@dataclass(frozen=True)
class ParameterServer(AbstractStrategy):
    """Data parallelism in which no worker waits for another longer than `staleness` demands.

    `staleness` is the number of another worker's updates that the weights of an update may lack: 0 is synchronous,
    float("inf") sets no bound. `replicas` is the number of servers that hold each part of the weights. None: what
    `shoal run` says. With `scale_by_staleness`, an update's learning rate is divided by 1 + its staleness.
    `compress` makes what travels to servers smaller: "bf16", "int8" or TopK(0.01). None: what `shoal run --compress`
    says.
    """

    staleness: float | None = None
    replicas: int | None = None
    scale_by_staleness: bool = False
    compress: str | AbstractCodec | AbstractLossy | None = None

    def __post_init__(self) -> None:
        self.codec_for(None)
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

    def pieces_for(self, told: int | None, workers: int) -> int:
        return AllReduce().pieces_for(told, workers)

    def leaves_to_keras(self, pieces: int | None, compress: str | None) -> bool:
        return self.pieces_for(pieces, 1) == 1  # a run of one has no servers to which something could be pushed

    def codec_for(self, told: str | None) -> AbstractCodec:
        codec = codec_of(self.compress or told, "ParameterServer")
        if codec.is_auto:
            raise UsageError(
                'ParameterServer(compress="auto"): what pays is measured between workers, not on the way to servers. '
                "Name the codec: bf16, int8 or TopK."
            )
        if codec.needs_matrices:
            raise UsageError(
                f"ParameterServer(compress={codec!r}): servers hold slices of matrices, which have no rank. "
                "Use bf16, int8 or TopK, or train without servers."
            )
        return codec

    def train(self, told: Told, trainings: Trainings[T]) -> T:
        servers = self.servers_for(told.servers)
        if servers.staleness != 0:
            return trainings.at_own_pace(servers, self.scale_by_staleness)
        in_step = AllReduce()
        pieces, fixed = in_step.pieces_for(told.pieces, told.workers), in_step.fixes_pieces(told.pieces)
        return trainings.together_on_servers(pieces, fixed, servers)

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

"""Whatever is fastest of what fits: found by measuring, when a model's first fit begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from shoal.codecs.codec import AbstractCodec
from shoal.errors import UsageError
from shoal.strategies.abstract import AbstractStrategy, Told, Trainings
from shoal.strategies.allreduce import AllReduce

T = TypeVar("T")


@dataclass(frozen=True)
class Auto(AbstractStrategy):
    """Leaves it to a plan how a fit trains. What is no fit is done as with AllReduce.

    `only_plans`: nothing trains, a plan is all that is wanted.
    """

    only_plans: bool = False

    def settled(self, plan: Callable[[], AbstractStrategy]) -> AbstractStrategy:
        return plan()

    def codec_for(self, told: str | None) -> AbstractCodec:
        return AllReduce().codec_for(told)

    def pieces_for(self, told: int | None, workers: int) -> int:
        return AllReduce().pieces_for(told, workers)

    def refuse_single_steps(self) -> None:
        if self.only_plans:
            raise UsageError(
                "a plan is made where a script calls `model.fit`; this one takes its steps one by one, with "
                "`train_on_batch` or `shoal.step`, which are always data parallel. There is nothing to choose."
            )

    def train(self, told: Told, trainings: Trainings[T]) -> T:
        return AllReduce().train(told, trainings)

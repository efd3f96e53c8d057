"""Pipeline parallelism: the model is cut into stages, and each worker trains one of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TypeVar

from shoal.codecs.codec import AS_THEY_ARE, AbstractCodec
from shoal.errors import UsageError
from shoal.strategies.abstract import AbstractStrategy, PipelineSettings, Told, Trainings, is_count

T = TypeVar("T")

_PIECES_PER_STAGE = 4  # with so many, a third of the time at most is spent waiting for the pipeline to fill and drain


@dataclass(frozen=True)
class Pipeline(AbstractStrategy):
    """The layers of a model are divided among the workers; pieces of a batch go through them as on an assembly line.

    `stages` is the number of parts that the model is cut into. Workers beyond that number share a stage's pieces. None:
    what `shoal run --stages` says, or else 2. `pieces` is the number of equal parts that each batch is cut into. None:
    what `shoal run --pieces` says, or else four for each stage. With stages and pieces fixed, the weights are the same
    bits for any number of workers.

    A stage that one worker computes is kept up to date by another too, so that the run goes on when the first is lost;
    and when fit ends, every worker has the whole optimizer. With `lean`, where memory is short, nobody ever holds more
    of the optimizer than its own stages': a lost stage is then taken from the last checkpoint, and the optimizer's
    state is gone after fit.

    `speeds` are those of the workers, by rank and relative to each other, where they are unequal: the model is cut so
    that a worker at a quarter of the speed has a quarter of the work. They fix the cuts, and with them the bits. Empty:
    what `shoal run --speeds` says, or else all are equal.
    """

    stages: int | None = None
    pieces: int | None = None
    lean: bool = False
    speeds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.stages is not None and not is_count(self.stages, least=2):
            raise UsageError(
                f"Pipeline(stages={self.stages!r}): expected a whole number, at least 2 stages. Without any cut, use "
                "AllReduce."
            )
        if self.pieces is not None and not is_count(self.pieces):
            raise UsageError(
                f"Pipeline(pieces={self.pieces!r}): expected a whole number, at least 1 piece. Leave it out for "
                f"{_PIECES_PER_STAGE} per stage."
            )
        if any(not isinstance(speed, int | float) or not 0.0 < speed < inf for speed in self.speeds):
            raise UsageError(
                f"Pipeline(speeds={self.speeds}): expected numbers above 0, one for each worker, such as (1, 1, 0.5)."
            )

    def codec_for(self, told: str | None) -> AbstractCodec:
        return AS_THEY_ARE

    def pieces_for(self, told: int | None, workers: int) -> int:
        return self.pieces or told or _PIECES_PER_STAGE * (self.stages or 2)

    def refuse_single_steps(self) -> None:
        raise UsageError(
            "a pipeline trains with `model.fit`; `train_on_batch` and loops with `shoal.step` see the whole model, "
            "which no worker has. Use fit, or --strategy allreduce."
        )

    def train(self, told: Told, trainings: Trainings[T]) -> T:
        stages = self.stages or told.stages or 2
        if told.servers is not None:
            raise UsageError(
                "Pipeline and parameter servers can't be combined: each stage is updated where it is computed. Start "
                "the run without --servers, or use ParameterServer."
            )
        if told.workers < stages:
            raise UsageError(
                f"Pipeline(stages={stages}): this run has {told.workers} worker{'s' if told.workers > 1 else ''}, and "
                f"every stage needs one. Start it with `shoal run -n {stages} ...`, or use fewer stages."
            )
        pieces = self.pieces or told.pieces or _PIECES_PER_STAGE * stages
        speeds = tuple(self.speeds or told.speeds)
        if speeds and len(speeds) < stages:
            raise UsageError(
                f"Pipeline(stages={stages}, speeds={speeds}): {len(speeds)} speed{'s' if len(speeds) > 1 else ''} for "
                f"{stages} stages. Give one for each worker that the run is started with, or none."
            )
        return trainings.in_stages(PipelineSettings(pieces, stages, self.lean, speeds))

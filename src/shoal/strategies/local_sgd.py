"""Local SGD: replicas take steps by themselves, and meet now and then. For links that are too slow for every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.codecs.choice import codec_of
from shoal.codecs.codec import AbstractCodec
from shoal.codecs.lossy import AbstractLossy
from shoal.errors import UsageError
from shoal.strategies.abstract import AbstractStrategy, RoundSettings, Told, Trainings, is_count

T = TypeVar("T")

EVERY = 50  # steps, unless somebody says otherwise


@dataclass(frozen=True)
class LocalSGD(AbstractStrategy):
    """Every replica takes `every` steps by itself; then an outer optimizer is applied to their average move (DiLoCo).

    `every` is the number of steps between two exchanges. None: what `shoal run --every` says, or else 50.
    `replicas` is the number of models that train side by side, each on its own part of every batch; a worker may host
    several. With it fixed, the weights are the same bits for any number of workers. None: what `shoal run --replicas`
    says, or else one per worker.
    `outer` is a Keras optimizer, not the model's own. None: SGD(0.7, momentum=0.9, nesterov=True).
    `compress` makes the moves smaller: "bf16", "int8", TopK(0.01), LowRank(rank=4). None: what `shoal run --compress`
    says.
    `copies`: what replicas keep from round to round is sent to another host too, in every round, if their worker is
    alone on its host: so it can be killed and nothing is lost. False: those bytes are saved, and another replica's
    optimizer stands in for a lost one.
    `streaming` cuts the weights into so many fragments, of which one at a time is exchanged, in the background, while
    replicas go on (Streaming DiLoCo). It divides `every`. None: all at once, and replicas wait.
    `uneven`: replicas of fast workers take more steps of a round than those of slow ones, `replicas * every` in all, so
    that nobody waits. The bits depend on the workers' measured speeds then.
    """

    every: int | None = None
    replicas: int | None = None
    outer: Any = None
    compress: str | AbstractCodec | AbstractLossy | None = None
    copies: bool = True
    streaming: int | None = None
    uneven: bool = False

    def __post_init__(self) -> None:
        numbers = (
            ("every", "1 step", self.every),
            ("replicas", "1 replica", self.replicas),
            ("streaming", "1 fragment", self.streaming),
        )
        for name, least, number in numbers:
            if number is not None and not is_count(number):
                raise UsageError(f"LocalSGD({name}={number!r}): expected a whole number, at least {least}.")
        if not isinstance(self.uneven, bool):
            raise UsageError(f"LocalSGD(uneven={self.uneven!r}): expected True or False.")
        if self.uneven and self.streaming is not None:
            raise UsageError(
                f"LocalSGD(uneven=True, streaming={self.streaming}) can't be combined: fragments are exchanged "
                "after steps of which every replica has taken as many. Leave out one of them."
            )
        self.codec_for(None)

    @property
    def is_keras_alone(self) -> bool:
        return False  # even one replica has an outer optimizer

    def codec_for(self, told: str | None) -> AbstractCodec:
        codec = codec_of(self.compress or told, "LocalSGD")
        if codec.is_auto:
            raise UsageError(
                'LocalSGD(compress="auto"): what pays is measured from step to step, and here there is one exchange in '
                "many. Name the codec: bf16, int8, TopK or LowRank."
            )
        return codec

    def pieces_for(self, told: int | None, workers: int) -> int:
        replicas = self.replicas or told or workers
        if replicas < workers:
            raise UsageError(
                f"LocalSGD(replicas={replicas}) in a run of {workers} workers: {workers - replicas} of them would have "
                f"no replica to train. Use at least {workers} replicas, or fewer workers."
            )
        return replicas

    def refuse_single_steps(self) -> None:
        raise UsageError(
            "LocalSGD trains with `model.fit`: in `train_on_batch` and loops with `shoal.step` a script sees every "
            "step, and replicas share none of theirs. Use fit, or --strategy allreduce."
        )

    def train(self, told: Told, trainings: Trainings[T]) -> T:
        if told.servers is not None:
            raise UsageError(
                "LocalSGD and parameter servers can't be combined: each replica has an optimizer of its own. Start the "
                "run without --servers, or use ParameterServer."
            )
        replicas = self.pieces_for(told.pieces, told.workers)
        every = self.every or told.every or EVERY
        if self.streaming is not None and every % self.streaming:
            raise UsageError(
                f"LocalSGD(every={every}, streaming={self.streaming}): expected a number of fragments that divides "
                "`every`: after each so many steps the next one is exchanged."
            )
        settings = RoundSettings(replicas, every, self.streaming, self.copies, self.uneven)
        return trainings.in_rounds(settings, self.outer)

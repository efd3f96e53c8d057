"""How gradients become weights: what `fit` asks of a strategy, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from shoal.codecs.codec import AbstractCodec
from shoal.config import Servers
from shoal.strategies.mesh.shape import Mesh
from shoal.strategies.scope import enter

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Told(Protocol):
    """What the command line says of the run."""

    @property
    def pieces(self) -> int | None: ...

    @property
    def workers(self) -> int: ...

    @property
    def servers(self) -> Servers | None: ...

    @property
    def stages(self) -> int | None: ...

    @property
    def speeds(self) -> tuple[float, ...]: ...

    @property
    def sliced(self) -> bool: ...

    @property
    def every(self) -> int | None: ...


class PipelineSettings(NamedTuple):
    """How a model trains in stages."""

    pieces: int
    stages: int
    lean: bool  # nobody holds more than its own stages
    speeds: tuple[float, ...] = ()  # of the workers by rank, where they are unequal: stages are cut for them


class RoundSettings(NamedTuple):
    """How replicas train by themselves, and meet."""

    replicas: int
    every: int  # steps of a round
    streaming: int | None = None  # the fragments that are exchanged one at a time while steps go on; None: all at once
    copies: bool = True  # what a replica keeps is on a second host, if its worker is alone on its own
    uneven: bool = False  # replicas of fast workers take more of a round's steps than those of slow ones


class Trainings(Protocol[T_co]):
    """The ways to train that there are. A strategy takes one of them, which trains to the end."""

    def together(self, pieces: int, fixed: bool, sliced: bool) -> T_co:
        """All workers take every step together, and each updates its own copy of the model.

        Batches are cut into so many pieces; unless that is `fixed`, more if the workers' speeds call for it. `sliced`:
        each updates some of the weights, and all read everybody's.
        """

    def together_on_servers(self, pieces: int, fixed: bool, servers: Servers) -> T_co:
        """The same, but servers update the weights."""

    def at_own_pace(self, servers: Servers, scales: bool) -> T_co:
        """Each worker computes whole batches, and servers apply them as they come. `scales`: stale ones count less."""

    def in_stages(self, settings: PipelineSettings) -> T_co:
        """All workers take every step together. The model is cut into stages, and each worker holds one of them."""

    def in_rounds(self, settings: RoundSettings, outer: Any) -> T_co:
        """Each of the replicas takes some steps by itself. Then their average move goes into the optimizer `outer`
        (None: the usual one), from whose weights all go on.
        """


class AbstractStrategy(ABC):
    """How a model trains on the workers of a run."""

    def scope(self) -> AbstractContextManager[Self]:
        """Models compiled inside train with this strategy, wherever `fit` is called."""
        return enter(self)

    @property
    def mesh(self) -> Mesh | None:
        """How the devices of each worker are used, if the strategy says so; None: as `shoal run` was told."""
        return None

    def settled(self, plan: Callable[[], AbstractStrategy]) -> AbstractStrategy:
        """The one that a fit trains with, before it begins: this one, unless it leaves that to a `plan`."""
        return self

    @property
    def is_keras_alone(self) -> bool:
        """Whether one worker with one piece and one device does what plain Keras does."""
        return True

    @abstractmethod
    def codec_for(self, told: str | None) -> AbstractCodec:
        """In whose form gradients travel, between workers and to servers; `told` is the command line's word."""

    @abstractmethod
    def pieces_for(self, told: int | None, workers: int) -> int:
        """How many pieces batches are cut into in a run with this many workers; `told` is the command line's word."""

    def leaves_to_keras(self, pieces: int | None, compress: str | None) -> bool:
        """Whether one worker with one device has nothing to do but what plain Keras does; `pieces` and `compress` are
        the command line's words. A codec counts though nothing travels: the same bits, whatever else the run is asked.
        """
        return self.is_keras_alone and self.pieces_for(pieces, 1) == 1 and self.codec_for(compress).is_identity

    def refuse_single_steps(self) -> None:  # noqa: B027 (most take them as they take those of `fit`)
        """UsageError if a script can't take steps one by one, with `train_on_batch` or a loop of its own."""

    @abstractmethod
    def train(self, told: Told, trainings: Trainings[T]) -> T:
        """Takes the training that this strategy is. UsageError if the run does not have what it needs."""


def is_count(value: object, least: int = 1) -> bool:
    """Whether a setting is a whole number, and at least that."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least

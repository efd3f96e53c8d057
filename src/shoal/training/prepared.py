"""A model and its data, ready to be trained: all that training knows of Keras, made by the hook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from shoal.codecs.codec import AS_THEY_ARE, AbstractCodec
from shoal.data.sources import AbstractSource, Bookmark
from shoal.training.callbacks import Callbacks
from shoal.training.data_agreement import DataState
from shoal.training.engine import Engine, StepShape
from shoal.training.logs import Logs
from shoal.training.optimizer import TrainedOptimizer
from shoal.training.store_layout import StoreLayout
from shoal.training.tables import Tables


class FitArguments(msgspec.Struct, frozen=True):
    """What `fit` was called with, by Keras's names."""

    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: Any = "auto"
    callbacks: Any = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: bool | str = True
    class_weight: Any = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: Any = 1

    def validates_after(self, epoch: int) -> bool:
        """Every n-th epoch, or the listed ones (counted from 1)."""
        if isinstance(self.validation_freq, int):
            return (epoch + 1) % self.validation_freq == 0
        return epoch + 1 in self.validation_freq


class Trainee(Protocol):
    """The model, as a loop over epochs sees it."""

    stop_training: bool
    steps_per_execution: int

    def reset_metrics(self) -> None: ...


class Validation(Protocol):
    """What is done after an epoch with data that is held out."""

    bookmark: Bookmark  # how far a stream has been read

    @property
    def data(self) -> DataState: ...

    def join(self, state: DataState) -> None:
        """For a worker that came late: use the data as the others do."""

    def run(self, epoch: int) -> Logs:
        """Tests all batches; the logs are the same on every worker. Collective."""


class Description(NamedTuple):
    """What a checkpoint says of the model, besides its tensors."""

    config: Any  # how it is built, if Keras can tell in plain data
    backend: str
    keras: str  # its version

    def header(self) -> dict[str, Any]:
        return {"model": self.config, "backend": self.backend, "keras": self.keras}


class Prepared(NamedTuple):
    """Data, model and step."""

    model: Trainee
    engine: Engine
    optimizer: TrainedOptimizer
    tables: Tables
    described: Description
    shape: StepShape
    source: AbstractSource
    seed: int
    batch: Any  # an example
    validation: Validation | None
    callbacks: Callbacks
    codec: AbstractCodec  # in whose form gradients travel
    size: int = 0  # rows of a batch

    def pushed(self, synchronous: bool) -> AbstractCodec:
        """The codec of what goes to servers. Sums of pieces that were encoded one by one are not encoded again."""
        return AS_THEY_ARE if synchronous and self.codec.by_slot is not None else self.codec

    def layout(self, servers: int, synchronous: bool) -> StoreLayout:
        """How the model lies on servers."""
        return StoreLayout(self.engine, self.shape.only, self.optimizer, self.tables.layers, servers, synchronous)

    def tables_in_checkpoint(self) -> Sequence[tuple[str, tuple[int, int]]]:
        return [(layer.name, (layer.input_dim, layer.output_dim)) for layer in self.tables.layers]

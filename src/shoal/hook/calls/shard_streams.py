"""What `shoal.stream` returns: a stream in shards, which `fit`, `evaluate`, `predict` and `shoal.batches` take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from shoal.data.columns import Rows
from shoal.data.sources.rank import ALONE
from shoal.data.sources.sharded_stream import ShardedStream
from shoal.data.structure import Skeleton, flatten
from shoal.errors import CannotDistribute, UsageError
from shoal.hook import data_private, keras_private
from shoal.hook.backends import leaves


class ShardStream(keras_private.data_adapter()):  # type: ignore[misc]
    """Batches of all shards together. In a run of several workers each of them reads some of the shards.

    To iterate over it is to make one pass: in the order, and with the batches, that the workers of a run train on.
    """

    def __init__(self, make: Callable[..., Any], shards: int, map: Callable[[Any], Any] | None) -> None:
        if not callable(make):
            raise UsageError(
                f"shoal.stream(make, shards): make is a {type(make).__name__}; expected a function that takes the "
                "number of a shard and returns its batches"
            )
        if not isinstance(shards, int) or isinstance(shards, bool) or shards < 1:
            raise UsageError(f"shoal.stream(make, shards={shards!r}): expected a number of shards, at least 1")
        self._make = make
        self._takes_pass = _takes_pass(make)
        self._map = map
        self.shards = shards
        self.passes = 0  # that were made over it
        self._adapter: Any = None

    def __iter__(self) -> Iterator[Any]:
        from shoal.hook.calls.feeds import DataRequest, rows_of

        request = DataRequest("fit", self)
        source = self.source("fit", lambda batch: rows_of(request, batch), None)
        try:
            source.know(source.peek())
            source.begin(0)
            step = 0
            while (taken := source.take(step, lambda size: [range(size)], ALONE)) is not None:
                batch = leaves.to_batch(source.spec(), taken.rows)
                yield batch if isinstance(batch, tuple) else (batch,)  # which Keras takes for a batch
                step += 1
            source.end(step)
        finally:
            source.close()

    def source(
        self,
        what: str,
        convert: Callable[[Any], tuple[Rows, Skeleton]],
        steps: int | None,
        goes_on: bool = False,
    ) -> ShardedStream:
        def mapped(batch: Any) -> tuple[Rows, Skeleton]:
            return convert(self._map(batch) if self._map is not None else batch)

        return ShardedStream(what, self._open, self.shards, mapped, steps, goes_on, self.passes, self._count)

    def _count(self, passes: int) -> None:
        self.passes = passes

    def _open(self, shard: int, number: int) -> Any:
        data = self._make(shard, number) if self._takes_pass else self._make(shard)
        if not hasattr(data, "__iter__") or isinstance(data, str | bytes | dict):
            raise UsageError(
                f"shoal.stream: make({shard}) returned a {type(data).__name__}; expected something that gives "
                "one batch after another: a generator, a data set of Grain, Hugging Face or tf.data, a loader"
            )
        divided = data_private.hugging_face_split(data) or data_private.grain_shards(data)
        if divided is not None:
            raise CannotDistribute(
                f"shoal.stream: make({shard}) returned data that is divided among {divided[0]} processes, of which it "
                f"is part {divided[1]}. Divide it by the shard's number instead: Shoal gives the shards to the workers."
            )
        if data_private.forgets_its_buffer(data):
            return iter(data)  # continued from its state, it would leave out what is in the buffer of its shuffle
        return data.as_numpy_iterator() if _is_dense_tf(data) else data

    # What Keras without Shoal asks for --------------------------------------------------------------

    def get_numpy_iterator(self) -> Any:
        return self._keras().get_numpy_iterator()

    def get_jax_iterator(self) -> Any:
        return self._keras().get_jax_iterator()

    def get_tf_dataset(self) -> Any:
        return self._keras().get_tf_dataset()

    def get_torch_dataloader(self) -> Any:
        return self._keras().get_torch_dataloader()

    @property
    def num_batches(self) -> None:
        return None

    @property
    def batch_size(self) -> None:
        return None

    @property
    def has_partial_batch(self) -> None:
        return None

    @property
    def partial_batch_size(self) -> None:
        return None

    def _keras(self) -> Any:
        if self._adapter is None:
            self._adapter = keras_private.adapter_of(self.__iter__)
        return self._adapter


def _is_dense_tf(data: Any) -> bool:
    """A tf.data.Dataset of dense tensors, which it gives as arrays more cheaply."""
    if not any(c.__module__.startswith("tensorflow.") and c.__name__ == "DatasetV2" for c in type(data).__mro__):
        return False
    return all(type(spec).__name__ == "TensorSpec" for spec in flatten(data.element_spec)[0])


def _takes_pass(make: Callable[..., Any]) -> bool:
    """Whether it takes the number of the pass, too: to shuffle anew in each."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # of a builtin
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len([p for p in places if p.default is p.empty]) >= 2

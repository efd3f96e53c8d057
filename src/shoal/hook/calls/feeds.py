"""From what a user gives to `fit`, `evaluate` or `predict` to a source of batches.

Only here is it known that there are PyDatasets, tf.data and torch loaders; leaves.py knows the kinds of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import msgspec
import numpy as np

from shoal.data.columns import Rows, blank
from shoal.data.sources import AbstractSource, Arrays, Batches, BatchSeries, Items, RowBatches, Spec, digest_of
from shoal.data.sources.stream import AbstractReader, Once, Restartable, Stream
from shoal.data.structure import Skeleton, flatten, rebuild
from shoal.errors import CannotDistribute, UsageError
from shoal.hook import data_private, keras_private
from shoal.hook.backends import leaves
from shoal.hook.calls.refused_data import refuse_divided, refuse_sampler_by_rank
from shoal.hook.calls.shard_streams import ShardStream
from shoal.training.data_agreement import agree_on_data
from shoal.training.run import Run

DEFAULT_BATCH_SIZE = 32  # Keras's own
_ENDLESS = 2**40  # batches: what Grain repeats forever says that it has more


class DataRequest(msgspec.Struct, frozen=True):
    """The data arguments of `fit`, `evaluate` or `predict`."""

    what: str  # "fit", "evaluate", "predict" or "validation"; for errors and for the exchange of streams
    x: Any
    y: Any = None
    sample_weight: Any = None
    batch_size: int | None = None
    steps: int | None = None
    class_weight: dict[int, float] | None = None
    shuffle: bool | str = False
    seed: int = 0

    @property
    def shuffle_seed(self) -> int | None:
        return self.seed if self.shuffle else None

    def batch_size_of(self, samples: int) -> int:
        """Of arrays with so many samples. As in Keras, steps alone say it too."""
        if self.batch_size:
            return self.batch_size
        return max(1, -(-samples // self.steps)) if self.steps else DEFAULT_BATCH_SIZE


def open_source(request: DataRequest, run: Run) -> AbstractSource:
    """The source for a request; raises UsageError for data that can't be used, before anything is trained.

    All workers call it together, but those who come late.
    """
    source = _open(request, run)
    try:
        return agree_on_data(request.what, source, _shards_of(request.x), run)
    except BaseException:
        source.close()
        raise


def _open(request: DataRequest, run: Run) -> AbstractSource:
    x = request.x
    if x is None:
        raise UsageError(f"{request.what}() got no data: x is None")
    if not is_arrays(x) and (request.y is not None or request.sample_weight is not None):
        raise UsageError(
            f"{request.what}(): y and sample_weight can't be given beside a {type(x).__name__}, which gives them "
            "itself: let it yield (x, y, sample_weight)."
        )
    refuse_divided(request.what, x, x.dataset if _is_torch_loader(x) else None)
    if isinstance(x, ShardStream):
        return _shard_stream(request)
    if isinstance(x, keras.utils.PyDataset):
        return _py_dataset(request)
    if data_private.is_grain_map(x):
        return _grain_map(request)
    if _is_torch_loader(x):
        return _torch_loader(request)
    if _is_tf_dataset(x):
        return _tf_dataset(request, run)
    if _is_iterator(x):
        return _stream(request, Once(iter(x)))
    if _is_other_iterable(x):
        return _stream(request, Restartable(lambda: iter(x)))
    return _arrays(request)


def is_arrays(x: Any) -> bool:
    """Whether data is held in arrays, and not given out batch by batch."""
    return not (
        isinstance(x, keras.utils.PyDataset | ShardStream)
        or _is_torch_loader(x)
        or _is_tf_dataset(x)
        or _is_iterator(x)
        or _is_other_iterable(x)
    )


def inputs_of(batch: Any) -> Any:
    """The model's inputs in a batch, without targets and weights."""
    return keras.utils.unpack_x_y_sample_weight(batch)[0]


def example(spec: Spec, size: int) -> Any:
    """A batch of zeros that takes no memory: to build and trace with."""
    return leaves.to_batch(spec, [blank(leaf, size) for leaf in spec.leaves])


def size_of_batches(request: DataRequest, spec: Spec) -> int:
    """How many samples a batch has, at most; where only the data tells it, as many as the first."""
    if is_arrays(request.x):
        return min(request.batch_size_of(spec.samples), spec.samples)
    if _is_torch_loader(request.x) and isinstance(request.x.batch_size, int):
        return request.x.batch_size
    return spec.samples


def split_validation(request: DataRequest, fraction: float) -> tuple[DataRequest, tuple[Any, Any, Any]]:
    """The last `fraction` of the samples becomes validation data, as in Keras."""
    if not 0 < fraction < 1:
        raise UsageError(f"validation_split={fraction}: expected a number between 0 and 1")
    given, skeleton = flatten((request.x, request.y, request.sample_weight))
    try:
        columns = [leaves.to_column(leaf) for leaf in given]
    except CannotDistribute as error:
        raise UsageError(f"validation_split needs arrays: {error}. Pass validation_data instead.") from error
    count = len(columns[0])
    at = int(np.floor(count * (1.0 - fraction)))
    if at in (0, count):
        raise UsageError(
            f"validation_split={fraction} of {count} samples leaves one side without any. "
            "Provide more data or another fraction."
        )
    x, y, weight = rebuild(skeleton, [column[:at] for column in columns])
    held_out = rebuild(skeleton, [column[at:] for column in columns])
    return msgspec.structs.replace(request, x=x, y=y, sample_weight=weight), held_out


# Each kind of data --------------------------------------------------------------------------------------


def _arrays(request: DataRequest) -> AbstractSource:
    if request.batch_size is not None and request.batch_size < 0:
        raise UsageError(f"{request.what}(): batch_size={request.batch_size}; expected at least 1")
    weight = _weight_per_output(request.y, request.sample_weight)
    given, skeleton = flatten(keras.utils.pack_x_y_sample_weight(request.x, request.y, weight))
    columns = [leaves.to_column(leaf) for leaf in given]
    counts = sorted({len(column) for column in columns})
    if len(counts) != 1:
        raise UsageError(
            f"{request.what}(): the arrays have different numbers of samples: {', '.join(map(str, counts))}. "
            "x, y and sample_weight must have one row per sample."
        )
    if counts[0] == 0:
        raise UsageError(f"{request.what}(): the arrays have no samples")
    columns, skeleton = _weigh_classes(request, columns, skeleton)
    batch_size = request.batch_size_of(counts[0])
    if any(map(leaves.pads, columns)):
        return _padded_by_batch(request, columns, skeleton, batch_size)
    return Arrays(columns, skeleton, batch_size, request.shuffle_seed, request.shuffle == "batch", request.steps)


def _padded_by_batch(request: DataRequest, columns: Rows, skeleton: Skeleton, batch_size: int) -> AbstractSource:
    """Arrays whose rows are padded to the longest of their batch: every worker needs all of it to know."""
    count = len(columns[0])

    def load(indices: Sequence[int]) -> Rows:
        return [leaves.settle(column[np.asarray(indices)]) for column in columns]

    seen = load(range(min(count, batch_size)))
    return Items(
        load,
        Spec.of(seen, skeleton),
        count,
        batch_size,
        request.shuffle_seed,
        False,
        request.steps,
        whole_batches=True,
        seen=digest_of(seen, count),
    )


def _py_dataset(request: DataRequest) -> AbstractSource:
    dataset = request.x
    count = dataset.num_batches
    if count is not None and count < 1:
        raise UsageError(f"{request.what}(): {type(dataset).__name__} has {count} batches; expected at least 1")
    if count is None and request.steps is None and request.what != "fit":
        raise UsageError(
            f"{request.what}(): {type(dataset).__name__} never ends (its num_batches is None). Pass "
            f"{_steps_argument(request)}."
        )

    if callable(getattr(dataset, "rows", None)):
        return _py_dataset_rows(request, count)

    def load(index: int) -> tuple[Rows, Skeleton]:
        return rows_of(request, dataset[index])

    rows, skeleton = load(0)
    return Batches(lambda index: load(index)[0], _series_of(request, rows, Spec.of(rows, skeleton), count))


def _py_dataset_rows(request: DataRequest, count: int | None) -> AbstractSource:
    """One that gives some rows of a batch: `rows(index, low, high)`, and `num_rows(index)` says how many there are."""
    dataset, name = request.x, type(request.x).__name__
    if not callable(getattr(dataset, "num_rows", None)):
        raise UsageError(
            f"{request.what}(): {name} has rows(index, low, high), and no num_rows(index), which tells how many rows "
            "batch `index` has. Add it: Shoal divides the rows of a batch before anybody reads them."
        )

    def load(index: int, held: range) -> tuple[Rows, Skeleton]:
        return rows_of(request, dataset.rows(index, held.start, held.stop))

    rows, spec = _first_row(request, dataset.num_rows, load)
    series = _series_of(request, rows, spec, count)
    return RowBatches(dataset.num_rows, lambda index, held: load(index, held)[0], series)


def _series_of(request: DataRequest, rows: Rows, spec: Spec, count: int | None) -> BatchSeries:
    """The batches of a PyDataset, of which these rows were looked at."""
    dataset = request.x
    return BatchSeries(
        spec,
        count,
        request.shuffle_seed,
        request.steps,
        dataset.on_epoch_begin if hasattr(dataset, "on_epoch_begin") else lambda: None,
        dataset.on_epoch_end,
        max(1, dataset.workers),
        digest_of(rows, count or 0),
    )


def _first_row(
    request: DataRequest, size: Callable[[int], int], load: Callable[[int, range], tuple[Rows, Skeleton]]
) -> tuple[Rows, Spec]:
    """Of the first batch, to learn what rows are like."""
    first = size(0)
    if first < 1:
        raise UsageError(f"{request.what}(): the first batch of {type(request.x).__name__} has {first} rows")
    rows, skeleton = load(0, range(1))
    return rows, msgspec.structs.replace(Spec.of(rows, skeleton), samples=first)


def _grain_map(request: DataRequest) -> AbstractSource:
    """A grain.MapDataset of batches, which can be asked for by number, in its own order."""
    dataset = request.x
    if request.class_weight is not None:
        raise UsageError("class_weight is not supported with a Grain data set: return sample weights from it")
    length = len(dataset)
    if length < 1:
        raise UsageError(f"{request.what}(): the grain.MapDataset has no batch")
    count = length if length < _ENDLESS else None
    if count is None and request.steps is None and request.what != "fit":
        raise UsageError(f"{request.what}(): the grain.MapDataset never ends. Pass {_steps_argument(request)}.")
    batches = data_private.grain_batches(dataset)
    if batches is None:
        rows, skeleton = rows_of(request, dataset[0])
        series = BatchSeries(Spec.of(rows, skeleton), count, None, request.steps, seen=digest_of(rows, count or 0))
        return Batches(lambda index: rows_of(request, dataset[index])[0], series)
    whole = len(batches.samples)

    def size(index: int) -> int:
        return min(batches.size, whole - index * batches.size)

    def load(index: int, held: range) -> tuple[Rows, Skeleton]:
        first = index * batches.size
        return rows_of(request, batches.join([batches.samples[first + row] for row in held]))

    rows, spec = _first_row(request, size, load)
    series = BatchSeries(spec, count, None, request.steps, seen=digest_of(rows, count or 0))
    return RowBatches(size, lambda index, held: load(index, held)[0], series)


def _shard_stream(request: DataRequest) -> AbstractSource:
    if request.class_weight is not None:
        raise UsageError("class_weight is not supported with shoal.stream: let it give (x, y, sample_weight)")
    goes_on = request.what == "fit" and request.steps is not None
    stream: ShardStream = request.x
    return stream.source(request.what, partial(rows_of, request), request.steps, goes_on)


def _torch_loader(request: DataRequest) -> AbstractSource:
    """Map-style loaders with the usual samplers are indexed; any other loader is a stream."""
    from torch.utils.data import default_collate

    loader = request.x
    if request.class_weight is not None:
        raise UsageError(
            "class_weight is not supported with a torch DataLoader: return sample weights from the data set"
        )
    refuse_sampler_by_rank(request.what, loader)
    shuffles = _shuffles(loader)
    if shuffles is None:
        return _loader_stream(request)

    def load(indices: Sequence[int]) -> tuple[Rows, Skeleton]:
        many = getattr(loader.dataset, "__getitems__", None)  # torch's own loader uses it, too
        found = many(list(indices)) if callable(many) else [loader.dataset[i] for i in indices]
        return rows_of(request, loader.collate_fn(found))

    count, size = len(loader.dataset), loader.batch_size
    if count == 0 or (loader.drop_last and count < size):
        raise UsageError(
            f"{request.what}(): the DataLoader has no batch: {count} samples, batches of {size}"
            f"{', and drop_last' if loader.drop_last else ''}"
        )
    # A collate function of the user's own may look at the whole batch (to pad it): it gets the whole batch.
    in_batches = loader.collate_fn is not default_collate
    looked_at = range(min(count, size) if in_batches else 1)
    rows, skeleton = load(looked_at)
    if {len(row) for row in rows} != {len(looked_at)}:
        return _loader_stream(request)  # not one row per sample: it can't be cut
    return Items(
        lambda indices: load(indices)[0],
        Spec.of(rows, skeleton),
        count,
        size,
        request.seed if shuffles else None,
        loader.drop_last,
        request.steps,
        max(1, loader.num_workers),
        in_batches,
        digest_of(rows, count),
    )


def _shuffles(loader: Any) -> bool | None:
    """Whether a loader takes its samples in random order; None for any other than the usual ways to take all."""
    from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

    sampler = getattr(loader, "sampler", None)
    if loader.batch_size is None:
        return None
    if isinstance(sampler, DistributedSampler):
        return bool(sampler.shuffle)
    if isinstance(sampler, RandomSampler):
        return True if not sampler.replacement and sampler.num_samples == len(loader.dataset) else None
    return False if isinstance(sampler, SequentialSampler) else None


def _loader_stream(request: DataRequest) -> AbstractSource:
    return _stream(request, Restartable(lambda: iter(request.x)), _length(request.x))


def _tf_dataset(request: DataRequest, run: Run) -> AbstractSource:
    dataset = request.x
    cardinality = int(dataset.cardinality())
    if cardinality == -1 and request.steps is None:
        if request.what != "fit":
            raise UsageError(f"{request.what}(): the tf.data.Dataset never ends. Pass {_steps_argument(request)}.")
        run.tell("fit(): the tf.data.Dataset never ends, and so its first epoch: pass steps_per_epoch to end it")
    if cardinality == 0:
        raise UsageError(f"{request.what}(): the tf.data.Dataset has no batch; was a last, smaller one dropped?")
    is_dense = all(type(spec).__name__ == "TensorSpec" for spec in flatten(dataset.element_spec)[0])
    start = dataset.as_numpy_iterator if is_dense else dataset.__iter__
    return _stream(request, Restartable(start), cardinality if cardinality >= 0 else None)


def _stream(request: DataRequest, reader: AbstractReader, count: int | None = None) -> AbstractSource:
    is_fit = request.what == "fit"
    # As in Keras: training goes on where the last epoch stopped, validation begins anew every time.
    goes_on = is_fit and request.steps is not None
    keeps = isinstance(reader, Once) and not is_fit
    return Stream(request.what, reader, partial(rows_of, request), request.steps, count, goes_on, keeps)


def rows_of(request: DataRequest, batch: Any) -> tuple[Rows, Skeleton]:
    """One batch as (x, y, weights) rows, whatever wrapped it."""
    if isinstance(batch, list):
        batch = tuple(batch)  # as Keras: a list from a loader is (x, y)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    given, skeleton = flatten(keras.utils.pack_x_y_sample_weight(x, y, weight))
    return _weigh_classes(request, [leaves.settle(leaves.to_column(leaf)) for leaf in given], skeleton)


def _weight_per_output(y: Any, weight: Any) -> Any:
    """As Keras: one array of weights for several outputs is meant for each of them."""
    outputs, skeleton = flatten(y)
    if weight is None or isinstance(weight, list | tuple | dict) or skeleton in (None, "leaf"):
        return weight
    return rebuild(skeleton, [weight] * len(outputs))


def _weigh_classes(request: DataRequest, rows: Rows, skeleton: Skeleton) -> tuple[Rows, Skeleton]:
    if request.class_weight is None:
        return rows, skeleton
    x, y, weight = keras.utils.unpack_x_y_sample_weight(rebuild(skeleton, rows))
    if weight is not None:
        raise UsageError("class_weight and sample_weight can't both be given: multiply them into sample_weight")
    if y is None or not isinstance(y, np.ndarray):
        raise UsageError("class_weight needs targets `y` of a single output")
    labels = y
    if labels.ndim > 1:
        labels = labels[..., 0] if labels.shape[-1] == 1 else np.argmax(labels, axis=-1)
    classes, places = np.unique(np.round(labels).astype(np.int64), return_inverse=True)
    weights = np.array([request.class_weight.get(int(c), 1.0) for c in classes], keras.config.floatx())
    return flatten((x, y, weights[places.reshape(labels.shape)]))


def _steps_argument(request: DataRequest) -> str:
    return {"fit": "steps_per_epoch", "validation": "validation_steps"}.get(request.what, "steps")


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # an iterable data set has no length
        return None


# What data is -------------------------------------------------------------------------------------------


def _is_tf_dataset(x: Any) -> bool:
    return any(c.__module__.startswith("tensorflow.") and c.__name__ == "DatasetV2" for c in type(x).__mro__)


def _is_torch_loader(x: Any) -> bool:
    return any(c.__module__.startswith("torch.utils.data") and c.__name__ == "DataLoader" for c in type(x).__mro__)


def _is_iterator(x: Any) -> bool:
    """Such as a generator: what has been read of it is gone."""
    return hasattr(x, "__next__") and not hasattr(x, "__array__")


def _is_other_iterable(x: Any) -> bool:
    """Such as a Grain data set: it can be iterated, and is neither an array nor a nest of arrays."""
    array_like = hasattr(x, "__array__") or hasattr(x, "shape")
    return hasattr(x, "__iter__") and not array_like and not isinstance(x, list | tuple | dict)


def _shards_of(x: Any) -> list[tuple[int, int]]:
    """Every `shard(number, index)` in a tf.data pipeline, from its end to its beginning."""
    return keras_private.shards_of(x) if _is_tf_dataset(x) else []

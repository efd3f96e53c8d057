"""From what a user gives to `fit`, `evaluate` or `predict` to a source of batches.

Only here is it known that there are pandas frames, tensors, PyDatasets, tf.data and torch loaders.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import msgspec
import numpy as np

from shoal.collectives.group import Company
from shoal.data.sources import AbstractSource, Arrays, Batches, Items, Rows, Spec, Stream
from shoal.data.structure import Skeleton, flatten, rebuild
from shoal.errors import CannotDistribute, Diverged, UsageError

DEFAULT_BATCH_SIZE = 32  # Keras's own


class Request(msgspec.Struct, frozen=True):
    """The data arguments of `fit`, `evaluate` or `predict`."""

    what: str  # "fit", "evaluate" or "predict"; for errors and for the exchange of streams
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


def open_source(request: Request, company: Company) -> AbstractSource:
    """The source for a request; raises UsageError for data that can't be used, before anything is trained."""
    source = _open(request)
    if company.is_late:  # what the others agreed on is over; this worker's data is taken for theirs
        if isinstance(source, Stream):
            source.know(source.peek())
        return source
    if isinstance(source, Stream):
        stream = source
        told = company.gather(
            f"{request.what}: what batches look like", lambda group: stream.peek() if group.rank == 0 else b""
        )
        stream.know(told.chiefs)
        return stream
    odd = company.gather(f"{request.what}: the data", source.sample()).unlike_chiefs()
    if odd:
        source.close()
        raise Diverged(
            f"{request.what}(): the data of {', '.join(odd)} differs from the chief's, so samples would be trained "
            "twice or never. Every worker must load the same data in the same order: give a fixed seed to whatever "
            "shuffles, splits or generates it (`np.random.default_rng(0)`, `random_state=0`)."
        )
    return source


def _open(request: Request) -> AbstractSource:
    x = request.x
    if x is None:
        raise UsageError(f"{request.what}() got no data: x is None")
    if not is_arrays(x) and (request.y is not None or request.sample_weight is not None):
        raise UsageError(
            f"{request.what}(): y and sample_weight can't be given beside a {type(x).__name__}, which gives them "
            "itself: let it yield (x, y, sample_weight)."
        )
    if isinstance(x, keras.utils.PyDataset):
        return _py_dataset(request)
    if _is_torch_loader(x):
        return _torch_loader(request)
    if _is_tf_dataset(x):
        return _tf_dataset(request)
    if isinstance(x, types.GeneratorType) or (hasattr(x, "__next__") and not hasattr(x, "__array__")):
        return _generator(request)
    if _is_other_iterable(x):
        return _stream(request, lambda: iter(x))
    return _arrays(request)


def is_arrays(x: Any) -> bool:
    """Whether data is held in arrays, and not given out batch by batch."""
    return not (
        isinstance(x, keras.utils.PyDataset)
        or _is_torch_loader(x)
        or _is_tf_dataset(x)
        or (hasattr(x, "__next__") and not hasattr(x, "__array__"))
        or _is_other_iterable(x)
    )


def as_batch(spec: Spec, rows: Rows) -> Any:
    """Rows in the nesting that `train_step` expects."""
    return rebuild(spec.skeleton, rows)


def inputs_of(batch: Any) -> Any:
    """The model's inputs in a batch, without targets and weights."""
    return keras.utils.unpack_x_y_sample_weight(batch)[0]


def example(spec: Spec, size: int) -> Any:
    """A batch of zeros that takes no memory: to build and trace with."""
    leaves = [
        np.broadcast_to(np.zeros((), dtype), (size, *shape))
        for dtype, shape in zip(spec.dtypes, spec.shapes, strict=True)
    ]
    return rebuild(spec.skeleton, leaves)


def size_of_batches(request: Request, spec: Spec) -> int:
    """How many samples a batch has, at most; where only the data tells it, as many as the first."""
    if is_arrays(request.x):
        return request.batch_size or DEFAULT_BATCH_SIZE
    size = getattr(request.x, "batch_size", None)
    return size if isinstance(size, int) else spec.samples


def split_validation(request: Request, fraction: float) -> tuple[Request, tuple[Any, Any, Any]]:
    """The last `fraction` of the samples becomes validation data, as in Keras."""
    if not 0 < fraction < 1:
        raise UsageError(f"validation_split={fraction}: expected a number between 0 and 1")
    leaves, skeleton = flatten((request.x, request.y, request.sample_weight))
    try:
        arrays = [to_numpy(leaf) for leaf in leaves]
    except CannotDistribute as error:
        raise UsageError(f"validation_split needs arrays: {error}. Pass validation_data instead.") from error
    count = len(arrays[0])
    at = int(np.floor(count * (1.0 - fraction)))
    if at in (0, count):
        raise UsageError(
            f"validation_split={fraction} of {count} samples leaves one side without any. "
            "Provide more data or another fraction."
        )
    x, y, weight = rebuild(skeleton, [array[:at] for array in arrays])
    held_out = rebuild(skeleton, [array[at:] for array in arrays])
    return msgspec.structs.replace(request, x=x, y=y, sample_weight=weight), held_out


def to_numpy(leaf: Any) -> np.ndarray[Any, Any]:
    """Any dense array-like as numpy, floats in Keras's float type. Shares memory where it can."""
    module = type(leaf).__module__.partition(".")[0]
    array: np.ndarray[Any, Any]
    if module == "pandas":
        array = leaf.to_numpy()
        array = array[:, None] if array.ndim == 1 else array
    elif module == "torch":
        array = leaf.detach().cpu().numpy()
    elif hasattr(leaf, "__array__") or isinstance(leaf, int | float | list):
        array = np.asarray(leaf)
    else:
        raise CannotDistribute(
            f"can't cut a {type(leaf).__module__}.{type(leaf).__qualname__} into pieces; expected a dense array or "
            "tensor with one row per sample. Convert sparse and ragged data to dense arrays."
        )
    if array.dtype.kind in "OUS":
        raise CannotDistribute(
            "got an array of strings or objects; expected numbers. Turn text into numbers before `fit`, for example "
            "with keras.layers.StringLookup or TextVectorization outside of the model."
        )
    if array.ndim == 0:
        raise CannotDistribute("got a single number where an array with one row per sample was expected")
    floatx = keras.config.floatx()
    if array.dtype.kind == "f" and str(array.dtype) != floatx:
        array = array.astype(floatx)
    return array


def _arrays(request: Request) -> AbstractSource:
    structure = keras.utils.pack_x_y_sample_weight(request.x, request.y, request.sample_weight)
    leaves, skeleton = flatten(structure)
    rows = [to_numpy(leaf) for leaf in leaves]
    counts = sorted({len(row) for row in rows})
    if len(counts) > 1:
        raise UsageError(
            f"{request.what}(): the arrays have different numbers of samples: {', '.join(map(str, counts))}. "
            "x, y and sample_weight must have one row per sample."
        )
    rows, skeleton = _weigh_classes(request, rows, skeleton)
    batch_size = request.batch_size or DEFAULT_BATCH_SIZE
    if counts[0] == 0:
        raise UsageError(f"{request.what}(): the arrays have no samples")
    if request.what == "fit" and counts[0] < batch_size:
        raise UsageError(
            f"fit(): {counts[0]} samples do not fill one batch of {batch_size}. "
            f"Use a batch_size of at most {counts[0]}, or more data."
        )
    return Arrays(rows, skeleton, batch_size, request.shuffle_seed, request.shuffle == "batch", request.steps)


def _py_dataset(request: Request) -> AbstractSource:
    dataset = request.x
    count = dataset.num_batches
    if count is None or count < 1:
        raise CannotDistribute(
            f"{request.what}(): {type(dataset).__name__} has {count} batches; expected a PyDataset with a "
            "`__len__` of at least 1, so that batches can be asked for by number. For endless data pass "
            "a generator and `steps_per_epoch`."
        )

    def load(index: int) -> tuple[Rows, Skeleton]:
        return _rows_of(request, dataset[index])

    return Batches(
        lambda index: load(index)[0],
        Spec.of(*load(0)),
        count,
        request.shuffle_seed,
        request.steps,
        dataset.on_epoch_begin if hasattr(dataset, "on_epoch_begin") else lambda: None,
        dataset.on_epoch_end,
        max(1, dataset.workers),
    )


def _torch_loader(request: Request) -> AbstractSource:
    """Map-style loaders with the usual samplers are indexed; any other loader is a stream."""
    from torch.utils.data import RandomSampler, SequentialSampler, default_collate

    loader = request.x
    if request.class_weight is not None:
        raise UsageError(
            "class_weight is not supported with a torch DataLoader: return sample weights from the data set"
        )
    sampler = getattr(loader, "sampler", None)
    plain = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == len(loader.dataset)
    )
    if not plain or loader.batch_size is None:
        return _stream(request, lambda: iter(loader), known=_length(loader))

    def load(indices: Sequence[int]) -> tuple[Rows, Skeleton]:
        return _rows_of(request, loader.collate_fn([loader.dataset[i] for i in indices]))

    count = len(loader.dataset)
    if request.what == "fit" and count < loader.batch_size:
        raise UsageError(
            f"fit(): the DataLoader's {count} samples do not fill one batch of {loader.batch_size}. "
            f"Use a batch_size of at most {count}, or more data."
        )
    # A collate function of the user's own may look at the whole batch (to pad it): it gets the whole batch.
    whole = loader.collate_fn is not default_collate
    return Items(
        lambda indices: load(indices)[0],
        Spec.of(*load(range(min(count, loader.batch_size)) if whole else [0])),
        count,
        loader.batch_size,
        request.seed if isinstance(sampler, RandomSampler) else None,
        loader.drop_last,
        request.steps,
        max(1, loader.num_workers),
        whole,
    )


def _tf_dataset(request: Request) -> AbstractSource:
    cardinality = int(request.x.cardinality())
    if cardinality == -1 and request.steps is None:
        raise UsageError(
            f"{request.what}(): the tf.data.Dataset never ends. Pass steps_per_epoch (validation_steps for validation "
            "data, steps for evaluate and predict)."
        )
    known = cardinality if cardinality >= 0 else None
    if known == 0:
        raise UsageError(f"{request.what}(): the tf.data.Dataset has no batch; was a last, smaller one dropped?")
    return _stream(request, lambda: iter(request.x.as_numpy_iterator()), known)


def _generator(request: Request) -> AbstractSource:
    if request.steps is None:
        argument = "steps_per_epoch" if request.what == "fit" else "steps (validation_steps for validation data)"
        raise UsageError(
            f"{request.what}() on a generator needs {argument}: how many batches a generator has can't be known before "
            "it ends, and it may never end."
        )
    return _stream(request, lambda: request.x, restarts=False)


def _stream(
    request: Request,
    restart: Callable[[], Iterator[Any]],
    known: int | None = None,
    restarts: bool = True,
) -> AbstractSource:
    kept: list[Any] = []  # the first batch, which was read to learn what batches look like

    def first() -> tuple[Rows, Skeleton] | None:
        iterator = restart()
        for batch in iterator:
            kept.extend([batch, iterator])
            return _rows_of(request, batch)
        return None

    def started() -> Iterator[Rows]:
        if kept:
            batch, iterator = kept
            kept.clear()
            yield _rows_of(request, batch)[0]
        else:
            iterator = restart()
        for batch in iterator:
            yield _rows_of(request, batch)[0]

    steps = request.steps or known
    # As in Keras: training goes on where the last epoch stopped, validation sees the same batches every time.
    goes_on = request.steps is not None and (request.what == "fit" or not restarts)
    keeps = not restarts and request.what != "fit"
    return Stream(request.what, started, first, steps, goes_on, keeps)


def _rows_of(request: Request, batch: Any) -> tuple[Rows, Skeleton]:
    """One batch as (x, y, weights) rows, whatever wrapped it."""
    if isinstance(batch, list):
        batch = tuple(batch)  # as Keras: a list from a loader is (x, y)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    leaves, skeleton = flatten(keras.utils.pack_x_y_sample_weight(x, y, weight))
    return _weigh_classes(request, [to_numpy(leaf) for leaf in leaves], skeleton)


def _weigh_classes(request: Request, rows: Rows, skeleton: Skeleton) -> tuple[Rows, Skeleton]:
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


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # an iterable data set has no length
        return None


def _is_tf_dataset(x: Any) -> bool:
    return any(c.__module__.startswith("tensorflow.") and c.__name__ == "DatasetV2" for c in type(x).__mro__)


def _is_torch_loader(x: Any) -> bool:
    return any(c.__module__.startswith("torch.utils.data") and c.__name__ == "DataLoader" for c in type(x).__mro__)


def _is_other_iterable(x: Any) -> bool:
    """Such as a Grain data set: it can be iterated, and is neither an array nor a nest of arrays."""
    array_like = hasattr(x, "__array__") or hasattr(x, "shape")
    return hasattr(x, "__iter__") and not array_like and not isinstance(x, list | tuple | dict)

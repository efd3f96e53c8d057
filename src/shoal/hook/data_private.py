"""Every private name of Grain and of Hugging Face's datasets that Shoal uses, and what happens where one is gone.

As keras_private.py for Keras and the backends. Without them data is read all the same: as batches instead of rows, or
skipped forward instead of continued. Neither package is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class GrainBatches(NamedTuple):
    """A Grain data set of batches, taken apart."""

    samples: Any  # the data set whose elements the batches are made of
    size: int
    drops_rest: bool
    join: Callable[[Sequence[Any]], Any]


def is_grain_map(data: Any) -> bool:
    """Whether it is a grain.MapDataset."""
    return _is(data, "grain.", "MapDataset")


def grain_batches(data: Any) -> GrainBatches | None:
    """What `.batch(n)` of a MapDataset batches; None where the batches are made in another way."""
    if type(data).__name__ != "BatchMapDataset" or not is_grain_map(data):
        return None
    own = getattr(data, "__dict__", {})
    parents, size, drops = (own.get(name) for name in ("_parents", "_batch_size", "_drop_remainder"))
    join = own.get("_batch_fn")
    module = getattr(join, "__module__", None) or type(join).__module__
    if not parents or not isinstance(size, int) or not callable(join) or not str(module).startswith("grain."):
        return None  # a function of the user's own may look at the whole batch
    return GrainBatches(parents[0], size, bool(drops), join)


def grain_shards(data: Any) -> tuple[int, int] | None:
    """Number and index of the shard that a grain.DataLoader reads, if it reads one of several."""
    if not _is(data, "grain.", "DataLoader"):
        return None
    options = getattr(data, "_shard_options", None) or getattr(getattr(data, "_sampler", None), "_shard_options", None)
    number, index = getattr(options, "shard_count", 1), getattr(options, "shard_index", 0)
    return (number, index) if isinstance(number, int) and number > 1 else None


def is_hugging_face(data: Any) -> bool:
    """Whether it is a datasets.Dataset or datasets.IterableDataset."""
    return _is(data, "datasets.", "Dataset") or _is(data, "datasets.", "IterableDataset")


def hugging_face_split(data: Any) -> tuple[int, int] | None:
    """World size and rank that `split_dataset_by_node` divided a datasets.IterableDataset by."""
    divided = getattr(data, "_distributed", None) if _is(data, "datasets.", "IterableDataset") else None
    number, rank = getattr(divided, "world_size", 1), getattr(divided, "rank", 0)
    return (number, rank) if isinstance(number, int) and number > 1 else None


def forgets_its_buffer(data: Any) -> bool:
    """Whether the state of a datasets.IterableDataset leaves out samples: those in the buffer of `.shuffle()`."""
    if not _is(data, "datasets.", "IterableDataset"):
        return False
    waiting, seen = [getattr(data, "_ex_iterable", None)], 0
    while waiting and seen < 1000:
        part, seen = waiting.pop(), seen + 1
        if part is None:
            return True  # a version that is not known: read from the beginning, nothing can be left out
        if "BufferShuffled" in type(part).__name__:
            return True
        inner = getattr(part, "ex_iterable", None)
        waiting += [*([inner] if inner is not None else []), *(getattr(part, "ex_iterables", None) or [])]
    return False


def _is(data: Any, package: str, name: str) -> bool:
    return any(c.__module__.startswith(package) and c.__name__ == name for c in type(data).__mro__)

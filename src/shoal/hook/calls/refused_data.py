"""Data that other libraries divide by rank is refused by name: Shoal divides it, and would read a part of a part."""

from __future__ import annotations

from typing import Any

from shoal.errors import CannotDistribute, UsageError
from shoal.hook import data_private


def refuse_divided(what: str, x: Any, inner: Any) -> None:
    """Data that another library divides by rank: of a stream only the chief's part would be read.

    `inner`: what a loader loads.
    """
    divided = next(filter(None, map(data_private.hugging_face_split, (x, inner))), None)
    if divided is not None:
        raise CannotDistribute(
            f"{what}(): split_dataset_by_node has divided the data set among {divided[0]} processes, of which "
            f"this is part {divided[1]}. Leave it out: Shoal divides each batch among the workers. To read on all of "
            "them, see shoal.stream."
        )
    divided = data_private.grain_shards(x)
    if divided is not None:
        raise CannotDistribute(
            f"{what}(): the grain.DataLoader reads shard {divided[1]} of {divided[0]}. Leave shard_options out "
            "(grain.sharding.NoSharding()): Shoal divides each batch among the workers. To read on all of them, see "
            "shoal.stream."
        )
    if data_private.is_hugging_face(x):
        raise UsageError(
            f"{what}() got a datasets.{type(x).__name__}, which Keras does not take. Give it to a torch "
            "DataLoader, of which every worker reads its own rows, or to shoal.stream."
        )


def refuse_sampler_by_rank(what: str, loader: Any) -> None:
    """A DistributedSampler, be it the loader's own or within another: `batch_size` is that of one part then, and a
    stream would be read from the chief's part alone."""
    from torch.utils.data import DistributedSampler

    sampler, depth = getattr(loader, "batch_sampler", None), 0
    if sampler is None:  # not by its truth: that of an iterable data set asks for a length, and has none
        sampler = getattr(loader, "sampler", None)
    while sampler is not None and depth < 10:
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
            raise CannotDistribute(
                f"{what}(): the DataLoader takes its samples from a DistributedSampler, part {sampler.rank} of "
                f"{sampler.num_replicas}. Leave it out: Shoal divides the batches of the whole data set among the "
                "workers. DataLoader(dataset, batch_size=…, shuffle=True) is read by all of them, each its own rows; "
                "batch_size is then that of all workers together."
            )
        sampler, depth = getattr(sampler, "sampler", None), depth + 1

"""Where batches come from. Every source gives a worker the rows of its own pieces, and nothing else.

Arrays         indexed: a worker touches its own rows only.
Items          indexed sample by sample (a map-style loader): a worker loads its own samples only.
Batches        indexed batch by batch (a PyDataset): a worker loads each batch and keeps its own rows.
RowBatches     indexed by batch and row (a PyDataset with `rows`, Grain's MapDataset): a worker loads its own rows only.
Stream         read once, by the chief, who hands every worker its rows.
ShardedStream  in shards, each of them a stream: a worker reads those whose rows it computes.
HandedOut      any of them, read by the chief alone: where the workers' data differs.

A step's rows are always one contiguous range of the global batch, because a worker holds contiguous pieces.
"""

from shoal.data.sources.arrays import Arrays
from shoal.data.sources.batches import Batches
from shoal.data.sources.handed_out import HandedOut
from shoal.data.sources.items import Items
from shoal.data.sources.numbered_batches import BatchSeries
from shoal.data.sources.rank import Rank
from shoal.data.sources.row_batches import RowBatches
from shoal.data.sources.shares import Spec, Split, Taken, digest_of, hand_out, share, size_of
from shoal.data.sources.source import AbstractSource, AbstractStream, Bookmark, Wanted, every_step

__all__ = [
    "AbstractSource",
    "AbstractStream",
    "Arrays",
    "BatchSeries",
    "Batches",
    "Bookmark",
    "HandedOut",
    "Items",
    "Rank",
    "RowBatches",
    "Spec",
    "Split",
    "Taken",
    "Wanted",
    "digest_of",
    "every_step",
    "hand_out",
    "share",
    "size_of",
]

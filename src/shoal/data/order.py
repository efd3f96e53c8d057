"""The order of samples and the cut of a batch into pieces. Pure: (seed, epoch, step) in, numbers out."""

from __future__ import annotations

import numpy as np

Indices = np.ndarray[tuple[int], np.dtype[np.int64]]


def permutation(seed: int, epoch: int, count: int) -> Indices:
    """The order of `count` things in an epoch: the same on every machine, whatever else drew random numbers."""
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, epoch]))
    return generator.permutation(count)


def piece_bounds(size: int, pieces: int) -> list[int]:
    """Where each piece of a batch of `size` samples begins, and, last, where the batch ends.

    Pieces are equal but for one sample: the first `size % pieces` of them have one more.
    """
    small, larger = divmod(size, pieces)
    return [piece * small + min(piece, larger) for piece in range(pieces + 1)]


def pieces_of(size: int, pieces: int) -> int:
    """How many pieces a batch of `size` samples is cut into: a piece holds at least one sample."""
    return min(pieces, size)


def whole_batch_to(owner: int, size: int, workers: int) -> list[range]:
    """The split of a batch that one rank gets whole."""
    return [range(size) if rank == owner else range(0) for rank in range(workers)]

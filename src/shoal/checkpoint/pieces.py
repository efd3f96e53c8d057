"""Tensors that are written in pieces, because no single process holds all of one. Pure.

A piece is a range of a tensor's elements, as its name says (tensor_names.py). A checkpoint holds all pieces of a tensor
or none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from shoal.checkpoint.tensor_names import Piece, piece_of

Array = np.ndarray[Any, Any]


def wholes(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Tensors by name, dtype and shape; whole ones in the place of their pieces. ValueError if those do not fit."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    pieces: dict[str, list[tuple[Piece, str]]] = {}
    for name, dtype, shape in tensors:
        piece = piece_of(name)
        if piece is None:
            found[name] = (dtype, shape)
        elif shape != (piece.stop - piece.start,):
            raise ValueError(f"{name!r} has the shape {shape}")
        else:
            pieces.setdefault(piece.whole, []).append((piece, dtype))
    for whole, held in pieces.items():
        held.sort()
        shapes, dtypes = {piece.shape for piece, _ in held}, {dtype for _, dtype in held}
        edges = [0, *(piece.stop for piece, _ in held)]
        complete = [piece.start for piece, _ in held] == edges[:-1] and edges[-1] == math.prod(held[0][0].shape)
        if whole in found or len(shapes) > 1 or len(dtypes) > 1 or not complete:
            raise ValueError(f"the pieces of {whole!r} do not make one tensor")
        found[whole] = (dtypes.pop(), shapes.pop())
    return found


def join(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Whole arrays, for pieces that `wholes` has accepted."""
    joined: dict[str, Array] = {}
    for name, array in arrays.items():
        piece = piece_of(name)
        if piece is None:
            joined[name] = array
            continue
        if piece.whole not in joined:
            joined[piece.whole] = np.empty(piece.shape, array.dtype)
        joined[piece.whole].reshape(-1)[piece.start : piece.stop] = array
    return joined

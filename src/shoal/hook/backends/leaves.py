"""One leaf of what a user gives to `fit`, as rows of numbers; and rows as what the model gets on this backend.

                                       rows                   on TensorFlow    on JAX            on PyTorch
    arrays and tensors of numbers      an array               the array        the array         the array
    strings                            jagged rows of bytes   tf.string        refused           refused
    tf.RaggedTensor                    jagged rows            ragged           padded            padded
    tf.SparseTensor, scipy, BCOO       jagged rows            sparse           sparse (BCOO)     dense

As in plain Keras. Padded: to the longest row of the batch, wherever the batch is cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from shoal.data.columns import Array, Column, Jagged, LeafSpec, Rows, concatenate, dense, spec_of
from shoal.data.sources import Spec
from shoal.data.structure import rebuild
from shoal.errors import CannotDistribute, UsageError

TEXT, RAGGED, SPARSE = "text", "ragged", "sparse"


def to_column(leaf: Any) -> Column:
    """Any array-like as rows, floats in Keras's float type. Shares memory where it can."""
    if isinstance(leaf, Jagged):
        return leaf
    kind = type(leaf).__name__
    module = type(leaf).__module__.partition(".")[0]
    if module == "tensorflow" and kind == "RaggedTensor":
        return _ragged(leaf)
    if module == "tensorflow" and kind == "SparseTensor":
        return _sparse(leaf.indices.numpy(), leaf.values.numpy(), tuple(leaf.shape))
    if module == "jax" and kind in ("BCOO", "BCSR"):
        entries = leaf.to_bcoo() if kind == "BCSR" else leaf
        return _sparse(np.asarray(entries.indices), np.asarray(entries.data), tuple(leaf.shape))
    if module == "scipy" and hasattr(leaf, "tocsr"):
        return _rows_of_matrix(leaf.tocsr())
    return _dense(leaf, module)


def to_batch(spec: Spec, rows: Rows) -> Any:
    """Rows in the nesting that `train_step` expects."""
    return rebuild(spec.skeleton, [to_leaf(row) for row in rows])


def to_leaf(column: Column) -> Any:
    """Rows as the model gets them."""
    if not isinstance(column, Jagged):
        return column
    if column.spec.kind == TEXT:
        return _tensor_of_texts(column)
    return _to_ragged(column) if column.spec.kind == RAGGED else _to_sparse(column)


def of_output(leaf: Any) -> Column:
    """What a model has predicted, as rows: in the type that it has."""
    if type(leaf).__name__ in ("RaggedTensor", "SparseTensor"):
        return to_column(leaf)
    array = np.asarray(leaf)
    return _texts_of(array) if array.dtype.kind in "OUS" else array


def to_result(column: Column) -> Any:
    """Rows as `predict` returns them."""
    return _texts(column) if isinstance(column, Jagged) and column.spec.kind == TEXT else to_leaf(column)


class ColumnJoin:
    """How the batches of one leaf of predictions are put together, whoever predicted them.

    As in Keras: where their shapes differ, TensorFlow gives a ragged tensor. The other backends refuse.
    """

    def __init__(self, spec: LeafSpec, ragged: int) -> None:
        self.spec = spec
        self._ragged = ragged  # axes beyond the batch's that become ragged

    @classmethod
    def of(cls, found: Sequence[LeafSpec]) -> ColumnJoin:
        """For batches that look like one of these."""
        first = found[0]
        axes = list(zip(*(spec.shape for spec in found), strict=True))
        ragged = max((i + 1 for i, axis in enumerate(axes) if len(set(axis)) > 1), default=0)
        if first.parts or not ragged:
            return cls(first, 0)
        if keras.backend.backend() != "tensorflow":
            shapes = ", ".join(sorted({str(list(spec.shape)) for spec in found}))
            raise UsageError(f"predict(): the batches' predictions have different shapes: {shapes}. Pad the data.")
        return cls(spec_of(_as_ragged(np.zeros((1, *(axis[0] or 0 for axis in axes)), first.dtype), ragged)), ragged)

    def all(self, columns: Sequence[Column]) -> Column:
        return concatenate([self._ready(column) for column in columns])

    def _ready(self, column: Column) -> Column:
        return column if isinstance(column, Jagged) or not self._ragged else _as_ragged(column, self._ragged)


def pads(column: Column) -> bool:
    """Whether the rows depend on the others of their batch."""
    return isinstance(column, Jagged) and column.spec.kind == RAGGED and keras.backend.backend() != "tensorflow"


def settle(column: Column) -> Column:
    """The rows of a whole batch, so that it can be cut."""
    return _padded(column) if pads(column) else column


# Numbers ------------------------------------------------------------------------------------------------


def _dense(leaf: Any, module: str) -> Column:
    array: Array
    if module == "pandas":
        array = leaf.to_numpy()
        array = array[:, None] if array.ndim == 1 else array
    elif module == "torch":
        array = leaf.detach().cpu().numpy()
    elif hasattr(leaf, "__array__") or isinstance(leaf, int | float | list):
        array = np.asarray(leaf)
    else:
        raise CannotDistribute(
            f"can't cut a {type(leaf).__module__}.{type(leaf).__qualname__} into pieces; expected an array or tensor "
            "with one row per sample"
        )
    if array.ndim == 0:
        raise CannotDistribute("got a single value where an array with one row per sample was expected")
    return _texts_of(array) if array.dtype.kind in "OUST" else _in_floatx(array)


def _in_floatx(array: Array) -> Array:
    floatx = keras.config.floatx()
    return array.astype(floatx) if array.dtype.kind == "f" and str(array.dtype) != floatx else array


def _numbers(column: Column) -> Array:
    assert not isinstance(column, Jagged), "the innermost part of jagged rows is an array"
    return column


# Texts --------------------------------------------------------------------------------------------------


def _texts_of(array: Array) -> Column:
    texts = array.reshape(-1).tolist()
    if not all(isinstance(text, str | bytes) for text in texts):
        raise CannotDistribute(
            f"got an array of Python objects, such as a {type(texts[0]).__name__}; expected numbers, or texts. Convert "
            "it with `.astype`."
        )
    if keras.backend.backend() != "tensorflow":
        raise CannotDistribute(
            f"got an array of strings; Keras takes them on TensorFlow, not on {keras.backend.backend()}. Turn text "
            "into numbers before `fit`, for example with `dataset.map(keras.layers.TextVectorization(...))`."
        )
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    return _jagged_texts(raw, array.shape[1:])


def _jagged_texts(raw: Sequence[bytes], shape: Sequence[int]) -> Jagged:
    """Texts one after another as rows of this shape."""
    splits = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    flat = Jagged(LeafSpec("string", (), TEXT, (dense("uint8", ()),)), splits, [np.frombuffer(b"".join(raw), np.uint8)])
    if not shape:
        return flat
    each = int(np.prod(shape))
    rows = len(raw) // max(1, each)
    return Jagged(LeafSpec("string", tuple(shape), TEXT, (flat.spec,), each), np.arange(rows + 1) * each, [flat])


def _texts(column: Jagged) -> Array:
    """As an array of `bytes`, which is how TensorFlow gives texts out."""
    rows, flat = len(column), column
    while isinstance(inner := flat.parts[0], Jagged):
        flat = inner
    raw = _numbers(flat.parts[0]).tobytes()
    texts = np.empty(len(flat), object)
    texts[:] = [raw[low:high] for low, high in itertools.pairwise(flat.splits.tolist())]
    return texts.reshape(rows, *(axis or 0 for axis in column.spec.shape))


def _tensor_of_texts(column: Jagged) -> Any:
    import tensorflow as tf

    return tf.constant(_texts(column), tf.string)


# Ragged tensors -----------------------------------------------------------------------------------------


def _ragged(tensor: Any) -> Jagged:
    values = tensor.flat_values.numpy()
    column = _texts_of(values) if values.dtype.kind in "OUS" else _in_floatx(values)
    shape = tuple(tensor.shape[1:])
    for depth, splits in reversed(list(enumerate(tensor.nested_row_splits))):
        inner = spec_of(column)
        column = Jagged(
            LeafSpec(inner.dtype, shape[depth:], RAGGED, (inner,)), splits.numpy().astype(np.int64), [column]
        )
    assert isinstance(column, Jagged)
    return column


def _as_ragged(array: Array, axes: int) -> Jagged:
    """A dense array as rows whose first axes may have other lengths in other arrays."""
    column: Column = array.reshape(-1, *array.shape[axes + 1 :])
    for axis in range(axes, 0, -1):
        rows = int(np.prod(array.shape[:axis]))
        inner = spec_of(column)
        shape = (None,) * (axes - axis + 1) + array.shape[axes + 1 :]
        splits = np.arange(rows + 1, dtype=np.int64) * array.shape[axis]
        column = Jagged(LeafSpec(inner.dtype, shape, RAGGED, (inner,)), splits, [column])
    assert isinstance(column, Jagged)
    return column


def _to_ragged(column: Jagged) -> Any:
    import tensorflow as tf

    splits, inner = [], column
    values: Column = column
    while isinstance(values, Jagged) and values.spec.kind == RAGGED:
        inner = values
        splits.append(inner.splits)
        values = inner.parts[0]
    return tf.RaggedTensor.from_nested_row_splits(to_leaf(values), splits, validate=False)


def _padded(column: Column) -> Array:
    """With zeros, to the longest row."""
    if not isinstance(column, Jagged):
        return column
    values = _padded(column.parts[0])
    lengths = np.diff(column.splits)
    padded = np.zeros((len(column), int(lengths.max(initial=0)), *values.shape[1:]), values.dtype)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = values
    return padded


# Sparse tensors -----------------------------------------------------------------------------------------


def _sparse(indices: Array, values: Array, shape: tuple[int, ...]) -> Jagged:
    inside = (indices < shape).all(axis=1)  # JAX marks room that is not used by indices beyond the end
    indices, values = indices[inside], values[inside]
    order = np.argsort(indices[:, 0], kind="stable")
    splits = np.searchsorted(indices[order, 0], np.arange(shape[0] + 1))
    return _jagged_sparse(splits, indices[order, 1:], values[order], shape[1:])


def _rows_of_matrix(matrix: Any) -> Jagged:
    return _jagged_sparse(matrix.indptr, matrix.indices[:, None], matrix.data, matrix.shape[1:])


def _jagged_sparse(splits: Array, places: Array, values: Array, shape: Sequence[int]) -> Jagged:
    values = _in_floatx(values)
    parts = (dense("int64", places.shape[1:]), dense(values.dtype, ()))
    spec = LeafSpec(str(values.dtype), tuple(map(int, shape)), SPARSE, parts)
    return Jagged(spec, splits.astype(np.int64), [places.astype(np.int64), values])


def _to_sparse(column: Jagged) -> Any:
    places, values = map(_numbers, column.parts)
    rows = np.repeat(np.arange(len(column)), np.diff(column.splits))
    indices = np.concatenate([rows[:, None], places], axis=1)
    shape = (len(column), *(axis or 0 for axis in column.spec.shape))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.SparseTensor(indices, values, shape)
    if keras.backend.backend() == "jax":
        from jax.experimental.sparse import BCOO

        return BCOO((values, indices.astype(np.int32)), shape=shape)
    whole = np.zeros(shape, values.dtype)
    np.add.at(whole, tuple(indices.T), values)  # entries of one place add up
    return whole

"""An embedding table whose rows live on parameter servers; on one machine, an ordinary layer with the same results.

With servers a worker holds a window: the rows that its batch needs, and their ids in order. The layer finds an id's
row in the window. The window is a trainable variable like any other, so its gradient is that of the rows, with what
several samples give to the same row added up. Who fills it and pushes its gradient: `shoal.hook.tables.worker_tables`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple, Protocol

import keras
import numpy as np
from keras import ops

from shoal.errors import UsageError
from shoal.hook import keras_private
from shoal.hook.tables import row_wise
from shoal.store.values.rows import LARGEST, Fill, NewRows
from shoal.store.values.tensors import Array

NOWHERE = LARGEST  # the id that fills up a window
_MADE_AT_ONCE = 1 << 20  # numbers of a new table


class TablesHome(Protocol):
    """Where the rows of tables are that live on servers."""

    are_of_server: bool  # whether this process is one

    def rows_of(self, layer: Any) -> tuple[Array, Array]:
        """Ids and values of the rows that were ever updated."""


class _CollectedIds(NamedTuple):
    """What is noted while ids are collected."""

    found: list[tuple[Any, Any]]  # (layer, ids) for each call of a layer
    enough: int  # calls after which the rest of the model is of no interest; 0: never


class _Enough(Exception):
    """All ids are collected."""


_collected: ContextVar[_CollectedIds | None] = ContextVar("collected", default=None)


@contextlib.contextmanager
def collecting(enough: int = 0) -> Iterator[list[tuple[Any, Any]]]:
    """Within this, tables note the ids that they are called with, and give zeros.

    After so many calls the model is left: whatever it does with the rows is of no interest.
    """
    found: list[tuple[Any, Any]] = []
    before = _collected.set(_CollectedIds(found, enough))
    try:
        with contextlib.suppress(_Enough):
            yield found
    finally:
        _collected.reset(before)


@keras.saving.register_keras_serializable(package="shoal")
class ShardedEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """Turns ids from 0 to `input_dim` - 1 into rows of `output_dim` numbers, as `keras.layers.Embedding` does.

    With parameter servers the table is on the servers: rows come into being when they are first used, a batch pulls
    the rows that it needs and pushes gradients for those alone. An optimizer updates a row, and what it keeps for it,
    only in steps in which the row's gradient is not zero, on one machine too. Rows are not decayed.

    `embeddings_initializer` may be a RandomUniform, a RandomNormal, Zeros, Ones or a Constant. What a row begins with
    depends on `seed` and its id alone; without a `seed`, it is drawn as Keras draws others.
    """

    # Of all layers of this process, set before any is built; None: they are ordinary ones. Scripts make layers, and
    # know of no run that they could give to them.
    tables_home: ClassVar[TablesHome | None] = None

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value, most in (("input_dim", input_dim, LARGEST), ("output_dim", output_dim, 1 << 20)):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
                raise ValueError(f"ShardedEmbedding({name}={value!r}): expected a whole number from 1 to {most:,}")
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.autocast = False
        self.new_rows = _new_rows(self.embeddings_initializer, seed)
        self.is_sharded = False  # whether its rows are on servers
        self.given: tuple[Array, Array] | None = None  # on a server: ids and rows that were loaded from a file
        self.built = False
        self.loads = 0  # how often it was loaded: what servers have is out of date then

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        self.is_sharded = self.tables_home is not None
        if self.is_sharded:
            self._add_window(1)
        else:
            shape = (self.input_dim, self.output_dim)
            self.embeddings = self.add_weight(shape=shape, initializer=self._whole, name="embeddings")
            row_wise.mark(self.embeddings)
        self.built = True

    def call(self, inputs: Any) -> Any:
        ids = inputs if keras.backend.is_int_dtype(inputs.dtype) else ops.cast(inputs, "int32")
        if (collected := _collected.get()) is not None:
            collected.found.append((self, ids))
            if len(collected.found) == collected.enough:
                raise _Enough
            return ops.zeros((*ops.shape(ids), self.output_dim), self.compute_dtype)
        if not self.is_sharded:
            rows = ops.take(self.embeddings, ids, axis=0)
        else:
            places = ops.searchsorted(self.window_ids, ops.reshape(ops.cast(ids, "int32"), (-1,)))
            rows = ops.reshape(ops.take(self.window, places, axis=0), (*ops.shape(ids), self.output_dim))
        return ops.cast(rows, self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        return (*input_shape, self.output_dim)

    # The window -------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many rows the window holds."""
        return int(self.window.shape[0])

    def resize(self, rows: int) -> None:
        """Makes room for so many rows. The model has other variables then."""
        if rows != self.room:
            keras_private.replace_variables(self, (self.window, self.window_ids), lambda: self._add_window(rows))

    def _add_window(self, rows: int) -> None:
        self.window = self.add_weight(shape=(rows, self.output_dim), initializer="zeros", name="embeddings")
        self.window.is_window = True
        self.window_ids = self.add_weight(
            shape=(rows,), initializer=keras.initializers.Constant(NOWHERE), dtype="int32", trainable=False, name="ids"
        )
        self.window_ids.is_window = True

    # Files ------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
            "seed": self.new_rows.seed,
        }

    def save_own_variables(self, store: Any) -> None:
        """All rows; or of a table on servers those that were ever updated, and the seed that tells the others."""
        store["seed"] = np.array(self.new_rows.seed, np.int64)
        if not self.is_sharded:
            store["embeddings"] = self.embeddings
            return
        assert self.tables_home is not None, "it is sharded"
        store["ids"], store["rows"] = self.tables_home.rows_of(self)

    def load_own_variables(self, store: Any) -> None:
        whole = "embeddings" in store
        shape = tuple(store["embeddings" if whole else "rows"].shape)
        if shape[1:] != (self.output_dim,) or (whole and shape[0] != self.input_dim):
            raise ValueError(
                f"{self.name}: the file has rows of the shape {shape}; expected {self.output_dim} numbers each"
            )
        self.new_rows = NewRows(self.new_rows.fill, self.new_rows.low, self.new_rows.high, int(store["seed"][()]))
        self.loads += 1
        if self.is_sharded and not (self.tables_home is not None and self.tables_home.are_of_server):
            return  # the servers read them
        if whole:
            rows = np.asarray(store["embeddings"], np.float32)
            self.take_rows(np.arange(self.input_dim), rows)
        else:
            self.take_rows(np.asarray(store["ids"], np.int64), np.asarray(store["rows"], np.float32))

    def take_rows(self, ids: Array, rows: Array) -> None:
        """These rows, from a file, in the place of all others."""
        if ids.size and not (ids.min() >= 0 and ids.max() < self.input_dim):
            raise ValueError(f"{self.name}: the file has rows with ids that are not below {self.input_dim:,}")
        if self.is_sharded:
            self.given = (ids, rows)
            return
        whole = self.make_rows(np.arange(self.input_dim)) if ids.size < self.input_dim else np.empty_like(rows)
        whole[ids] = rows
        self.embeddings.assign(whole)

    # New rows ---------------------------------------------------------------------------------------

    def make_rows(self, ids: Array) -> Array:
        """These rows, as they are before their first update."""
        rows = np.empty((ids.size, self.output_dim), np.float32)
        step = max(1, _MADE_AT_ONCE // self.output_dim)
        for start in range(0, ids.size, step):
            rows[start : start + step] = self.new_rows.make(ids[start : start + step], self.output_dim)
        return rows

    def _whole(self, shape: Any, dtype: Any = None) -> Any:
        return ops.convert_to_tensor(self.make_rows(np.arange(self.input_dim)), dtype)


def _new_rows(initializer: Any, seed: int | None) -> NewRows:
    """The same distribution, made row by row."""
    known = keras.initializers
    drawn = getattr(initializer, "seed", None)
    seed = seed if seed is not None else drawn if isinstance(drawn, int) else 0
    match initializer:
        case known.Zeros():
            return NewRows(seed=seed)
        case known.Ones():
            return NewRows(Fill.CONSTANT, 1.0, seed=seed)
        case known.Constant():
            return NewRows(Fill.CONSTANT, float(initializer.value), seed=seed)
        case known.RandomUniform():
            return NewRows(Fill.UNIFORM, float(initializer.minval), float(initializer.maxval), seed)
        case known.RandomNormal():
            return NewRows(Fill.NORMAL, float(initializer.mean), float(initializer.stddev), seed)
    raise UsageError(
        f"ShardedEmbedding(embeddings_initializer={initializer!r}): its rows are made one by one, which works with "
        "RandomUniform, RandomNormal, Zeros, Ones and Constant"
    )

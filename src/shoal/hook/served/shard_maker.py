"""What a server makes of a layout: shards with the model's own variables, and parts of tables."""

from __future__ import annotations

import weakref
from typing import Any

import keras

from shoal.hook.served.shard_state import ShardState
from shoal.hook.tables.row_table import RowTable
from shoal.store.values.tensors import Array
from shoal.training.store_layout import ShardLayout, StoreLayout


class TableMaker:
    """Makes the tables of a layout."""

    def __init__(self, layout: ShardLayout, jit_compile: bool | None = False) -> None:
        self._layout = layout
        self._jit_compile = jit_compile

    def table(self, number: int) -> RowTable:
        """A part of a table: a file's rows, or new ones. Without an optimizer it is one that nobody trains."""
        table, about, part = self._layout.tables.place(number)
        layer: Any = self._layout.tables.layers[table]
        weakly = weakref.ref(layer)  # a server keeps its rows, but only while the script has it

        def loaded() -> tuple[Array, Array] | None:
            known = weakly()
            return known.given if known is not None else None

        optimizer = self._layout.optimizer or keras.optimizers.SGD()
        return RowTable(about, part, layer.window.path, optimizer, self._jit_compile, loaded)


class ShardMaker:
    """Makes the shards of a model that is trained."""

    def __init__(self, layout: StoreLayout, scales: bool, jit_compile: bool | None) -> None:
        """`scales`: stale updates count less. `jit_compile`: as the model."""
        self._layout = layout
        self._scales = scales
        self._jit_compile = jit_compile

    def shard(self, number: int) -> ShardState:
        """One that is no table's."""
        layout = self._layout
        return ShardState(
            layout.shards[number],
            layout.parameters,
            layout.variables,
            layout.optimizer,
            layout.added_to(number),
            tells_scale=number == 0,
            scales=self._scales,
            jit_compile=self._jit_compile,
        )

    def tables(self) -> TableMaker:
        return TableMaker(self._layout, self._jit_compile)

    def fits(self, number: int, state: ShardState) -> bool:
        """Whether a shard that was made before is as `shard` would make it now."""
        return state.added == self._layout.added_to(number) and state.scales == self._scales

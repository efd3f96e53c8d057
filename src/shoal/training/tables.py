"""Tables that live on servers, as training sees them: how they are cut into shards, and what travels of them.

batch ──▶ ids of every table, each once and in order ──▶ rows from their parts' servers ──▶ the model
gradients ──▶ rows that have one, by part ──▶ their servers
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from shoal.collectives.group import AbstractGroup
from shoal.store.client import Client
from shoal.store.values.rows import NewRows, Table, deal
from shoal.store.values.tensors import Array, RowShapes
from shoal.training.engine import Engine

Ids = list[Array]  # of each table: those that a batch needs, each once and in order


class TableLayer(Hashable, Protocol):
    """The layer of a model whose rows are a table's."""

    name: str
    input_dim: int
    output_dim: int
    new_rows: NewRows
    loads: int  # how often it was given rows from a file

    @property
    def window(self) -> Any:
        """The variable that shows some of the rows."""


class Tables(Protocol):
    """The tables of one model, as a worker uses them; false if it has none."""

    @property
    def layers(self) -> Sequence[TableLayer]: ...

    def __bool__(self) -> bool: ...

    @property
    def are_shown(self) -> bool:
        """Whether a store is open in which all of them can be looked at."""

    def open(self, shards: TableShards, client: Client) -> None:
        """From now on rows can be looked at: a training has begun."""

    def close(self) -> None: ...

    def ids(self, batch: Any, name: Callable[[int], str]) -> Ids:
        """Which rows a batch needs. `name` names its n-th sample, for errors."""

    def no_ids(self) -> Ids:
        """What no sample needs."""

    def show(self, engine: Engine, ids: Ids, rows: Sequence[Array]) -> None:
        """Puts these rows into the model."""

    def bring_for_all(self, engine: Engine, mine: Ids, group: AbstractGroup) -> Ids:
        """Within an act, for one step of all workers: puts this worker's rows into the model. Returns the ids that they
        need together, in whose order gradients are.
        """


class TableShards:
    """How a model's tables are cut into shards, which come behind those of its other variables."""

    def __init__(self, layers: Sequence[TableLayer], servers: int, smallest: int, first: int) -> None:
        """`smallest`: bytes below which a shard is not worth its messages. `first`: the first shard's number."""
        self.layers = layers
        self.tables = [_table(layer, servers, smallest) for layer in layers]
        parts = [(table, part) for table in range(len(layers)) for part in range(self.tables[table].parts)]
        self._held = dict(enumerate(parts, first))  # shard -> which part of which table
        self._shards = {held: shard for shard, held in self._held.items()}

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._held)

    @property
    def shapes(self) -> list[RowShapes]:
        about = ((self.tables[table], part) for table, part in self._held.values())
        return [RowShapes(table.rows_of(part), table.width) for table, part in about]

    @property
    def sizes(self) -> list[int]:
        return [shape.rows * shape.width * 4 for shape in self.shapes]

    def of_table(self, table: int) -> list[int]:
        return [self._shards[table, part] for part in range(self.tables[table].parts)]

    def place(self, shard: int) -> tuple[int, Table, int]:
        """Which table it is of, and which part of that."""
        table, part = self._held[shard]
        return table, self.tables[table], part

    def ask(self, ids: Ids) -> dict[int, Array]:
        """What is to be asked for, shard by shard."""
        return {
            self._shards[table, part]: wanted[places]
            for table, wanted in enumerate(ids)
            for part, places in enumerate(deal(wanted, self.tables[table].parts))
        }

    def join(self, ids: Ids, answers: Mapping[int, Array]) -> list[Array]:
        """The rows of every table, in the order of its ids, from what shards have answered."""
        joined = []
        for table, wanted in enumerate(ids):
            width, parts = self.tables[table].width, self.tables[table].parts
            if parts == 1:
                joined.append(answers[self._shards[table, 0]].reshape(-1, width))
                continue
            rows = np.empty((wanted.size, width), np.float32)
            for part, places in enumerate(deal(wanted, parts)):
                rows[places] = answers[self._shards[table, part]].reshape(-1, width)
            joined.append(rows)
        return joined

    def pack(self, ids: Ids, gradients: Sequence[Array | None]) -> list[list[Array]]:
        """What an update pushes: for every shard ids, and a gradient for each; copies. Only of rows that have one."""
        parcels: list[list[Array]] = []
        for table, (wanted, gradient) in enumerate(zip(ids, gradients, strict=True)):
            width, parts = self.tables[table].width, self.tables[table].parts
            whole = np.zeros((0, width), np.float32) if gradient is None else gradient.reshape(-1, width)[: wanted.size]
            touched = np.flatnonzero(whole.any(axis=1))
            mine = wanted[touched]
            parcels += [
                [mine[places], np.asarray(whole[touched[places]], np.float32).reshape(-1)]
                for places in deal(mine, parts)
            ]
        return parcels


def _table(layer: TableLayer, servers: int, smallest: int) -> Table:
    whole = layer.input_dim * layer.output_dim * 4
    parts = max(1, min(servers, whole // smallest))
    return Table(layer.name, layer.input_dim, layer.output_dim, layer.new_rows, parts)

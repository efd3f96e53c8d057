"""The rows of tables in a checkpoint. Every part of a table is written by the server that leads it.

Where there are other parts than those that were written, each takes its rows from all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.checkpoint.addresses import Place
from shoal.checkpoint.read import describe, load
from shoal.checkpoint.tensor_names import TablePart, table_part_of
from shoal.errors import CannotDistribute
from shoal.hook.tables.row_table import RowTable, SavedRows
from shoal.store.values.rows import Table
from shoal.strategies.schema import Array


def to_write(number: int, table: Table, part: int, held: RowTable) -> dict[str, Array]:
    """A part of a table, where it lies, by name."""
    prefix = TablePart(number, table.name, table.rows, table.width, part, table.parts).prefix
    saved = held.saved()
    named = {"ids": saved.ids, "rows": saved.columns[0]}
    named |= {f"kept {number}": column for number, column in enumerate(saved.columns[1:])}
    named |= {f"shared {number}": scalar for number, scalar in enumerate(saved.scalars)}
    return {prefix + name: array for name, array in named.items()}


def read_into(number: int, table: Table, part: int, held: RowTable, path: Place) -> None:
    """Gives a part of a table the rows that a checkpoint has for it. By number: automatic names may differ."""
    places = sorted(
        {place for name in describe(path).shapes if (place := table_part_of(name)) and place.number == number}
    )
    first = places[0]._replace(rows=table.rows, width=table.width) if places else None
    if first is None or places != [first._replace(part=part) for part in range(first.parts)]:
        there = f"has {places[0].rows:,} rows of {places[0].width}, or lacks some" if places else "is not there"
        raise CannotDistribute(
            f"can't take the rows of {table.name} ({table.rows:,} of {table.width}) from {path}: the table {there}. "
            "Resume with the script, and the arguments, that it comes from."
        )
    if len(places) == table.parts:
        places = [places[part]]
    held.begin_from([_read(path, place) for place in places])


def rows_of(arrays: Mapping[str, Array], number: int) -> tuple[Array, Array]:
    """Ids and values of the rows that a checkpoint has of a table."""
    ids, rows = ([arrays[name] for name in sorted(arrays) if _is(name, number, field)] for field in ("ids", "rows"))
    return np.concatenate(ids), np.concatenate(rows)


def _is(name: str, number: int, field: str) -> bool:
    place = table_part_of(name)
    return place is not None and place.number == number and name == place.prefix + field


def _read(path: Place, place: TablePart) -> SavedRows:
    found = load(path, lambda name: name.startswith(place.prefix)).arrays
    named = {name.removeprefix(place.prefix): array for name, array in found.items()}
    kept = sorted((name for name in named if name.startswith("kept ")), key=_number)
    shared = sorted((name for name in named if name.startswith("shared ")), key=_number)
    return SavedRows(named["ids"], [named["rows"], *(named[name] for name in kept)], [named[name] for name in shared])


def _number(name: str) -> int:
    return int(name.rpartition(" ")[2])

"""The rows of tables in a checkpoint. Every part of a table is written by the server that leads it:

    table/0/users[1000000x8]/0 of 2/ids         which of its rows were ever updated
    table/0/users[1000000x8]/0 of 2/rows        those
    table/0/users[1000000x8]/0 of 2/kept 0      what the optimizer keeps for each of them, array by array
    table/0/users[1000000x8]/0 of 2/shared 0    what it keeps for all together, as its count of updates

Where there are other parts than those that were written, each takes its rows from all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shoal.checkpoint.read import describe, load
from shoal.errors import CannotDistribute
from shoal.hook.row_table import RowTable, Saved
from shoal.store.rows import Table
from shoal.strategies.schema import Array

KIND = "table"

_NAME = re.compile(
    r"table/(\d{1,9})/(.+)\[(\d{1,18})x(\d{1,18})\]/(\d{1,9}) of (\d{1,9})/(?:ids|rows|(?:kept|shared) \d+)"
)


class Place(NamedTuple):
    """A part of a table, as names in a checkpoint say it."""

    number: int  # of the table, in the model
    table: str
    rows: int
    width: int
    part: int
    parts: int

    @property
    def prefix(self) -> str:
        return f"{KIND}/{self.number}/{self.table}[{self.rows}x{self.width}]/{self.part} of {self.parts}/"


def place_of(name: str) -> Place | None:
    """Which part a tensor belongs to, if it is of a table."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return Place(int(found[1]), found[2], *(int(found[group]) for group in (3, 4, 5, 6)))


def to_write(number: int, table: Table, part: int, held: RowTable) -> dict[str, Array]:
    """A part of a table, where it lies, by name."""
    prefix = Place(number, table.name, table.rows, table.width, part, table.parts).prefix
    saved = held.saved()
    named = {"ids": saved.ids, "rows": saved.columns[0]}
    named |= {f"kept {number}": column for number, column in enumerate(saved.columns[1:])}
    named |= {f"shared {number}": scalar for number, scalar in enumerate(saved.scalars)}
    return {prefix + name: array for name, array in named.items()}


def read_into(number: int, table: Table, part: int, held: RowTable, path: Path) -> None:
    """Gives a part of a table the rows that a checkpoint has for it. By number: automatic names may differ."""
    places = sorted({place for name in describe(path).shapes if (place := place_of(name)) and place.number == number})
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


def tables_in(names: Iterable[str]) -> dict[int, Place]:
    """The tables of which a checkpoint has rows, each by one of its parts."""
    return {place.number: place for name in names if (place := place_of(name)) is not None}


def _is(name: str, number: int, field: str) -> bool:
    place = place_of(name)
    return place is not None and place.number == number and name == place.prefix + field


def _read(path: Path, place: Place) -> Saved:
    found = load(path, lambda name: name.startswith(place.prefix)).arrays
    named = {name.removeprefix(place.prefix): array for name, array in found.items()}
    kept = sorted((name for name in named if name.startswith("kept ")), key=_number)
    shared = sorted((name for name in named if name.startswith("shared ")), key=_number)
    return Saved(named["ids"], [named["rows"], *(named[name] for name in kept)], [named[name] for name in shared])


def _number(name: str) -> int:
    return int(name.rpartition(" ")[2])

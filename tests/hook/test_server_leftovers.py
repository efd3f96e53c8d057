"""What trainings have left on servers, as a worker knows it."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import CannotDistribute, Diverged
from shoal.store.decisions.director_messages import Left
from shoal.store.decisions.shards import Range, Shard
from shoal.training.server_leftovers import ServerLeftovers


class Thing:
    """A variable, an optimizer or a layer: what counts is which."""

    loads, name = 0, "users"  # of a layer


class Others:
    """A worker group in which all others say the same."""

    def __init__(self, theirs: bytes) -> None:
        self._theirs = theirs

    def gather(self, what: str, mine: bytes) -> Any:
        return SimpleNamespace(unlike_chiefs=lambda: ["worker-1"] if mine != self._theirs else [])


def layout(optimizer: Thing | None, variables: list[Thing], layers: tuple[Thing, ...] = (), parts: int = 2) -> Any:
    """One shard for each variable, and then so many for each table. No optimizer: the tables are looked at."""
    shards = tuple(Shard(number, (Range(f"v{number}", 0, 4),), 16) for number in range(len(variables)))

    def of_table(table: int) -> list[int]:
        return [len(variables) + table * parts + part for part in range(parts)]

    tables = SimpleNamespace(layers=layers, of_table=of_table)
    return SimpleNamespace(optimizer=optimizer, variables=variables, shards=shards, tables=tables)


def test_an_optimizer_goes_on_with_its_own_state():
    leftovers = ServerLeftovers()
    variables, first, second = [Thing(), Thing()], Thing(), Thing()
    assert leftovers.left_for(layout(first, variables)) == ()
    leftovers.leave(3, layout(first, variables))
    assert leftovers.left_for(layout(first, variables)) == (Left(0, 3, 0), Left(1, 3, 1))
    assert leftovers.left_for(layout(second, variables)) == ()


def test_an_optimizer_can_not_go_on_with_other_variables():
    leftovers = ServerLeftovers()
    variables, optimizer = [Thing(), Thing()], Thing()
    leftovers.leave(0, layout(optimizer, variables))
    for others in (variables[:1], [Thing(), Thing()]):  # one is frozen; another model with the same names
        with pytest.raises(CannotDistribute, match=r"updated other variables before.*Compile the model with a new"):
            leftovers.left_for(layout(optimizer, others))


def test_a_table_goes_on_in_another_model_with_another_optimizer():
    leftovers = ServerLeftovers()
    table, other = Thing(), Thing()
    leftovers.leave(1, layout(Thing(), [Thing()], (other, table)))
    assert leftovers.left_for(layout(Thing(), [Thing(), Thing()], (table,))) == (Left(2, 1, 3), Left(3, 1, 4))
    assert leftovers.left_for(layout(None, [], (table,))) == (Left(0, 1, 3), Left(1, 1, 4))


def test_a_table_that_was_loaded_on_some_workers_only_is_refused():
    leftovers = ServerLeftovers()
    table = Thing()
    mine = layout(Thing(), [Thing()], (table,))
    leftovers.refuse_other_loads(Others(b"[0]"), mine)
    with pytest.raises(Diverged, match="loaded on some workers only"):
        leftovers.refuse_other_loads(Others(b"[1]"), mine)
    table.loads = 3  # found more files than the others, who were here before
    leftovers.leave(5, mine)
    leftovers.refuse_other_loads(Others(b"[0]"), mine)
    table.loads = 4
    leftovers.refuse_other_loads(Others(b"[1]"), mine)
    with pytest.raises(Diverged):
        leftovers.refuse_other_loads(Others(b"[0]"), mine)


def test_what_the_script_has_let_go_is_not_remembered():
    leftovers = ServerLeftovers()
    optimizer, table = Thing(), Thing()
    leftovers.leave(71, layout(optimizer, [Thing()]))
    leftovers.leave(72, layout(Thing(), [Thing()], (table,)))
    gc.collect()
    assert set(leftovers.remembered()) == {71, 72}
    del optimizer, table
    gc.collect()
    assert leftovers.remembered() == ()

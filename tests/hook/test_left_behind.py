"""What trainings have left on servers, as a worker knows it."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import CannotDistribute, Diverged
from shoal.hook.left_behind import leave, left_for, refuse_other_loads, remembered
from shoal.store.letters import Left
from shoal.store.shards import Range, Shard


class Thing:
    """A variable, an optimizer or a layer: what counts is which."""

    loads, name = 0, "users"  # of a layer


class Others:
    """A company in which all others say the same."""

    def __init__(self, theirs: bytes) -> None:
        self._theirs = theirs

    def gather(self, what: str, mine: bytes) -> Any:
        return SimpleNamespace(unlike_chiefs=lambda: ["worker-1"] if mine != self._theirs else [])


def layout(variables: list[Thing], layers: tuple[Thing, ...] = (), parts: int = 2) -> Any:
    """One shard for each variable, and then so many for each table."""
    shards = tuple(Shard(number, (Range(f"v{number}", 0, 4),), 16) for number in range(len(variables)))

    def of_table(table: int) -> list[int]:
        return [len(variables) + table * parts + part for part in range(parts)]

    return SimpleNamespace(variables=variables, shards=shards, tables=SimpleNamespace(layers=layers, of_table=of_table))


def test_an_optimizer_goes_on_with_its_own_state():
    variables, first, second = [Thing(), Thing()], Thing(), Thing()
    assert left_for(layout(variables), first) == ()
    leave(3, layout(variables), first)
    assert left_for(layout(variables), first) == (Left(0, 3, 0), Left(1, 3, 1))
    assert left_for(layout(variables), second) == ()


def test_an_optimizer_can_not_go_on_with_other_variables():
    variables, optimizer = [Thing(), Thing()], Thing()
    leave(0, layout(variables), optimizer)
    for others in (variables[:1], [Thing(), Thing()]):  # one is frozen; another model with the same names
        with pytest.raises(CannotDistribute, match=r"updated other variables before.*Compile the model with a new"):
            left_for(layout(others), optimizer)


def test_a_table_goes_on_in_another_model_with_another_optimizer():
    table, other = Thing(), Thing()
    leave(1, layout([Thing()], (other, table)), Thing())
    assert left_for(layout([Thing(), Thing()], (table,)), Thing()) == (Left(2, 1, 3), Left(3, 1, 4))


def test_a_table_that_was_loaded_on_some_workers_only_is_refused():
    table = Thing()
    mine = layout([Thing()], (table,))
    refuse_other_loads(Others(b"[0]"), mine)
    with pytest.raises(Diverged, match="loaded on some workers only"):
        refuse_other_loads(Others(b"[1]"), mine)
    table.loads = 3  # found more files than the others, who were here before
    leave(5, mine, Thing())
    refuse_other_loads(Others(b"[0]"), mine)
    table.loads = 4
    refuse_other_loads(Others(b"[1]"), mine)
    with pytest.raises(Diverged):
        refuse_other_loads(Others(b"[0]"), mine)


def test_what_the_script_has_let_go_is_not_remembered():
    before = set(remembered())
    optimizer, table = Thing(), Thing()
    leave(71, layout([Thing()]), optimizer)
    leave(72, layout([Thing()], (table,)), Thing())
    gc.collect()
    assert set(remembered()) - before == {71, 72}
    del optimizer, table
    gc.collect()
    assert set(remembered()) <= before

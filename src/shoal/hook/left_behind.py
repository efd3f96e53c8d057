"""What trainings have left on servers, as workers know it: optimizers' states, and rows of tables.

Both outlive a fit. The next one with the same optimizer, or with the same table, begins where they are. A table's rows
belong to its layer, whichever models and optimizers it is trained with; an optimizer's state to the optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal.collectives.group import Company
from shoal.errors import CannotDistribute, Diverged
from shoal.hook.store_layout import StoreLayout
from shoal.store.letters import Left
from shoal.store.shards import Shard


class _Updated(NamedTuple):
    """By an optimizer, in its last training."""

    call: int
    shards: tuple[Shard, ...]
    variables: tuple[weakref.ref[Any], ...]


class _Rows(NamedTuple):
    """Of a table, since its last training."""

    call: int
    shards: Sequence[int]  # one for each part
    loads: int  # of the layer by then


_updated: weakref.WeakKeyDictionary[Any, _Updated] = weakref.WeakKeyDictionary()  # by optimizer
_rows: weakref.WeakKeyDictionary[Any, _Rows] = weakref.WeakKeyDictionary()  # by layer


def left_for(layout: StoreLayout, optimizer: Any) -> tuple[Left, ...]:
    """The shards that go on from an earlier training."""
    found: list[Left] = []
    if (before := _updated.get(optimizer)) is not None:
        same = [ref() is variable for ref, variable in zip(before.variables, layout.variables, strict=False)]
        if before.shards != layout.shards or not all(same):
            raise CannotDistribute(
                f"this {type(optimizer).__name__} has updated other variables before, and the servers have its state "
                "for those. Compile the model with a new optimizer when you freeze or unfreeze layers."
            )
        found += [Left(shard.number, before.call, shard.number) for shard in layout.shards]
    for table, layer in enumerate(layout.tables.layers):
        if (rows := _rows.get(layer)) is not None:
            parts = zip(layout.tables.of_table(table), rows.shards, strict=True)
            found += [Left(shard, rows.call, number) for shard, number in parts]
    return tuple(found)


def refuse_other_loads(company: Company, layout: StoreLayout) -> None:
    """Collective. What a table has loaded it has from its server, which runs the script too, but not as the chief."""
    # Since the last training: a worker that came late may have found a file that the others had not.
    loads = [layer.loads - (_rows[layer].loads if layer in _rows else 0) for layer in layout.tables.layers]
    if loads and company.gather("fit: loads of tables", str(loads).encode()).unlike_chiefs():
        raise Diverged(
            f"{layout.tables.layers[0].name} was loaded on some workers only. Rows of tables are on servers, which run "
            "the script too: call load_weights or load_model on every worker, not only on the chief."
        )


def remembered() -> tuple[int, ...]:
    """The trainings that a later one may go on from."""
    return tuple({about.call for about in _updated.values()} | {about.call for about in _rows.values()})


def leave(call: int, layout: StoreLayout, optimizer: Any) -> None:
    """This training is going to leave these."""
    _updated[optimizer] = _Updated(call, layout.shards, tuple(map(weakref.ref, layout.variables)))
    for table, layer in enumerate(layout.tables.layers):
        _rows[layer] = _Rows(call, layout.tables.of_table(table), layer.loads)

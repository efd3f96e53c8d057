"""What trainings have left on servers, as workers know it: optimizers' states, and rows of tables.

Both outlive a fit. The next one with the same optimizer, or with the same table, begins where they are. A table's rows
belong to its layer, whichever models and optimizers it is trained with; an optimizer's state to the optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal.collectives.group import WorkerGroup
from shoal.errors import CannotDistribute, Diverged
from shoal.store.decisions.director_messages import Left
from shoal.store.decisions.shards import Shard
from shoal.training.store_layout import ShardLayout


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


class ServerLeftovers:
    """By optimizer and by layer: as long as the script has the optimizer, or the layer. Nothing of it holds one, or a
    variable. The servers keep what it names (`remembered`), and let go of the rest when a training is opened.
    """

    def __init__(self) -> None:
        self._updated: weakref.WeakKeyDictionary[Any, _Updated] = weakref.WeakKeyDictionary()  # by optimizer
        self._rows: weakref.WeakKeyDictionary[Any, _Rows] = weakref.WeakKeyDictionary()  # by layer

    def left_for(self, layout: ShardLayout) -> tuple[Left, ...]:
        """The shards that go on from an earlier training."""
        found: list[Left] = []
        optimizer = layout.optimizer
        if optimizer is not None and (before := self._updated.get(optimizer)) is not None:
            same = [ref() is variable for ref, variable in zip(before.variables, layout.variables, strict=False)]
            if before.shards != layout.shards or not all(same):
                raise CannotDistribute(
                    f"this {type(optimizer).__name__} has updated other variables before, and the servers have its "
                    "state for those. Compile the model with a new optimizer when you freeze or unfreeze layers."
                )
            found += [Left(shard.number, before.call, shard.number) for shard in layout.shards]
        for table, layer in enumerate(layout.tables.layers):
            if (rows := self._rows.get(layer)) is not None:
                parts = zip(layout.tables.of_table(table), rows.shards, strict=True)
                found += [Left(shard, rows.call, number) for shard, number in parts]
        return tuple(found)

    def refuse_other_loads(self, worker_group: WorkerGroup, layout: ShardLayout) -> None:
        """Collective. What a table has loaded it has from its server, which runs the script too, but not as the
        chief.
        """
        # Since the last training: a worker that came late may have found a file that the others had not.
        loads = [
            layer.loads - (self._rows[layer].loads if layer in self._rows else 0) for layer in layout.tables.layers
        ]
        if loads and worker_group.gather("fit: loads of tables", str(loads).encode()).unlike_chiefs():
            raise Diverged(
                f"{layout.tables.layers[0].name} was loaded on some workers only. Rows of tables are on servers, which "
                "run the script too: call load_weights or load_model on every worker, not only on the chief."
            )

    def remembered(self) -> tuple[int, ...]:
        """The trainings that a later one may go on from."""
        return tuple({about.call for about in self._updated.values()} | {about.call for about in self._rows.values()})

    def leave(self, call: int, layout: ShardLayout) -> None:
        """This training is going to leave these."""
        if layout.optimizer is not None:
            self._updated[layout.optimizer] = _Updated(call, layout.shards, tuple(map(weakref.ref, layout.variables)))
        for table, layer in enumerate(layout.tables.layers):
            self._rows[layer] = _Rows(call, layout.tables.of_table(table), layer.loads)

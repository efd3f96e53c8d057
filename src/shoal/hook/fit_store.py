"""A worker's part in the store of one fit, from its beginning to its end; with tables, until the next one begins.

It is opened with what trainings before it have left on servers, and is remembered as what it leaves itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.hook.left_behind import leave, left_for, refuse_other_loads, remembered
from shoal.hook.run import Run
from shoal.hook.store_layout import StoreLayout
from shoal.hook.tables import tables_of
from shoal.store.client import Client, Weights
from shoal.store.letters import Open


class FitStore:
    """The store of a fit, and the model's tables in it."""

    def __init__(self, run: Run, layout: StoreLayout, model: Any, call: int, ahead: int) -> None:
        """`ahead`: updates that this worker may be at; 0 in synchronous training."""
        self._run = run
        self._layout = layout
        self._optimizer = model.optimizer
        self._call = call
        self._ahead = ahead
        self._client: Client | None = None
        self._stays = False  # when the fit is over: the servers still have tables
        self.tables = tables_of(model)

    @property
    def client(self) -> Client:
        assert self._client is not None, "enter first"
        return self._client

    def open(self, initial: Weights, about: Open) -> None:
        """The training begins, with these weights. `about`: all of it but what servers have already. Collective."""
        refuse_other_loads(self._run.company, self._layout)
        goes_on = left_for(self._layout, self._optimizer)
        tables = self._layout.tables.numbers
        self._enter(initial)
        self.client.open(msgspec.structs.replace(about, tables=tables, goes_on=goes_on, remembers=remembered()))

    def come_late(self) -> None:
        """The others have opened it; this worker does not know the weights yet."""
        self._enter(None)

    def finish(self) -> None:
        """The training is over. Rows of tables can still be looked at."""
        if self.tables:
            self._stays = True
            _staying.append(self)
        else:
            self.client.finish()

    def close(self) -> None:
        if self._client is not None and not self._stays:
            self._leave()

    def end_stay(self) -> None:
        if self._run.is_chief:
            self.client.finish()
        self._leave()

    def _enter(self, initial: Weights | None) -> None:
        self._client = self._run.client(self._call, self._layout.shapes, initial, self._ahead)
        self.tables.open(self._layout.tables, self._client)
        leave(self._call, self._layout, self._optimizer)

    def _leave(self) -> None:
        self.tables.close()
        self.client.close()


_staying: list[FitStore] = []  # one at most


def leave_last() -> None:
    """The servers of the last training are not needed any more. The chief tells them."""
    while _staying:
        _staying.pop().end_stay()

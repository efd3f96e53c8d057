"""`fit` on a server: it holds shards of the model that the script has built, and updates them until it is over."""

from __future__ import annotations

import contextlib
import weakref
from functools import partial
from typing import Any, NamedTuple

from shoal.config import Servers
from shoal.hook.run import Run
from shoal.hook.store_layout import StoreLayout
from shoal.hook.training import Prepared
from shoal.store.server import Server
from shoal.store.shards import Shard
from shoal.store.tensors import AnyShapes


class _Kept(NamedTuple):
    """What a server has from a model's last fit, and of which shards."""

    shards: tuple[Shard, ...]
    shapes: list[AnyShapes]
    server: Server


# By the model's optimizer. The next fit goes on with it; all weights but those of tables come from the workers anew.
_kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()


def serve(run: Run, prepared: Prepared, servers: Servers, scales: bool, call: int) -> None:
    """Until the fit is over. `scales`: stale updates count less."""
    optimizer, synchronous = prepared.model.optimizer, servers.staleness == 0
    layout = StoreLayout(prepared.engine, prepared.shape, optimizer, servers.count, synchronous)
    kept = _kept.pop(optimizer, None)
    fits = kept is not None and (kept.shards, kept.shapes) == (layout.shards, layout.shapes)
    before = kept.server if kept is not None and fits else None
    server = run.server(call, layout.shapes, partial(layout.make, scales=scales), scales, before)
    with contextlib.closing(server):
        server.serve(run.say)
    _kept[optimizer] = _Kept(layout.shards, layout.shapes, server)

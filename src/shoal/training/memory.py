"""What a process remembers from call to call, in one place.

A call of `fit`, `evaluate`, `predict` or a step leaves something behind for the next one: compiled programs, states on
servers, a store that stays open. All of it belongs to the process's one `Memory`, which the session makes before it
hooks Keras and which is `run.memory`. It lives until the process ends.

Each part is a class of its own, in the room that knows what it holds, and says how long what lives:

    hook.backends.registry.Engines             a model's engine            while the script has the model, until compile
    hook.calls.on_batch.StepsOnBatches         train_on_batch's steps      as the engine that they use
    hook.scopes.Scopes                         a model's strategy          while the script has the model
    hook.scopes.Plans                          what was planned for one    while the script has the model, until compile
    hook.mesh.laying.Meshes                    models on meshes            while the script has the model
    hook.calls.loops.OpenLoops                 loops over shoal.batches    while the loop goes on
    hook.tables.worker_tables.TablesOnServers  a model's tables            while the script has the model
    hook.served.shard_optimizer.LossScales     an optimizer's loss scale   while the script has the optimizer
    hook.local.keras_outer.OuterOptimizers     LocalSGD's own optimizer    while the script has the model
    hook.stages.left_states.LeftStates         optimizers without state    while the script has the optimizer
    training.server_leftovers.ServerLeftovers  what servers hold           while the script has the optimizer or layer
    training.fit_store.StayingStore            the store of the last fit   until the next one, or the script's end
    hook.served.serving.KeptShards             on a server: its shards     while the script has the optimizer or layer

What is kept for a model, an optimizer or a layer is kept by a weak key: nothing here keeps one alive.
"""

from __future__ import annotations

from typing import Any, TypeVar

Part = TypeVar("Part")


class Memory:
    """One object of each kind that is asked for. For the thread that runs the script."""

    def __init__(self) -> None:
        self._parts: dict[type[Any], Any] = {}

    def of(self, kind: type[Part]) -> Part:
        """The part of this kind: made when it is first asked for, and the same from then on."""
        found = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = kind()
        return found

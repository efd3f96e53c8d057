"""Shoal trains one Keras 3 model on many workers.

A script needs nothing from here: `shoal run -n 4 train.py` trains any script that calls `model.fit`. For those who
want to say it in the script:

    AllReduce(pieces=8).scope()   models compiled inside train synchronously, each batch cut into 8 pieces
    ParameterServer().scope()     models compiled inside train with parameter servers
    layers.ShardedEmbedding(...)  an embedding table whose rows live on parameter servers
    rank(), size(), is_chief()    this worker's place, the number of workers, whether it prints and writes files
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.errors import CannotDistribute, Diverged, ShoalError, UsageError
    from shoal.strategies.allreduce import AllReduce
    from shoal.strategies.parameter_server import ParameterServer

__all__ = [
    "AllReduce",
    "CannotDistribute",
    "Diverged",
    "ParameterServer",
    "ShoalError",
    "UsageError",
    "is_chief",
    "rank",
    "size",
]
__version__ = "0.1.0"


def rank() -> int:
    """This worker's place among the workers: 0 to size() - 1. 0 without `shoal run`."""
    from shoal import session

    return session.current().rank


def size() -> int:
    """How many workers train together now. 1 without `shoal run`."""
    from shoal import session

    return session.current().size


def is_chief() -> bool:
    """Whether this worker prints and writes files: the one with rank 0."""
    return rank() == 0


def __getattr__(name: str) -> Any:
    """Loads the rest when it is asked for: the launcher needs none of it and should start at once."""
    if name in ("AllReduce", "ParameterServer"):
        from shoal import session
        from shoal.strategies import allreduce, parameter_server

        session.current()  # a strategy means something only where keras is hooked
        return allreduce.AllReduce if name == "AllReduce" else parameter_server.ParameterServer
    if name in __all__:
        from shoal import errors

        return getattr(errors, name)
    if name == "layers":
        import importlib

        return importlib.import_module("shoal.layers")
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")

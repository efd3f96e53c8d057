"""Shoal trains one Keras 3 model on many workers.

A script needs nothing from here: `shoal run -n 4 train.py` trains any script that calls `model.fit`. For those who
want to say it in the script:

    AllReduce(pieces=8).scope()   models compiled inside train synchronously, each batch cut into 8 pieces
    AllReduce(mesh=Mesh(...))     each worker's devices as a mesh: rows, weights, or both divided among them (JAX)
    ParameterServer().scope()     models compiled inside train with parameter servers
    Pipeline(stages=2).scope()    models compiled inside are cut into stages, one or more workers for each
    LocalSGD(every=50).scope()    models compiled inside train on their own for 50 steps between two exchanges
    stream(make, shards=8)        data in shards, of which every worker reads some
    step(model), batches(data)    a training loop of the script's own: its step function, and what it loops over
    TopK(0.01), LowRank(rank=4)   for `compress` of these: what of gradients travels over slow links
    layers.ShardedEmbedding(...)  an embedding table whose rows live on parameter servers
    callbacks.Monitor(report)     hands the figures of the whole run to a function, every few seconds
    rank(), size(), is_chief()    this worker's place, the number of workers, whether it prints and writes files

From a notebook, or any Python process:

    run(train, n=4)               calls a function on four workers that train together
    ray.run(train, n=4)           the same on the nodes of a Ray cluster
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.codecs.feedback import ErrorFeedback
    from shoal.codecs.lossy import LowRank, TopK
    from shoal.errors import CannotDistribute, Diverged, RunFailed, ShoalError, UsageError
    from shoal.launch.from_python import run
    from shoal.strategies.allreduce import AllReduce
    from shoal.strategies.local_sgd import LocalSGD
    from shoal.strategies.mesh.shape import Mesh
    from shoal.strategies.parameter_server import ParameterServer
    from shoal.strategies.pipeline import Pipeline

__all__ = [
    "AllReduce",
    "CannotDistribute",
    "Diverged",
    "ErrorFeedback",
    "LocalSGD",
    "LowRank",
    "Mesh",
    "ParameterServer",
    "Pipeline",
    "RunFailed",
    "ShoalError",
    "TopK",
    "UsageError",
    "batches",
    "is_chief",
    "rank",
    "run",
    "size",
    "step",
    "stream",
]
__version__ = "0.1.0"


def rank() -> int:
    """This worker's place among the workers: 0 to size() - 1. 0 without `shoal run`."""
    from shoal import session

    current = session.current()
    current.rank_was_asked = True
    return current.rank


def size() -> int:
    """How many workers train together now. 1 without `shoal run`."""
    from shoal import session

    return session.current().size


def is_chief() -> bool:
    """Whether this worker prints and writes files: the one with rank 0."""
    from shoal import session

    return session.current().is_chief


def step(*models: Any, metrics: Sequence[Any] = ()) -> Any:
    """Makes a step function of the script's own a step of all workers: `@shoal.step(model)`.

    The function gets the rows of a batch, computes gradients and gives them to optimizers, as often as it likes; what
    it returns is averaged over the batch. `models`: those whose weights it trains or changes; on JAX none, since it
    gets the state there and returns it. `metrics`: those that it updates. Without `shoal run` it is compiled as it is.
    """
    if len(models) == 1 and not hasattr(models[0], "trainable_variables") and callable(models[0]):
        return step()(models[0])  # without brackets

    def decorate(function: Any) -> Any:
        from shoal import session

        run = session.current()
        from shoal.hook.calls.loops import Step
        from shoal.hook.scopes import strategy_in_force

        return Step(run, strategy_in_force(run), function, models, metrics)

    return decorate


def batches(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: bool = False,
    steps: int | None = None,
) -> Iterator[Any]:
    """The batches of any data that `fit` takes, for one epoch of a loop with a `shoal.step`.

    Each worker reads the rows that it computes. A worker that is lost is replaced, and checkpoints are taken.
    """
    from shoal import session

    run = session.current()
    from shoal.hook.calls import feeds, loops

    request = feeds.DataRequest("batches", x, y, sample_weight, batch_size, steps, shuffle=shuffle)
    return loops.batches(run, request)


def stream(make: Callable[..., Any], shards: int, map: Callable[[Any], Any] | None = None) -> Any:
    """Data in shards, of which every worker reads those whose rows it computes. `fit` takes it as its data.

    `make(shard)` returns the batches of shard 0 to `shards` - 1: a generator, a data set of Grain, Hugging Face or
    tf.data. A step's batch is the next batch of each shard, one after another. `make(shard, number)` is told the number
    of the pass over the data as well, to shuffle anew. A shard must give the same batches whenever it is made. `map`
    makes (x, y) or (x, y, sample_weight) of what a shard gives, where it gives something else.

    `shards`: a multiple of the pieces that a batch is cut into, so that no row goes from one worker to another.
    Without `shoal run`, Keras's own `fit` takes it too, with the same batches.
    """
    from shoal import session

    session.current()
    from shoal.hook.calls.shard_streams import ShardStream

    return ShardStream(make, shards, map)


def __getattr__(name: str) -> Any:
    """Loads the rest when it is asked for: the launcher needs none of it and should start at once."""
    if name in ("AllReduce", "LocalSGD", "ParameterServer", "Pipeline"):
        from shoal import session
        from shoal.strategies import allreduce, local_sgd, parameter_server, pipeline

        session.current()  # a strategy means something only where keras is hooked
        kinds = (allreduce.AllReduce, local_sgd.LocalSGD, parameter_server.ParameterServer, pipeline.Pipeline)
        return next(kind for kind in kinds if kind.__name__ == name)
    if name == "Mesh":
        from shoal.strategies.mesh.shape import Mesh

        return Mesh
    if name in ("TopK", "LowRank", "ErrorFeedback"):
        from shoal.codecs import feedback, lossy

        return getattr(feedback if name == "ErrorFeedback" else lossy, name)
    if name == "run":
        from shoal.launch import from_python

        return from_python.run
    if name in __all__:
        from shoal import errors

        return getattr(errors, name)
    if name in ("layers", "ray"):
        import importlib

        return importlib.import_module(f"shoal.{name}")
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")

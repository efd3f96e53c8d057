"""`fit` on many workers: makes ready what all strategies need, and trains with the model's own.

The order: open the data → build the model → trace a step → agree with the others → train → the History.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from shoal.collectives.group import Company
from shoal.config import Servers
from shoal.errors import UsageError
from shoal.hook import feeds
from shoal.hook.asynchronous import AsynchronousTraining
from shoal.hook.engines import engine_for
from shoal.hook.evaluate import Evaluation
from shoal.hook.fit_store import leave_last
from shoal.hook.run import Run
from shoal.hook.serving import serve
from shoal.hook.shard_optimizer import loss_scale_of
from shoal.hook.synchronous import SynchronousTraining
from shoal.hook.tables import tables_of
from shoal.hook.training import FitArguments, Prepared, history_of
from shoal.hook.updates import AbstractUpdates, OwnUpdates, ServedUpdates, refuse_unless_served
from shoal.strategies.allreduce import AllReduce, check_batch
from shoal.strategies.parameter_server import ParameterServer
from shoal.strategies.scope import Strategy


def fit(run: Run, strategy: Strategy, model: Any, arguments: FitArguments, call: int) -> Any:
    """Trains; returns the History, the same on every worker."""
    if not model.compiled:
        raise ValueError("You must call `compile()` before calling `fit()`.")
    servers = strategy.servers_for(run.servers) if isinstance(strategy, ParameterServer) else None
    cut = strategy if isinstance(strategy, AllReduce) else AllReduce()
    prepare = partial(_prepared, run, model, arguments, cut, servers)
    if run.is_server:
        if servers is not None:
            with prepare(pieces=1) as prepared:
                serve(run, prepared, servers, _scales(strategy), call)
        return history_of(model, run.calls.unpack(run.result_of(call)))
    leave_last()
    if servers is not None and servers.staleness != 0:
        with (
            prepare(pieces=1) as prepared,
            contextlib.closing(AsynchronousTraining(run, prepared, arguments, call, servers)) as training,
        ):
            return training.run()
    pieces, fixed = cut.pieces_for(run.pieces, run.workers), cut.fixes_pieces(run.pieces)
    with prepare(pieces) as prepared:
        updates = _updates(run, prepared, arguments, servers, call)
        with contextlib.closing(
            SynchronousTraining(run, prepared, arguments, call, pieces, fixed, updates)
        ) as training:
            if run.company.is_late:
                # Compiles, so that nobody waits for this worker later.
                prepared.engine.rehearse(prepared.batch, applies=servers is None)
                training.prepare()
            return training.run()


def replay(model: Any, returned: bytes) -> Any:
    """A fit that was over before the checkpoint which the run goes on from. Later ones draw what they would have."""
    _draw_seed()
    return history_of(model, returned)


def _scales(strategy: Strategy) -> bool:
    return isinstance(strategy, ParameterServer) and strategy.scale_by_staleness


def _updates(
    run: Run, prepared: Prepared, arguments: FitArguments, servers: Servers | None, call: int
) -> AbstractUpdates:
    if servers is None:
        return OwnUpdates(prepared.engine, prepared.model)
    refuse_unless_served(arguments.callbacks)
    return ServedUpdates(run, prepared.engine, prepared.shape, servers, call)


@contextlib.contextmanager
def _prepared(
    run: Run, model: Any, arguments: FitArguments, cut: AllReduce, servers: Servers | None, pieces: int
) -> Iterator[Prepared]:
    """Data, model and step, ready to be trained; closed at the end. `servers` hold the optimizer's state, if any."""
    company, served = run.company, servers is not None
    seed = _agree_on_seed(company)
    request = feeds.Request(
        "fit",
        arguments.x,
        arguments.y,
        arguments.sample_weight,
        arguments.batch_size,
        arguments.steps_per_epoch,
        arguments.class_weight,
        arguments.shuffle,
        seed,
    )
    held_out = arguments.validation_data
    if arguments.validation_split and held_out is None:
        request, held_out = feeds.split_validation(request, arguments.validation_split)
    with contextlib.ExitStack() as stack:
        source = feeds.open_source(request, company)
        stack.callback(source.close)
        run.say("building the model")
        spec = source.spec()
        size = _batch_size(request)
        if size is not None:
            check_batch(size, pieces)
        batch = feeds.example(spec, max(1, (size or pieces) // pieces))
        with _unbuilt(model.optimizer) if served else contextlib.nullcontext():
            model._symbolic_build(data_batch=batch)
        tables = tables_of(model)
        if tables and not served:
            raise UsageError(
                f"the rows of {tables.layers[0].name} are on servers: train its model with `--strategy ps`, or run the "
                "script without servers"
            )
        tables.widen(spec, request, exactly=servers is not None and servers.staleness == 0)
        validation = None
        if held_out is not None and not run.is_server:
            validation = Evaluation.of_held_out(run, cut, model, held_out, arguments)
            stack.callback(validation.close)
            validation.widen()
        engine = engine_for(model)
        engine.begin(seed)  # and again when all have the chief's state
        engine.refuse_unless_distributable()
        engine.loss_scale = loss_scale_of(model.optimizer) if served else None
        run.say("tracing the training step")
        shape = engine.trace(batch)
        engine.put_seeds_back()
        yield Prepared(model, engine, shape, source, seed, batch, validation)


@contextlib.contextmanager
def _unbuilt(optimizer: Any) -> Iterator[None]:
    """Keeps Keras from making momenta and the like, which take as much memory as the model or twice as much."""
    built, optimizer.built = optimizer.built, True
    try:
        yield
    finally:
        optimizer.built = built


def _agree_on_seed(company: Company) -> int:
    """The order of samples comes from Python's random numbers, which `keras.utils.set_random_seed` seeds.

    Every worker draws one, so that their random numbers stay in step; the chief's counts.
    """
    drawn = _draw_seed()
    if company.is_late:
        return drawn  # until the others tell theirs
    return int(company.gather("fit: the seed", str(drawn).encode()).chiefs)


def _draw_seed() -> int:
    return random.getrandbits(63)


def _batch_size(request: feeds.Request) -> int | None:
    """The size of a whole batch where the arguments tell it: for arrays and torch loaders. Streams tell themselves."""
    if request.batch_size is not None and request.batch_size < 1:
        raise UsageError(f"batch_size={request.batch_size}: expected at least 1")
    if feeds.is_arrays(request.x):
        return request.batch_size or feeds.DEFAULT_BATCH_SIZE
    size = getattr(request.x, "batch_size", None)
    return size if isinstance(size, int) else None

"""`fit` on many workers: makes ready what all strategies need, and trains with the model's own.

The order: open the data → build the model → trace a step → agree with the others → train → the History.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import msgspec

from shoal.config import Servers
from shoal.data.sources import Bookmark, Spec
from shoal.errors import CannotDistribute, UsageError
from shoal.hook.backends.registry import engine_for
from shoal.hook.calls import feeds
from shoal.hook.calls.building import build
from shoal.hook.calls.callbacks import KerasCallbacks, given_callbacks
from shoal.hook.calls.evaluate import Evaluation
from shoal.hook.calls.history import history_of
from shoal.hook.calls.shard_streams import ShardStream
from shoal.hook.local.keras_outer import outer_of
from shoal.hook.mesh.laying import tell_of_rows
from shoal.hook.scopes import Plans
from shoal.hook.served.keras_optimizer import KerasOptimizer
from shoal.hook.served.serving import serve
from shoal.hook.served.shard_optimizer import LossScales, unbuilt
from shoal.hook.served.sliced_choice import updates_of
from shoal.hook.stages.graph import refuse_unless_stageable
from shoal.hook.stages.left_states import LeftStates
from shoal.hook.stages.stages import KerasStages
from shoal.hook.tables.worker_tables import tables_of
from shoal.observe.phases import Phase
from shoal.strategies.abstract import AbstractStrategy, PipelineSettings, RoundSettings
from shoal.training.asynchronous import AsynchronousTraining
from shoal.training.calls import PLAN
from shoal.training.data_agreement import DataState
from shoal.training.engine import PartShape
from shoal.training.fit_store import leave_last
from shoal.training.local import LocalTraining
from shoal.training.logs import Logs
from shoal.training.pipelined import PipelinedTraining
from shoal.training.plan_in_force import PlanInForce
from shoal.training.prepared import Description, FitArguments, Prepared
from shoal.training.run import Run
from shoal.training.streamed import StreamedTraining
from shoal.training.synchronous import SynchronousTraining
from shoal.training.updates import AbstractUpdates, ServedUpdates


def fit(run: Run, strategy: AbstractStrategy, model: Any, arguments: FitArguments, call: int) -> Any:
    """Trains; returns the History, the same on every worker."""
    if not model.compiled:
        raise ValueError("You must call `compile()` before calling `fit()`.")
    run.memory.of(LeftStates).refuse(model.optimizer)
    if keras.backend.backend() == "torch" and model.steps_per_execution > 1:
        model.make_train_function(force=True)  # raises, in Keras's own words, where it can't do that
    if run.is_server:
        strategy.train(run, _OnServer(run, strategy, model, arguments, call))
        return history_of(model, run.calls.unpack(call, run.result_of(call)))
    leave_last(run)
    over = strategy.train(run, _OnWorker(run, strategy, model, arguments, call))
    return model.history if over is None else history_of(model, over)


class _OnWorker:
    """The `Trainings` of a worker. Each returns what others had of the fit, if it was over before this one came."""

    def __init__(self, run: Run, strategy: AbstractStrategy, model: Any, arguments: FitArguments, call: int) -> None:
        self._run = run
        self._model = model
        self._arguments = arguments
        self._call = call
        self._prepared = partial(prepared_for, run, strategy, model, arguments)

    def together(self, pieces: int, fixed: bool, sliced: bool) -> bytes | None:
        with self._prepared(pieces) as prepared:
            updates_for = partial(updates_of, self._run, self._model, prepared)
            return self._together(prepared, pieces, fixed, updates_for(sliced), updates_for)

    def together_on_servers(self, pieces: int, fixed: bool, servers: Servers) -> bytes | None:
        with self._prepared(pieces, servers) as prepared:
            updates = ServedUpdates(self._run, prepared, servers, self._call)
            return self._together(prepared, pieces, fixed, updates)

    def in_stages(self, settings: PipelineSettings) -> bytes | None:
        if self._run.mesh is not None:
            raise CannotDistribute(
                f"a pipeline's stages are on one device each, and this run's workers have a mesh ({self._run.mesh}). "
                "Use --devices-per-worker 1, or train without the pipeline."
            )
        refuse_unless_stageable(self._model, given_callbacks(self._arguments.callbacks), settings.lean)
        with self._prepared(settings.pieces, staged=True) as prepared:
            model, engine, shape = self._model, engine_for(self._run, self._model), prepared.shape
            found = KerasStages(model, engine, shape, settings.stages, settings.speeds)
            averaged = engine.train_logs.averaged()
            metrics = PartShape(engine.variables, [], [], shape.only.metrics, [], averaged=averaged)
            training = PipelinedTraining(
                self._run, prepared, self._arguments, self._call, settings, found, metrics, self._plan_in_force()
            )
            with contextlib.closing(training):
                over = training.run()
            if settings.lean:
                self._run.memory.of(LeftStates).add(model.optimizer)
            return over

    def in_rounds(self, settings: RoundSettings, outer: Any) -> bytes | None:
        if self._run.mesh is not None:
            raise CannotDistribute(
                f"LocalSGD's replicas are on one device each, and this run's workers have a mesh ({self._run.mesh}). "
                "Use --devices-per-worker 1, or --strategy allreduce."
            )
        with self._prepared(settings.replicas) as prepared:
            chosen = outer_of(self._run, self._model, prepared.engine, prepared.shape, outer)
            kind = LocalTraining if settings.streaming is None else StreamedTraining
            training = kind(self._run, prepared, self._arguments, self._call, settings, chosen)
            with contextlib.closing(training):
                if self._run.worker_group.is_late:
                    prepared.engine.rehearse(prepared.batch)
                    training.prepare()
                return training.run()

    def at_own_pace(self, servers: Servers, scales: bool) -> bytes | None:
        with self._prepared(1, servers) as prepared:
            training = AsynchronousTraining(self._run, prepared, self._arguments, self._call, servers)
            with contextlib.closing(training):
                return training.run()

    def _plan_in_force(self) -> PlanInForce | None:
        replanning = self._run.memory.of(Plans).replanning_of(self._model)
        return PlanInForce(self._run, replanning, self._arguments.epochs) if replanning is not None else None

    def _together(
        self,
        prepared: Prepared,
        pieces: int,
        fixed: bool,
        updates: AbstractUpdates,
        updates_for: Callable[[bool], AbstractUpdates] | None = None,
    ) -> bytes | None:
        """`updates_for`: other ones, if a plan changes."""
        run, arguments = self._run, self._arguments
        plan = self._plan_in_force() if updates_for is not None else None
        training = SynchronousTraining(run, prepared, arguments, self._call, pieces, fixed, updates, plan, updates_for)
        with contextlib.closing(training):
            if self._run.worker_group.is_late:
                # Compiles, so that nobody waits for this worker later.
                prepared.engine.rehearse(prepared.batch, applies=updates.parts is None)
                training.prepare()
            return training.run()


class _OnServer:
    """The `Trainings` of a server, which has a part in some of them."""

    def __init__(self, run: Run, strategy: AbstractStrategy, model: Any, arguments: FitArguments, call: int) -> None:
        self._run = run
        self._model = model
        self._call = call
        self._prepared = partial(prepared_for, run, strategy, model, arguments, 1)

    def together(self, pieces: int, fixed: bool, sliced: bool) -> None:
        pass

    def together_on_servers(self, pieces: int, fixed: bool, servers: Servers) -> None:
        self.at_own_pace(servers, scales=False)

    def in_stages(self, settings: PipelineSettings) -> None:
        pass

    def in_rounds(self, settings: RoundSettings, outer: Any) -> None:
        pass

    def at_own_pace(self, servers: Servers, scales: bool) -> None:
        with self._prepared(servers) as prepared:
            serve(self._run, self._model, prepared, servers, scales, self._call)


@contextlib.contextmanager
def prepared_for(
    run: Run,
    strategy: AbstractStrategy,
    model: Any,
    arguments: FitArguments,
    pieces: int,
    servers: Servers | None = None,
    staged: bool = False,
) -> Iterator[Prepared]:
    """Data, model and step, ready to be trained; closed at the end. `servers` hold the optimizer's state, if any;
    `staged`: each stage has an optimizer of its own.
    """
    served = servers is not None
    if served and not run.is_server:
        refuse_unless_served(arguments.callbacks)
    seed = agree_on_seed(run)
    request = feeds.DataRequest(
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
        source = feeds.open_source(request, run)
        stack.callback(source.close)
        run.record(Phase.BUILDING)
        spec = source.spec()
        size = feeds.size_of_batches(request, spec)
        if not served:
            _tell_of_idlers(run, spec, size)
            if isinstance(arguments.x, ShardStream):
                _tell_of_shards(run, arguments.x.shards, pieces)
        rows = 1 if staged else max(1, size // pieces)  # stages are compiled when they are computed
        batch = feeds.example(spec, rows)
        with unbuilt(model.optimizer) if served or staged else contextlib.nullcontext():
            build(model, feeds.example(spec, size or spec.samples))
        tables = tables_of(run, model)
        if tables and not served:
            raise UsageError(
                f"the rows of {tables.layers[0].name} are on servers: train its model with `--strategy ps`, or run the "
                "script without servers"
            )
        tables.widen(spec, request, exactly=servers is not None and servers.staleness == 0)
        validation = None
        if held_out is not None and not run.is_server:
            validation = Evaluation.of_held_out(run, strategy, model, held_out, arguments)
            stack.callback(validation.close)
            validation.widen()
        engine = engine_for(run, model)
        tell_of_rows(run, model, size // pieces, pieces)
        engine.begin(seed)  # and again when all have the chief's state
        engine.refuse_unless_distributable()
        loss_scales = run.memory.of(LossScales)
        engine.loss_scale = loss_scales.of(model.optimizer) if served else None
        engine.builds_optimizers = not served and not staged
        engine.is_own_step = staged
        run.record(Phase.TRACING)
        shape = engine.trace(batch)
        engine.put_seeds_back()
        if run.is_server:
            arguments = msgspec.structs.replace(arguments, callbacks=None, verbose=0)
        callbacks = KerasCallbacks(run, model, arguments, source.steps)
        yield Prepared(
            model,
            engine,
            KerasOptimizer(model, engine, loss_scales),
            tables,
            description_of(model),
            shape,
            source,
            seed,
            batch,
            _Validation(validation, callbacks) if validation is not None else None,
            callbacks,
            strategy.codec_for(run.compress),
            size,
        )


class _Validation:
    """The `Validation` of a fit, of which its callbacks hear."""

    def __init__(self, evaluation: Evaluation, callbacks: KerasCallbacks) -> None:
        self._evaluation = evaluation
        self._callbacks = callbacks

    @property
    def bookmark(self) -> Bookmark:
        return self._evaluation.bookmark

    @bookmark.setter
    def bookmark(self, mark: Bookmark) -> None:
        self._evaluation.bookmark = mark

    @property
    def data(self) -> DataState:
        return self._evaluation.data

    def join(self, state: DataState) -> None:
        self._evaluation.join(state)

    def run(self, epoch: int) -> Logs:
        return self._evaluation.run(self._callbacks.listed, epoch)


def description_of(model: Any) -> Description:
    """For checkpoints. Without the configuration there is no `shoal checkpoint export`, and nothing else is missing."""
    try:
        config = keras.saving.serialize_keras_object(model)
        config = msgspec.json.decode(msgspec.json.encode(config))
    except Exception:  # a model's own code
        config = None
    return Description(config, keras.backend.backend(), keras.__version__)


def agree_on_seed(run: Run) -> int:
    """The order of samples comes from Python's random numbers, which `keras.utils.set_random_seed` seeds.

    They stay where they are, as in plain Keras: what the script draws next, for initial weights, is what it would draw
    there. So that each call has numbers of its own, its number goes into them. The chief's seed counts.
    """
    number = run.calls.number - run.calls.made[PLAN]  # as without a plan
    state = f"{random.getstate()} {number}".encode()
    drawn = int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "little") >> 1
    if run.worker_group.is_late:
        return drawn  # until the others tell theirs
    return int(run.worker_group.gather("fit: the seed", str(drawn).encode()).chiefs)


def _tell_of_idlers(run: Run, spec: Spec, size: int) -> None:
    """Where batches are too small for everyone."""
    idle = run.workers - size
    if idle <= 0:
        return
    why = f"a batch has {size} sample{'s' if size > 1 else ''}"
    if not spec.is_cuttable:
        why = "the arrays of a batch have different numbers of rows, so it can't be cut"
    idlers = f"{idle} of {run.workers} workers {'has' if idle == 1 else 'have'}"
    run.tell(f"fit(): {why}: {idlers} nothing to do in a step")


def _tell_of_shards(run: Run, shards: int, pieces: int) -> None:
    """Where a worker reads rows that another one computes."""
    if run.workers > 1 and shards % pieces:
        run.tell(
            f"fit(): {shards} shards for {pieces} pieces: some rows go from the worker that reads them to another. "
            f"With a multiple of {pieces} shards none would."
        )


def refuse_unless_served(callbacks: Any) -> None:
    """Raises for what does not work with parameter servers."""
    if any(isinstance(each, keras.callbacks.SwapEMAWeights) for each in given_callbacks(callbacks)):
        raise CannotDistribute(
            "SwapEMAWeights swaps weights with averages that the optimizer keeps, and with parameter servers it keeps "
            "them on the servers. Leave it out: the weights become the averages when fit ends, and every n updates "
            "with ema_overwrite_frequency=n. Or use --strategy allreduce."
        )

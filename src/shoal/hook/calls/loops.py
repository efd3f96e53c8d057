"""Loops of a script's own: `shoal.step` makes its step function distributed, `shoal.batches` reads for it.

    @shoal.step(model)                          # in place of @tf.function or @jax.jit
    def train_step(x, y): ...                   # computes gradients, applies the optimizer, returns what is to be shown

    for x, y in shoal.batches(dataset):
        loss = train_step(x, y)

The function is called with the rows of a piece. Its applies are taken as those of a `train_step` in `fit`. On JAX it
gets the state first and returns it last, as in Keras's own guide: `loss, state = train_step(state, x, y)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import msgspec
import numpy as np

from shoal.collectives.group import AbstractGroup, Result, StateKeeper
from shoal.data.sources import AbstractSource, Spec, Split, Taken
from shoal.data.structure import Skeleton, flatten, rebuild
from shoal.errors import CannotDistribute, Diverged, UsageError
from shoal.hook import keras_private
from shoal.hook.backends import leaves
from shoal.hook.backends.registry import engine_for
from shoal.hook.calls import feeds
from shoal.hook.calls.fit import agree_on_seed, description_of
from shoal.hook.served.keras_optimizer import KerasOptimizer
from shoal.hook.served.shard_optimizer import LossScales
from shoal.observe.phases import Phase
from shoal.strategies.abstract import AbstractStrategy
from shoal.strategies.allreduce import Exchanged
from shoal.strategies.notes import Note, leavers, newcomers
from shoal.training import position
from shoal.training.data_agreement import DataState, join_data
from shoal.training.left_out import left_out_tensors, refuse_own_folders, resume_left_out
from shoal.training.logs import Logs
from shoal.training.model_state import share_chiefs_state
from shoal.training.position import Position
from shoal.training.resuming import Expected, cannot_resume, resume
from shoal.training.run import Run
from shoal.training.saving import Saver
from shoal.training.single_steps import GivenBatch, SingleSteps


class OpenLoops:
    """The loops that are going on, one within another; each until it ends. Steps belong to the innermost."""

    def __init__(self) -> None:
        self._loops: list[Loop] = []

    @property
    def innermost(self) -> Loop | None:
        return self._loops[-1] if self._loops else None

    @contextlib.contextmanager
    def within(self, loop: Loop) -> Iterator[None]:
        self._loops.append(loop)
        try:
            yield
        finally:
            self._loops.remove(loop)


class Step:
    """A step function of the script's own, taken by all workers together."""

    def __init__(
        self,
        run: Run,
        strategy: AbstractStrategy,
        function: Callable[..., Any],
        models: Sequence[Any],
        metrics: Sequence[Any],
    ) -> None:
        self._run = run
        self._strategy = strategy
        self._function = function
        self._models = models
        self._metrics = metrics
        self._steps: SingleSteps | None = None
        self._program: _Program | None = None
        self._alone: Callable[..., Any] | None = None
        if keras.backend.backend() != "jax" and not models:
            raise UsageError("shoal.step: name the models whose weights the function trains: @shoal.step(model)")

    def __call__(self, *given: Any) -> Any:
        run = self._run
        if run.is_plain and self._strategy.leaves_to_keras(run.pieces, run.compress):
            return self._compiled()(*given)
        if run.servers is not None:
            raise CannotDistribute("shoal.step can't train on parameter servers: use fit, or --strategy allreduce.")
        loop = run.memory.of(OpenLoops).innermost
        state, batch = (given[0], given[1:]) if keras.backend.backend() == "jax" else (None, given)
        if loop is not None:
            run.calls.between_steps = False
            try:
                return self._take(loop, state, batch)
            finally:
                run.calls.between_steps = True
        with run.calls.brief("step"):
            return self._take(None, state, batch)

    def _compiled(self) -> Callable[..., Any]:
        """As the script would have it without us."""
        if self._alone is None:
            backend = keras.backend.backend()
            if backend == "jax":
                import jax

                self._alone = jax.jit(self._function)
            elif backend == "tensorflow":
                import tensorflow as tf

                self._alone = tf.function(self._function)
            else:
                self._alone = self._function
        assert self._alone is not None
        return self._alone

    def _take(self, loop: Loop | None, state: Any, batch: tuple[Any, ...]) -> Any:
        feed = _feed(batch)
        steps = self._prepared(state, feed)
        program = self._program
        assert program is not None
        if loop is None:
            program.set_state(state)
            steps.engine.load_metrics()
            logs = steps.take(feed)
        else:
            logs = loop.step(program, steps, feed, lambda: program.set_state(state))
        if logs is None:  # a newcomer that came when the loop was over
            logs = dict.fromkeys(steps.shape.logs, float("nan"))
        shown = rebuild(program.skeleton, [keras.ops.convert_to_tensor(logs[str(i)]) for i in range(len(logs))])
        return (shown, program.state()) if state is not None else shown

    def _prepared(self, state: Any, feed: GivenBatch | _LoopBatch) -> SingleSteps:
        """Traced when it is called for the first time."""
        if self._steps is not None:
            return self._steps
        run, strategy = self._run, self._strategy
        strategy.refuse_single_steps()
        pieces = strategy.pieces_for(run.pieces, run.workers)
        example = feeds.example(feed.spec, max(1, feed.spec.samples // pieces))
        run.record(Phase.TRACING)
        seed = agree_on_seed(run)
        self._program = program = _Program(self._function, self._models, self._metrics, state)
        counted = [np.array(keras.ops.convert_to_numpy(v)) for metric in program.metrics for v in metric.variables]
        engine = engine_for(run, program)
        engine.begin(seed)
        shape = engine.trace(example)
        if state is not None and any(engine.adds):
            program.know_metrics(engine.adds)
            engine = engine_for(run, program)
            engine.begin(seed)
            shape = engine.trace(example)
        engine.put_seeds_back()
        engine.write([v for metric in program.metrics for v in metric.variables], counted)  # tracing may count
        if not run.worker_group.is_late:
            share_chiefs_state(run.worker_group, engine, "step")
            engine.begin(seed)
        self._steps = SingleSteps(run, engine, shape, pieces, "step", strategy.codec_for(run.compress))
        return self._steps


class _Program:
    """A step function with its variables, as an engine knows a model with its `train_step`."""

    optimizer = None
    compiled = True
    run_eagerly = False
    loss = None
    name = "step"

    def __init__(
        self, function: Callable[..., Any], models: Sequence[Any], metrics: Sequence[Any], state: Any = None
    ) -> None:
        self.step_name = f"the step function {getattr(function, '__name__', function)!r}"
        self.jit_compile: Any = True if keras.backend.backend() == "jax" else None
        self._function = function
        self._models = list(models)
        self.metrics = list({id(m): m for m in (*metrics, *(m for one in models for m in one.metrics))}.values())
        self.skeleton: Skeleton = None  # of what the function returns
        self._structure: Any = None
        self._leaves: list[Any] = []
        self._adds: list[bool] = []
        if state is not None:
            import jax

            leaves, self._structure = jax.tree.flatten(state)
            self._leaves = [
                keras.Variable(np.asarray(leaf), dtype=str(leaf.dtype), trainable=False, name=_name(i, leaf))
                for i, leaf in enumerate(leaves)
            ]
            self._adds = [False] * len(leaves)

    def know_metrics(self, adds: Sequence[bool]) -> None:
        self._adds = list(adds[: len(self._leaves)])

    def set_state(self, state: Any) -> None:
        """What the script gave, on JAX."""
        if state is None:
            return
        import jax

        leaves, structure = jax.tree.flatten(state)
        if structure != self._structure:
            raise UsageError(f"{self.step_name} was given a state of another structure than the first time.")
        for variable, leaf in zip(self._leaves, leaves, strict=True):
            if not keras_private.holds(variable, leaf):
                keras_private.set_values([variable], [jax.numpy.asarray(leaf)])

    def state(self) -> Any:
        import jax

        return jax.tree.unflatten(self._structure, [variable.value for variable in self._leaves])

    @property
    def trainable_variables(self) -> list[Any]:
        return [] if self._leaves else [v for model in self._models for v in model.trainable_variables]

    @property
    def non_trainable_variables(self) -> list[Any]:
        if self._leaves:
            return [v for v, adds in zip(self._leaves, self._adds, strict=True) if not adds]
        return [v for model in self._models for v in model.non_trainable_variables]

    @property
    def variables(self) -> list[Any]:
        return [*self.trainable_variables, *self.non_trainable_variables]

    @property
    def metrics_variables(self) -> list[Any]:
        if self._leaves:
            return [v for v, adds in zip(self._leaves, self._adds, strict=True) if adds]
        return [v for metric in self.metrics for v in metric.variables]

    def reset_metrics(self) -> None:
        for metric in self.metrics:
            metric.reset_state()
        for variable in self.metrics_variables if self._leaves else ():
            variable.assign(np.zeros(tuple(variable.shape)))

    def train_step(self, *given: Any) -> Any:
        if not self._leaves:
            (batch,) = given
            return self._shown(self._function(*batch))
        import jax

        (_, others, _, metrics), batch = given
        supply, sums = iter(others), iter(metrics)
        leaves = [next(sums) if adds else next(supply) for adds in self._adds]
        shown, state = self._function(jax.tree.unflatten(self._structure, leaves), *batch)
        new, structure = jax.tree.flatten(state)
        if structure != self._structure:
            raise CannotDistribute(f"{self.step_name} returns a state of another structure than it was given.")
        kept = [value for value, adds in zip(new, self._adds, strict=True) if not adds]
        return self._shown(shown), ([], kept, [], [value for value, adds in zip(new, self._adds, strict=True) if adds])

    def _shown(self, returned: Any) -> Logs:
        leaves, self.skeleton = flatten(returned)
        return {str(i): leaf for i, leaf in enumerate(leaves)}

    def train(self) -> None:
        for model in self._models:
            model.train()

    def named_buffers(self) -> Iterator[tuple[str, Any]]:
        for model in self._models:
            yield from model.named_buffers()


class Pending:
    """A part of a batch of `shoal.batches`: the rows are read when a step takes them, by whoever computes them."""

    def __init__(self, batch: _Batch, index: int) -> None:
        self.batch = batch
        self.index = index

    def numpy(self) -> Pending:
        return self

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError(
            "a batch of shoal.batches() can only be given to a function with @shoal.step: every worker reads its own "
            "rows of it. To look at the data itself, loop over the data set."
        )


class _Batch:
    """One turn of a loop."""

    def __init__(self, source: AbstractSource, number: int) -> None:
        self.source = source
        self.number = number


class _LoopBatch:
    """A batch of a loop, or some of its parts, for a step."""

    digest = b""

    def __init__(self, batch: _Batch, indices: Sequence[int], skeleton: Skeleton) -> None:
        self._batch = batch
        self._indices = indices
        whole = batch.source.spec()
        self.spec = Spec(skeleton, tuple(whole.leaves[i] for i in indices), whole.samples, whole.is_cuttable)

    def take(self, split: Split, group: AbstractGroup) -> Taken | None:
        taken = self._batch.source.take(self._batch.number, split, group)
        if taken is None:
            return None
        return Taken(taken.size, taken.first, [taken.rows[i] for i in self._indices], taken.is_cuttable)


def _feed(batch: Any) -> GivenBatch | _LoopBatch:
    given, skeleton = flatten(batch)
    pending = [leaf for leaf in given if isinstance(leaf, Pending)]
    if not pending:
        rows = [leaves.settle(leaves.to_column(leaf)) for leaf in given]
        return GivenBatch(rows, Spec.of(rows, skeleton))
    if len(pending) != len(given):
        raise UsageError("a step was given some arrays and some parts of a batch of shoal.batches(); expected one kind")
    return _LoopBatch(pending[0].batch, [leaf.index for leaf in pending], skeleton)


class Loop:
    """One `for batch in shoal.batches(...)`: what a newcomer is told, and a checkpoint keeps, between its steps."""

    def __init__(self, run: Run, source: AbstractSource, seed: int, call: int) -> None:
        self._run = run
        self._source = source
        self._call = call
        self._steps: SingleSteps | None = None
        self._several = False  # step functions: then nobody can be told where all of them stand
        self._batch = _Batch(source, 0)
        self._at = Position(seed=seed)
        self._saver: Saver | None = None
        self._save_next = False
        self._newcomers: tuple[str, ...] = ()
        self._leavers: tuple[str, ...] = ()
        self.is_over = False
        self._is_taken = False  # the batch, by a step: another step with it is no place to come in, to leave or to save
        self._is_last = False

    @property
    def keeper(self) -> StateKeeper:
        return self

    @property
    def newcomers(self) -> tuple[str, ...]:
        return () if self._is_taken else self._newcomers

    @property
    def leavers(self) -> tuple[str, ...]:
        return () if self._is_taken else self._leavers

    def batches(self) -> Iterator[Any]:
        spec = self._source.spec()
        self._source.begin(0)
        while not self.is_over and not self._source.is_over(self._batch.number):
            pending = [Pending(self._batch, i) for i in range(len(spec.leaves))]
            self._run.calls.between_steps = True
            try:
                yield rebuild(spec.skeleton, pending)
            finally:
                self._run.calls.between_steps = False
            if not self._is_taken and not self.is_over:
                raise UsageError('a batch of shoal.batches() was given to no step: see docs/guide.md, "Your own loop"')
            self._batch = _Batch(self._source, self._batch.number + 1)
            self._at.step = self._batch.number
            self._is_taken = False
            self.is_over |= self._is_last

    def close(self) -> None:
        if self._saver is not None:
            if not self._run.worker_group.is_late:
                self._saver.finish(self._run.worker_group, self._run.is_chief)
            self._saver.close()
        self._source.close()

    def step(
        self, program: _Program, steps: SingleSteps, feed: GivenBatch | _LoopBatch, prepare: Callable[[], None]
    ) -> Logs | None:
        """One step of the loop. The first one of a newcomer, or of a run that goes on, goes to where others stand."""
        run = self._run
        if self._steps is None:
            self._steps = steps
            prepare()
            steps.engine.load_metrics()
            if not self._begin(program, steps):
                return None
        else:
            self._several |= steps is not self._steps
            prepare()
            steps.engine.load_metrics()
        if run.me in self.leavers:
            self._leave()
        if self._save_next and not self._is_taken and not self._several:
            self._save()
        logs = steps.take(feed, self)
        if logs is None:
            self.is_over = True  # what a checkpoint goes on with had ended; or the next chief's stream is shorter
        self._is_taken |= isinstance(feed, _LoopBatch)
        return logs

    def _begin(self, program: _Program, steps: SingleSteps) -> bool:
        """Whether this worker takes part in the loop."""
        run, optimizer = self._run, KerasOptimizer(program, steps.engine, self._run.memory.of(LossScales))
        if run.worker_group.is_late:
            steps.engine.rehearse(feeds.example(self._source.spec(), 1))
            steps.prepare()
            run.record(Phase.JOINING)
            over = run.worker_group.enter(self, self._call)
            if over is not None:
                run.calls.unpack(self._call, over)
                self.is_over = True
                return False
        elif (path := run.calls.resumes(self._call)) is not None:
            try:
                self.take(resume(run.worker_group, path, Expected(steps.engine, optimizer, (), served=False)))
            except Diverged as error:
                raise cannot_resume(path, error) from error
            resume_left_out(run, path, steps.reductions)
        if run.saving is not None:
            refuse_own_folders(run, steps.reductions)
            self._saver = Saver(run, run.saving, description_of(program), steps.engine, optimizer)
        return True

    # What newcomers and checkpoints need ----------------------------------------------------------------

    def give(self) -> Result:
        assert self._steps is not None
        at, run, engine = self._at, self._run, self._steps.engine
        at.call, at.calls, at.trained, at.seen = self._call, run.calls.number, run.trained, run.seen
        at.stream, at.total = self._source.bookmark(at.step), self._steps.count
        at.data = DataState.of(self._source)
        at.pieces, at.balance = self._steps.pieces.pieces, self._steps.pieces.balance
        engine.settle()
        engine.load_metrics()
        state = engine.state()
        return Result([position.encode(at, len(state)), b"[]"], state)

    def take(self, given: Result) -> None:
        assert self._steps is not None
        self._at, count = position.decode(given.values[0])
        at, run, engine = self._at, self._run, self._steps.engine
        if run.worker_group.is_late:
            self._source = self._batch.source = join_data("batches", self._source, at.data)
        self._source.use_seed(at.seed)
        engine.set_state(given.arrays[:count])
        engine.metric_results()
        run.calls.number, run.trained, run.seen = at.calls, at.trained, at.seen
        self._source.go_to(at.stream)
        self._source.begin(0, first=at.step)
        self._batch.number = at.step
        self._steps.pieces.pieces = at.pieces or self._steps.pieces.pieces
        self._steps.pieces.balance = at.balance
        self._steps.count = at.total

    def note(self, note: Note) -> Note:
        run, saver = self._run, self._saver
        alone = not self._several
        return msgspec.structs.replace(
            note,
            candidates=run.candidates(self._call) if alone else (),
            checkpoint=alone and saver is not None and run.is_chief and saver.is_due(run.trained + 1),
            part=saver.word() if saver is not None else None,
            leaves=run.drains,
            last=run.is_chief and self._source.ends_after(self._batch.number),
        )

    def hear(self, exchanged: Exchanged) -> None:
        self._is_last = exchanged.notes[0].last
        self._newcomers = newcomers(exchanged.notes)
        self._leavers = leavers(exchanged.shared.members, exchanged.notes)
        if self._saver is not None:
            self._saver.hear(exchanged.shared.members, exchanged.notes, self._run.is_chief)
            self._save_next |= any(note.checkpoint for note in exchanged.notes)

    def _save(self) -> None:
        assert self._saver is not None
        assert self._steps is not None
        self._save_next = False
        left_out = left_out_tensors(self._steps.reductions)
        run, worker_group = self._run, self._run.worker_group
        self._saver.begin(
            run.trained,
            worker_group.view,
            worker_group.members,
            self.give(),
            self._call,
            run.calls.returned,
            run.is_chief,
            left_out=left_out,
        )

    def _leave(self) -> None:
        if self._saver is not None and set(self.leavers) >= set(self._run.worker_group.members):
            self._save()
            self._saver.finish(self._run.worker_group, self._run.is_chief)
        self._run.leave()


def batches(run: Run, request: feeds.DataRequest) -> Iterator[Any]:
    """The batches of a loop, each to be given to a step."""
    seeded = msgspec.structs.replace(request, seed=agree_on_seed(run) if request.shuffle else 0)
    if run.is_plain:
        yield from _alone(feeds.open_source(seeded, run))
        return
    with run.calls.loop() as call:
        if call is None:  # over, for the others, before this worker came; or before the checkpoint
            return
        loop = Loop(run, feeds.open_source(seeded, run), seeded.seed, call)
        with contextlib.closing(loop), run.memory.of(OpenLoops).within(loop):
            yield from loop.batches()


def _alone(source: AbstractSource) -> Iterator[Any]:
    """For a run of one: the rows themselves."""
    source.begin(0)
    step = 0
    try:
        while source.steps is None or step < source.steps:
            taken = source.take(step, lambda size: [range(size)], _Solo())
            if taken is None:
                break
            rows, skeleton = flatten(leaves.to_batch(source.spec(), taken.rows))
            yield rebuild(skeleton, [_to_tensor(row) for row in rows])
            step += 1
    finally:
        source.close()


def _to_tensor(rows: Any) -> Any:
    """As a data set of the backend gives them."""
    return keras.ops.convert_to_tensor(rows) if isinstance(rows, np.ndarray) else rows


class _Solo:
    rank, size = 0, 1

    def scatter(self, what: str, parts: Any, header: bytes = b"") -> tuple[bytes, Any]:
        return header, parts[0]

    def gather(self, what: str, value: bytes) -> list[bytes]:
        return [value]

    def send(self, ranks: Any, name: Any, arrays: Any) -> None:
        raise AssertionError("there is nobody to send to")

    def receive(self, rank: int, name: Any, what: str) -> list[Any]:
        raise AssertionError("there is nobody to receive from")


def _name(number: int, leaf: Any) -> str:
    """Seeds are known by their names; so is what looks like one."""
    is_seed = str(leaf.dtype) == "uint32" and tuple(leaf.shape) == (2,)
    return "seed_generator_state" if is_seed else f"leaf_{number}"

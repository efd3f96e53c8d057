"""`evaluate` on many workers: every batch is tested by one of them, exactly as on one machine.

Batch i belongs to slot i modulo pieces; a slot's metrics add up in order, and the slots add up along the piece tree:
so the results are the same bits for any number of workers, and whatever they decide (when to stop, which
learning rate comes next) is decided alike.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import msgspec
import numpy as np

from shoal.collectives.group import AbstractGroup, Result
from shoal.data.order import whole_batch_to
from shoal.data.sources import AbstractSource, Bookmark
from shoal.errors import UsageError
from shoal.hook.backends.base import AbstractEngine
from shoal.hook.backends.registry import engine_for
from shoal.hook.calls import feeds
from shoal.hook.calls.building import build_to_test
from shoal.hook.calls.chief import callback_list
from shoal.hook.served.shard_optimizer import unbuilt
from shoal.hook.tables.worker_tables import tables_of
from shoal.observe.phases import Phase
from shoal.strategies.abstract import AbstractStrategy
from shoal.strategies.allreduce import Division, Reduction
from shoal.strategies.balance import Balance
from shoal.strategies.notes import Note
from shoal.strategies.schema import Array, Combine, Entry, Schema
from shoal.training.data_agreement import DataState, join_data
from shoal.training.engine import metric_entry, to_float
from shoal.training.fit_store import open_tables
from shoal.training.logs import Logs, Sources
from shoal.training.model_state import share_chiefs_state
from shoal.training.run import Run
from shoal.training.seeds import Seeds


class Evaluation:
    """The evaluation of one model on one source; may be run again and again."""

    def __init__(self, run: Run, strategy: AbstractStrategy, model: Any, request: feeds.DataRequest) -> None:
        self._run = run
        self._model = model
        self._pieces = strategy.pieces_for(run.pieces, run.workers)
        self._request = request
        self._source: AbstractSource = feeds.open_source(request, run)
        self._reduction: Reduction | None = None

    @classmethod
    def of_held_out(cls, run: Run, strategy: AbstractStrategy, model: Any, held_out: Any, arguments: Any) -> Evaluation:
        """The validation of a fit."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(held_out)
        size = arguments.validation_batch_size or arguments.batch_size
        return cls(
            run, strategy, model, feeds.DataRequest("validation", x, y, weight, size, arguments.validation_steps)
        )

    @property
    def steps(self) -> int | None:
        return self._source.steps

    @property
    def bookmark(self) -> Bookmark:
        """How far a stream has been read."""
        return self._source.bookmark(0)

    @bookmark.setter
    def bookmark(self, mark: Bookmark) -> None:
        self._source.go_to(mark)

    @property
    def data(self) -> DataState:
        return DataState.of(self._source)

    def join(self, state: DataState) -> None:
        """For a worker that came late: use the data as the others do."""
        self._source = join_data(self._request.what, self._source, state)

    def build(self) -> None:
        served = self._run.servers is not None
        with unbuilt(self._model.optimizer) if served else contextlib.nullcontext():
            build_to_test(self._model, feeds.example(self._source.spec(), 1))

    def widen(self) -> None:
        """Make room for the rows of tables that a batch needs. Before the model gets its engine."""
        tables_of(self._run, self._model).widen(self._source.spec(), self._request)

    def run(self, callbacks: Any, number: int = 0) -> Logs:
        """Tests all batches; returns the global logs, the same on every worker. `number` tells one run from another.

        If the view changes in the middle, those who are left test all of them again.
        """
        engine = engine_for(self._run, self._model)
        self._model.stop_evaluating = False
        callbacks.on_test_begin()
        seeds = engine.test_seeds()
        mark = self.bookmark

        def act(group: AbstractGroup) -> Result:
            self.bookmark = mark
            return self._total(engine, self._test(engine, seeds, group, callbacks), group, number)

        told, *reduced = (result := self._run.worker_group.commit(act)).values
        seeds.advance()
        engine.write(engine.variables.seeds, seeds.states())
        logs = self._logs(engine, _decode_sources(told), Result(reduced, result.arrays))
        callbacks.on_test_end(logs)
        return logs

    def _test(self, engine: AbstractEngine, seeds: Seeds, group: AbstractGroup, callbacks: Any) -> _Sums:
        """This worker's batches."""
        rank, spec, tables = group.rank, self._source.spec(), tables_of(self._run, self._model)
        held = Balance.start().shares(self._pieces, group.members)
        owner = [next(r for r, share in enumerate(held) if slot in share) for slot in range(self._pieces)]
        sums = _Sums(self._pieces)
        self._source.begin(0, wanted=lambda step: owner[step % self._pieces] == rank)
        step = 0
        while self._source.steps is None or step < self._source.steps:
            slot = step % self._pieces
            mine = owner[slot] == rank
            if mine or self._source.together:
                self._run.record(Phase.EVALUATING, f"batch {step}")
                taken = self._source.take(step, partial(whole_batch_to, owner[slot], workers=group.size), group)
                if taken is None:
                    break
                if mine:
                    callbacks.on_test_batch_begin(step)
                    batch = engine.batch(spec, taken.rows)
                    tables.bring(engine, batch, step)
                    metrics, logs = engine.test(batch, seeds, step)
                    sums.add(slot, metrics, logs, taken.size, engine.test_logs.sources)
                    callbacks.on_test_batch_end(step, logs)
            step += 1
        self._source.end(step)
        return sums

    def close(self) -> None:
        self._source.close()
        if self._reduction is not None:
            self._reduction.close()

    def _total(self, engine: AbstractEngine, sums: _Sums, group: AbstractGroup, number: int) -> Result:
        """Within an act: what logs there are, and the reduction of everyone's sums."""
        # The logs of `test_step` that can be shown; a worker without a batch learns them here.
        mine = msgspec.msgpack.encode(sums.sources) if sums.sources else b""
        names = max(group.gather("evaluate: the names of logs", mine), key=len)
        told = tuple(_decode_sources(names))
        entries = [metric_entry(variable) for variable in engine.variables.metrics]
        if self._reduction is None:
            extras = [Entry(f"log {name}", Combine.SUM, "float64", ()) for name in (*told, "samples")]
            self._reduction = Reduction(
                self._run.worker_group, Schema([*entries, *extras]), Division(self._pieces), None
            )
        fresh = [np.zeros(entry.shape, entry.dtype) for entry in entries]
        reduced = self._reduction.reduce(
            group,
            f"evaluate {number}",
            self._pieces,
            lambda slot: ([*sums.metrics(slot, fresh), *sums.extras(slot, told)], 1.0),
            lambda: Note(number),
        )
        return Result([names, *reduced.values], reduced.arrays)

    def _logs(self, engine: AbstractEngine, sources: Sources, reduced: Result) -> Logs:
        assert self._reduction is not None
        totals = self._reduction.exchanged(reduced).totals
        count = len(engine.variables.metrics)
        metrics, extra = totals[:count], totals[count:]
        samples = float(extra[-1][0])
        if samples == 0:
            return self._nothing_tested()
        updated = {i for i, change in enumerate(metrics) if change.any()}
        engine.reset_metrics()
        engine.add_metrics(metrics)
        results = engine.metric_results(engine.test_logs.of_metrics(sources, updated))
        averaged = {name: float(total[0]) / samples for name, total in zip(sources, extra[:-1], strict=True)}
        return {name: to_float(results[name]) if name in results else averaged[name] for name in sources}

    def _nothing_tested(self) -> Logs:
        if self._request.what == "evaluate":
            raise UsageError("evaluate(): the data gave no batch; expected at least one")
        warnings.warn("validation: the data gave no batch, so there are no val_ logs for this epoch", stacklevel=2)
        return {}


def evaluate(
    run: Run,
    strategy: AbstractStrategy,
    model: Any,
    request: feeds.DataRequest,
    callbacks: Any,
    verbose: Any,
    call: int,
) -> Logs:
    """`model.evaluate` for all workers together."""
    evaluation = Evaluation(run, strategy, model, request)
    try:
        evaluation.build()
        open_tables(run, tables_of(run, model), call)
        evaluation.widen()
        engine = engine_for(run, model)
        share_chiefs_state(run.worker_group, engine, "evaluate", optimizer=False)
        listed = callback_list(model, callbacks, verbose, run, history=False, epochs=1, steps=evaluation.steps)
        return evaluation.run(listed)
    finally:
        evaluation.close()


class _Sums:
    """What the batches of each slot add up to, in their order."""

    def __init__(self, slots: int) -> None:
        self._metrics: list[list[Array] | None] = [None] * slots
        self._extras: list[dict[str, float]] = [{} for _ in range(slots)]
        self._samples = [0.0] * slots
        self.sources: Sources = {}

    def add(self, slot: int, metrics: Sequence[Array], logs: Logs, samples: int, sources: Sources) -> None:
        so_far = self._metrics[slot]
        self._metrics[slot] = (
            [np.array(value) for value in metrics]
            if so_far is None
            else [total + value for total, value in zip(so_far, metrics, strict=True)]
        )
        self._samples[slot] += samples
        values = {name: np.asarray(value) for name, value in logs.items()}
        shown = [name for name, value in values.items() if value.ndim == 0 or sources.get(name) is not None]
        self.sources = {name: sources.get(name) for name in shown}
        extras = self._extras[slot]
        for name in shown:
            extras[name] = extras.get(name, 0.0) + float(values[name].mean()) * samples

    def metrics(self, slot: int, fresh: list[Array]) -> list[Array]:
        return self._metrics[slot] or fresh

    def extras(self, slot: int, names: Sequence[str]) -> list[Array]:
        return [np.array(self._extras[slot].get(name, 0.0)) for name in names] + [np.array(self._samples[slot])]


def _decode_sources(told: bytes) -> Sources:
    return msgspec.msgpack.decode(told, type=Sources) if told else {}

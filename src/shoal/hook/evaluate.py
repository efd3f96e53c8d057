"""`evaluate` on many workers: every batch is tested by one of them, exactly as on one machine.

Batch i belongs to slot i modulo pieces; a slot's metrics add up in order, and the slots add up along the piece tree:
so the results are the same bits for any number of workers, and whatever they decide (when to stop, which
learning rate comes next) is decided alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np

from shoal.collectives.group import AbstractGroup, Result
from shoal.data.order import whole_batch_to
from shoal.data.sources import AbstractSource
from shoal.errors import UsageError
from shoal.hook import feeds
from shoal.hook.chief import callback_list
from shoal.hook.engine import AbstractEngine, Logs, extra_logs, metric_entries, to_float
from shoal.hook.engines import engine_for
from shoal.hook.model_state import share_chiefs_state
from shoal.hook.run import Run
from shoal.hook.seeds import Seeds
from shoal.hook.tables import tables_of
from shoal.strategies.allreduce import AllReduce, Reduction
from shoal.strategies.balance import Balance
from shoal.strategies.notes import Note
from shoal.strategies.schema import Array, Combine, Entry, Schema


class Evaluation:
    """The evaluation of one model on one source; may be run again and again."""

    def __init__(self, run: Run, strategy: AllReduce, model: Any, request: feeds.Request) -> None:
        self._run = run
        self._model = model
        self._pieces = strategy.pieces_for(run.pieces, run.workers)
        self._request = request
        self._source: AbstractSource = feeds.open_source(request, run.company)
        self._reduction: Reduction | None = None

    @classmethod
    def of_held_out(cls, run: Run, strategy: AllReduce, model: Any, held_out: Any, arguments: Any) -> Evaluation:
        """The validation of a fit."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(held_out)
        size = arguments.validation_batch_size
        if size is None and not _makes_its_own_batches(x):
            size = arguments.batch_size
        return cls(run, strategy, model, feeds.Request("validation", x, y, weight, size, arguments.validation_steps))

    @property
    def steps(self) -> int | None:
        return self._source.steps

    @property
    def place(self) -> int:
        """How much of a stream is used up."""
        return self._source.place_in_stream(0)

    @place.setter
    def place(self, place: int) -> None:
        self._source.go_to(place)

    def build(self) -> AbstractEngine:
        self._model._symbolic_build(data_batch=feeds.example(self._source.spec(), 1))
        self.widen()
        return engine_for(self._model)

    def widen(self) -> None:
        """Make room for the rows of tables that a batch needs. Before the model gets its engine."""
        tables_of(self._model).widen(self._source.spec(), self._request)

    def run(self, callbacks: Any, number: int = 0) -> Logs:
        """Tests all batches; returns the global logs, the same on every worker. `number` tells one run from another.

        If the view changes in the middle, those who are left test all of them again.
        """
        engine = engine_for(self._model)
        self._model.stop_evaluating = False
        callbacks.on_test_begin()
        seeds = engine.test_seeds()
        place = self.place

        def act(group: AbstractGroup) -> Result:
            self.place = place
            return self._total(engine, self._test(engine, seeds, group, callbacks), group, number)

        names, *reduced = (result := self._run.company.commit(act)).values
        seeds.advance()
        engine.write(engine.variables.seeds, seeds.states())
        logs = self._logs(engine, names.decode().split("\n") if names else [], Result(reduced, result.arrays))
        callbacks.on_test_end(logs)
        return logs

    def _test(self, engine: AbstractEngine, seeds: Seeds, group: AbstractGroup, callbacks: Any) -> _Sums:
        """This worker's batches."""
        rank, spec, tables = group.rank, self._source.spec(), tables_of(self._model)
        held = Balance.start().shares(self._pieces, group.members)
        owner = [next(r for r, share in enumerate(held) if slot in share) for slot in range(self._pieces)]
        sums = _Sums(self._pieces, engine.names_of_metrics())
        self._source.begin(0, wanted=lambda step: owner[step % self._pieces] == rank)
        step = 0
        while self._source.steps is None or step < self._source.steps:
            slot = step % self._pieces
            mine = owner[slot] == rank
            if mine or self._source.together:
                self._run.say(f"evaluating batch {step}")
                taken = self._source.take(step, partial(whole_batch_to, owner[slot], workers=group.size), group)
                if taken is None:
                    break
                if mine:
                    callbacks.on_test_batch_begin(step)
                    batch = feeds.as_batch(spec, taken.rows)
                    tables.bring(engine, batch, step)
                    metrics, logs = engine.test(batch, seeds, step)
                    sums.add(slot, metrics, logs, taken.size)
                    callbacks.on_test_batch_end(step, logs)
            step += 1
        self._source.end()
        return sums

    def close(self) -> None:
        self._source.close()
        if self._reduction is not None:
            self._reduction.close()

    def _total(self, engine: AbstractEngine, sums: _Sums, group: AbstractGroup, number: int) -> Result:
        """Within an act: the names of the logs, and the reduction of everyone's sums."""
        # The logs of `test_step` that can be shown; a worker without a batch learns them here.
        names = max(group.gather("evaluate: the names of logs", "\n".join(sums.names).encode()), key=len)
        told = names.decode().split("\n") if names else []
        entries = metric_entries(engine.variables)
        if self._reduction is None:
            extras = [Entry(f"log {name}", Combine.SUM, "float64", ()) for name in (*told, "samples")]
            self._reduction = Reduction(self._run.company, Schema([*entries, *extras]), self._pieces, None)
        fresh = [np.zeros(entry.shape, entry.dtype) for entry in entries]
        reduced = self._reduction.reduce(
            group,
            f"evaluate {number}",
            self._pieces,
            lambda slot: ([*sums.metrics(slot, fresh), *sums.extras(slot, told)], 1.0),
            lambda: Note(number),
        )
        return Result([names, *reduced.values], reduced.arrays)

    def _logs(self, engine: AbstractEngine, names: list[str], reduced: Result) -> Logs:
        assert self._reduction is not None
        totals = self._reduction.exchanged(reduced).totals
        count = len(engine.variables.metrics)
        metrics, extra = totals[:count], totals[count:]
        samples = float(extra[-1][0])
        if samples == 0:
            return self._nothing_tested()
        updated = {i for i, change in enumerate(metrics) if change.any()}
        own = extra_logs(dict(zip(names, extra[:-1], strict=True)), engine.names_of_metrics(), updated)
        engine.reset_metrics()
        results = engine.add_metrics(metrics)
        averaged = {name: float(total[0]) / samples for name, total in own.items()}
        return {name: averaged[name] if name in averaged else to_float(results[name]) for name in names}

    def _nothing_tested(self) -> Logs:
        if self._request.what == "evaluate":
            raise UsageError("evaluate(): the data gave no batch; expected at least one")
        warnings.warn("validation: the data gave no batch, so there are no val_ logs for this epoch", stacklevel=2)
        return {}


def evaluate(run: Run, strategy: AllReduce, model: Any, request: feeds.Request, callbacks: Any, verbose: Any) -> Logs:
    """`model.evaluate` for all workers together."""
    evaluation = Evaluation(run, strategy, model, request)
    try:
        engine = evaluation.build()
        share_chiefs_state(run.company, engine, "evaluate", optimizer=False)
        listed = callback_list(model, callbacks, verbose, run, history=False, epochs=1, steps=evaluation.steps)
        return evaluation.run(listed)
    finally:
        evaluation.close()


class _Sums:
    """What the batches of each slot add up to, in their order."""

    def __init__(self, slots: int, of_metrics: Iterable[str]) -> None:
        self._of_metrics = set(of_metrics)
        self._metrics: list[list[Array] | None] = [None] * slots
        self._extras: list[dict[str, float]] = [{} for _ in range(slots)]
        self._samples = [0.0] * slots
        self.names: list[str] = []

    def add(self, slot: int, metrics: Sequence[Array], logs: Logs, samples: int) -> None:
        so_far = self._metrics[slot]
        self._metrics[slot] = (
            [np.array(value) for value in metrics]
            if so_far is None
            else [total + value for total, value in zip(so_far, metrics, strict=True)]
        )
        self._samples[slot] += samples
        values = {name: np.asarray(value) for name, value in logs.items()}
        self.names = [name for name, value in values.items() if value.ndim == 0 or name in self._of_metrics]
        extras = self._extras[slot]
        for name in self.names:
            extras[name] = extras.get(name, 0.0) + float(values[name].mean()) * samples

    def metrics(self, slot: int, fresh: list[Array]) -> list[Array]:
        return self._metrics[slot] or fresh

    def extras(self, slot: int, names: Sequence[str]) -> list[Array]:
        return [np.array(self._extras[slot].get(name, 0.0)) for name in names] + [np.array(self._samples[slot])]


def _makes_its_own_batches(x: Any) -> bool:
    return isinstance(x, keras.utils.PyDataset) or hasattr(x, "element_spec") or hasattr(x, "__next__")

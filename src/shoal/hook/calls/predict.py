"""`predict` on many workers: each takes every n-th batch; everyone gets all rows, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from shoal.cluster.messages import NOT_KEPT, RESULT_LIMIT
from shoal.collectives.arrays import ArraySpec
from shoal.collectives.group import AbstractGroup, Result
from shoal.data.columns import LeafSpec, Rows, concatenate, pack, spec_of, unpack
from shoal.data.order import whole_batch_to
from shoal.data.sources import AbstractSource
from shoal.data.structure import flatten, rebuild
from shoal.errors import UsageError
from shoal.hook.backends import leaves
from shoal.hook.backends.registry import engine_for
from shoal.hook.calls import feeds
from shoal.hook.calls.building import build_by_call
from shoal.hook.calls.chief import callback_list
from shoal.hook.tables.worker_tables import tables_of
from shoal.observe.phases import Phase
from shoal.training.fit_store import open_tables
from shoal.training.model_state import share_chiefs_state
from shoal.training.run import Run
from shoal.training.seeds import Seeds


def predict(run: Run, model: Any, request: feeds.DataRequest, callbacks: Any, verbose: Any, call: int) -> Any:
    """`model.predict` for all workers together. If the view changes in the middle, those who are left begin anew."""
    worker_group = run.worker_group
    source = feeds.open_source(request, run)
    try:
        build_by_call(model, feeds.example(source.spec(), 1))
        open_tables(run, tables_of(run, model), call)
        tables_of(run, model).widen(source.spec(), request)
        engine = engine_for(run, model)
        share_chiefs_state(worker_group, engine, "predict", optimizer=False)
        listed = callback_list(model, callbacks, verbose, run, history=False, epochs=1, steps=source.steps)
        model.stop_predicting = False
        listed.on_predict_begin()
        seeds = engine.test_seeds()
        mark = source.bookmark(0)

        def act(group: AbstractGroup) -> Result:
            source.go_to(mark)
            predicted = _Predicted(*_predict(run, model, source, seeds, group, listed))
            run.record(Phase.GATHERING)
            return _gather(group, predicted)

        result = worker_group.commit(act)
        seeds.advance()
        engine.write(engine.variables.seeds, seeds.states())
        listed.on_predict_end()
        return _returned(result)
    finally:
        source.close()


class _Predicted(NamedTuple):
    """A worker's batches in their order, how their leaves nest, and how many batches there are in all."""

    outputs: list[Rows]
    skeleton: Any
    batches: int

    @property
    def word(self) -> _Outputs:
        leaves = [{spec_of(column) for column in columns} for columns in zip(*self.outputs, strict=True)]
        return _Outputs(self.skeleton, [len(batch[0]) for batch in self.outputs], [list(found) for found in leaves])


class _Outputs(msgspec.Struct, frozen=True):
    """What a worker has predicted."""

    skeleton: Any
    sizes: list[int]  # rows of its batches
    leaves: list[list[LeafSpec]]  # what each leaf looks like, in one batch or another


def _predict(
    run: Run, model: Any, source: AbstractSource, seeds: Seeds, group: AbstractGroup, listed: Any
) -> tuple[list[Rows], Any, int]:
    engine, spec, tables = engine_for(run, model), source.spec(), tables_of(run, model)
    source.begin(0, wanted=lambda step: step % group.size == group.rank)
    outputs: list[Rows] = []
    skeleton: Any = None
    step = 0
    while source.steps is None or step < source.steps:
        owner = step % group.size
        if owner == group.rank or source.together:
            run.record(Phase.PREDICTING, f"batch {step}")
            taken = source.take(step, partial(whole_batch_to, owner, workers=group.size), group)
            if taken is None:
                break
            if owner == group.rank:
                listed.on_predict_batch_begin(step)
                batch = engine.batch(spec, taken.rows)
                tables.bring(engine, batch, step)
                x = feeds.inputs_of(batch)
                engine.write(engine.variables.seeds, list(seeds.of_piece(step)))
                predicted = model.predict_on_batch(x)
                given, skeleton = flatten(predicted)
                outputs.append([leaves.of_output(leaf) for leaf in given])
                listed.on_predict_batch_end(step, {"outputs": predicted})
        step += 1
    source.end(step)
    return outputs, skeleton, step


def _gather(group: AbstractGroup, mine: _Predicted) -> Result:
    """Within an act: all workers' batches in their order, leaf by leaf."""
    told = group.gather("predict: sizes", msgspec.json.encode(mine.word))
    words = [msgspec.json.decode(word, type=_Outputs) for word in told]
    if mine.batches == 0:
        raise UsageError("predict(): the data gave no batch")
    joins = [leaves.ColumnJoin.of(found) for found in _by_leaf(words)]
    own = [join.all(columns) for join, columns in zip(joins, zip(*mine.outputs, strict=True), strict=False)]
    gathered = group.gather_rows("predict: rows", pack(own))
    specs = [join.spec for join in joins]
    columns = [unpack(specs, arrays) if arrays else [] for arrays in gathered]
    starts = [np.cumsum([0, *word.sizes]) for word in words]
    joined: Rows = []
    for leaf in range(len(joins)):
        parts = []
        for step in range(mine.batches):
            turn, rank = divmod(step, group.size)
            parts.append(columns[rank][leaf][starts[rank][turn] : starts[rank][turn + 1]])
        joined.append(concatenate(parts))
    return Result([msgspec.json.encode((words[0].skeleton, specs))], pack(joined))


def _by_leaf(words: Sequence[_Outputs]) -> Iterator[list[LeafSpec]]:
    """What each leaf looks like, in anybody's batches."""
    for found in zip(*(word.leaves for word in words if word.leaves), strict=True):
        yield [spec for specs in found for spec in specs]


def _returned(result: Result) -> Any:
    skeleton, specs = msgspec.json.decode(result.values[0], type=tuple[Any, list[LeafSpec]])
    return rebuild(skeleton, [leaves.to_result(column) for column in unpack(specs, result.arrays)])


# What is kept of it ---------------------------------------------------------------------------------------


def encode_predictions(predictions: Any) -> bytes:
    given, skeleton = flatten(predictions)
    columns = [leaves.of_output(leaf) for leaf in given]
    arrays = pack(columns)
    if sum(array.nbytes for array in arrays) > RESULT_LIMIT:
        return NOT_KEPT
    written = [(ArraySpec.of(array), array.tobytes()) for array in arrays]
    return msgspec.msgpack.encode((skeleton, [spec_of(column) for column in columns], written))


def decode_predictions(kept: bytes) -> Any:
    skeleton, specs, written = msgspec.msgpack.decode(
        kept, type=tuple[Any, list[LeafSpec], list[tuple[ArraySpec, bytes]]]
    )
    arrays = [np.frombuffer(raw, np.dtype(spec.dtype)).reshape(spec.shape).copy() for spec, raw in written]
    return rebuild(skeleton, [leaves.to_result(column) for column in unpack(specs, arrays)])

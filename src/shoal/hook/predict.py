"""`predict` on many workers: each takes every n-th batch; everyone gets all rows, in order."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from shoal.collectives.group import AbstractGroup, Result
from shoal.data.order import whole_batch_to
from shoal.data.sources import AbstractSource
from shoal.data.structure import flatten, rebuild
from shoal.errors import UsageError
from shoal.hook import feeds
from shoal.hook.chief import callback_list
from shoal.hook.engines import engine_for
from shoal.hook.model_state import share_chiefs_state
from shoal.hook.run import Run
from shoal.hook.seeds import Seeds
from shoal.hook.tables import tables_of
from shoal.strategies.schema import Array


def predict(run: Run, model: Any, request: feeds.Request, callbacks: Any, verbose: Any) -> Any:
    """`model.predict` for all workers together. If the view changes in the middle, those who are left begin anew."""
    company = run.company
    source = feeds.open_source(request, company)
    try:
        _build(model, feeds.example(source.spec(), 1))
        tables_of(model).widen(source.spec(), request)
        engine = engine_for(model)
        share_chiefs_state(company, engine, "predict", optimizer=False)
        listed = callback_list(model, callbacks, verbose, run, history=False, epochs=1, steps=source.steps)
        model.stop_predicting = False
        listed.on_predict_begin()
        seeds = engine.test_seeds()
        place = source.place_in_stream(0)

        def act(group: AbstractGroup) -> Result:
            source.go_to(place)
            predicted = _Predicted(*_predict(run, model, source, seeds, group, listed))
            run.say("gathering predictions")
            return _gather(group, predicted)

        result = company.commit(act)
        seeds.advance()
        engine.write(engine.variables.seeds, seeds.states())
        listed.on_predict_end()
        return rebuild(msgspec.json.decode(result.values[0]), result.arrays)
    finally:
        source.close()


class _Predicted(NamedTuple):
    """A worker's batches in their order, how their leaves nest, and how many batches there are in all."""

    outputs: list[list[Array]]
    skeleton: Any
    batches: int


def _predict(
    run: Run, model: Any, source: AbstractSource, seeds: Seeds, group: AbstractGroup, listed: Any
) -> tuple[list[list[Array]], Any, int]:
    engine, spec, tables = engine_for(model), source.spec(), tables_of(model)
    source.begin(0, wanted=lambda step: step % group.size == group.rank)
    outputs: list[list[Array]] = []
    skeleton: Any = None
    step = 0
    while source.steps is None or step < source.steps:
        owner = step % group.size
        if owner == group.rank or source.together:
            run.say(f"predicting batch {step}")
            taken = source.take(step, partial(whole_batch_to, owner, workers=group.size), group)
            if taken is None:
                break
            if owner == group.rank:
                listed.on_predict_batch_begin(step)
                batch = feeds.as_batch(spec, taken.rows)
                tables.bring(engine, batch, step)
                x = feeds.inputs_of(batch)
                engine.write(engine.variables.seeds, list(seeds.of_piece(step)))
                leaves, skeleton = flatten(model.predict_on_batch(x))
                outputs.append([np.asarray(leaf) for leaf in leaves])
                listed.on_predict_batch_end(step, {"outputs": rebuild(skeleton, outputs[-1])})
        step += 1
    source.end()
    return outputs, skeleton, step


def _gather(group: AbstractGroup, mine: _Predicted) -> Result:
    """Within an act: all workers' batches in their order, leaf by leaf."""
    sizes = [len(batch[0]) for batch in mine.outputs]
    word = msgspec.json.encode({"sizes": sizes, "skeleton": mine.skeleton})
    told = [msgspec.json.decode(t) for t in group.gather("predict: sizes", word)]
    if mine.batches == 0:
        raise UsageError("predict(): the data gave no batch")
    gathered = group.gather_rows("predict: rows", [np.concatenate(p) for p in zip(*mine.outputs, strict=True)])
    starts = [np.cumsum([0, *t["sizes"]]) for t in told]
    leaves = []
    for leaf in range(len(gathered[0])):
        parts = []
        for step in range(mine.batches):
            turn, rank = divmod(step, group.size)
            parts.append(gathered[rank][leaf][starts[rank][turn] : starts[rank][turn + 1]])
        leaves.append(np.concatenate(parts))
    return Result([msgspec.json.encode(told[0]["skeleton"])], leaves)


def _build(model: Any, batch: Any) -> None:
    """Builds a model that has never been called. Compiled or not: `predict` needs no optimizer."""
    if not model.built:
        model(feeds.inputs_of(batch))

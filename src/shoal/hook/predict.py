"""`predict` on many workers: each takes every n-th batch; everyone gets all rows, in order."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np

from shoal.data.order import whole_batch_to
from shoal.data.structure import flatten, rebuild
from shoal.errors import UsageError
from shoal.hook import feeds
from shoal.hook.chief import callback_list
from shoal.hook.engines import engine_for
from shoal.hook.model_state import share_chiefs_state
from shoal.hook.run import Run
from shoal.strategies.schema import Array


def predict(run: Run, model: Any, request: feeds.Request, callbacks: Any, verbose: Any) -> Any:
    """`model.predict` for all workers together."""
    group = run.group()
    source = feeds.open_source(request, group)
    try:
        spec = source.spec()
        _build(model, feeds.example(spec, 1))
        share_chiefs_state(group, engine_for(model), "predict", optimizer=False)
        listed = callback_list(model, callbacks, verbose, run.is_chief, history=False, epochs=1, steps=source.steps)
        model.stop_predicting = False
        listed.on_predict_begin()
        engine = engine_for(model)
        seeds = engine.test_seeds()
        source.begin(0, wanted=lambda step: step % group.size == group.rank)
        outputs: list[list[Array]] = []
        skeleton: Any = None
        step = 0
        while source.steps is None or step < source.steps:
            owner = step % group.size
            if owner == group.rank or source.together:
                run.say(f"predicting batch {step}")
                taken = source.take(step, partial(whole_batch_to, owner, workers=group.size), group.rank)
                if taken is None:
                    break
                if owner == group.rank:
                    listed.on_predict_batch_begin(step)
                    x = feeds.inputs_of(feeds.as_batch(spec, taken.rows))
                    engine.write(engine.variables.seeds, list(seeds.of_piece(step)))
                    leaves, skeleton = flatten(model.predict_on_batch(x))
                    outputs.append([np.asarray(leaf) for leaf in leaves])
                    listed.on_predict_batch_end(step, {"outputs": rebuild(skeleton, outputs[-1])})
            step += 1
        source.end()
        seeds.advance()
        engine.write(engine.variables.seeds, seeds.states())
        result = _gather(run, outputs, skeleton, step)
        listed.on_predict_end()
        return result
    finally:
        source.close()


def _gather(run: Run, outputs: list[list[Array]], skeleton: Any, batches: int) -> Any:
    """All workers' batches in their order, leaf by leaf."""
    group = run.group()
    run.say("gathering predictions")
    sizes = [len(batch[0]) for batch in outputs]
    told = [
        msgspec.json.decode(t)
        for t in group.gather("predict: sizes", msgspec.json.encode({"sizes": sizes, "skeleton": skeleton}))
    ]
    if batches == 0:
        raise UsageError("predict(): the data gave no batch")
    skeleton = told[0]["skeleton"]
    mine = [np.concatenate(parts) for parts in zip(*outputs, strict=True)]
    gathered = group.gather_rows("predict: rows", mine)
    starts = [np.cumsum([0, *t["sizes"]]) for t in told]
    leaves = []
    for leaf in range(len(gathered[0])):
        parts = []
        for step in range(batches):
            turn, rank = divmod(step, group.size)
            parts.append(gathered[rank][leaf][starts[rank][turn] : starts[rank][turn + 1]])
        leaves.append(np.concatenate(parts))
    return rebuild(skeleton, leaves)


def _build(model: Any, batch: Any) -> None:
    """Builds a model that has never been called. Compiled or not: `predict` needs no optimizer."""
    if not model.built:
        model(feeds.inputs_of(batch))

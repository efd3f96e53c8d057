"""`train_on_batch`, `test_on_batch` and `predict_on_batch` on many workers: a batch is divided like a step of `fit`."""

from __future__ import annotations

import weakref
from typing import Any

import keras
import msgspec

from shoal.collectives.group import AbstractGroup, Result
from shoal.data.columns import LeafSpec, Rows, concatenate, pack, spec_of, unpack
from shoal.data.order import piece_bounds
from shoal.data.sources import Spec
from shoal.data.structure import Skeleton, flatten, rebuild
from shoal.errors import CannotDistribute, UsageError
from shoal.hook.backends import leaves
from shoal.hook.backends.base import AbstractEngine
from shoal.hook.backends.registry import engine_for
from shoal.hook.calls import feeds
from shoal.hook.calls.building import build
from shoal.hook.calls.evaluate import Evaluation
from shoal.hook.calls.fit import agree_on_seed
from shoal.observe.phases import Phase
from shoal.strategies.abstract import AbstractStrategy
from shoal.training.logs import Logs
from shoal.training.model_state import share_chiefs_state
from shoal.training.run import Run
from shoal.training.single_steps import GivenBatch, SingleSteps


class StepsOnBatches:
    """The steps of each model, kept from call to call: as long as the script has the model, and its engine, with the
    step that it has traced, stays the same.
    """

    def __init__(self) -> None:
        self._by_model: weakref.WeakKeyDictionary[Any, SingleSteps] = weakref.WeakKeyDictionary()

    def of(self, model: Any, engine: AbstractEngine) -> SingleSteps | None:
        """None if there are none, or none that hold any more: those are closed."""
        kept = self._by_model.get(model)
        if kept is None or (kept.engine is engine and kept.shape is engine.shape):
            return kept
        kept.close()
        return None

    def keep(self, model: Any, steps: SingleSteps) -> None:
        self._by_model[model] = steps


def train_on_batch(run: Run, strategy: AbstractStrategy, model: Any, request: feeds.DataRequest) -> Logs:
    """One step; the logs of this batch, the same on every worker."""
    if not model.compiled:
        raise ValueError("You must call `compile()` before calling `train_on_batch()`.")
    if run.servers is not None:
        raise CannotDistribute("train_on_batch() can't train on parameter servers: use fit, or --strategy allreduce.")
    rows, skeleton = _rows(request)
    spec = Spec.of(rows, skeleton)
    steps = _steps_of(run, strategy, model, spec)
    steps.engine.reset_metrics()
    logs = steps.take(GivenBatch(rows, spec))
    assert logs is not None, "there is a batch"
    return logs


def test_on_batch(run: Run, strategy: AbstractStrategy, model: Any, request: feeds.DataRequest) -> Logs:
    """The metrics of one batch: its parts are tested by all workers."""
    if not model.compiled:
        raise ValueError("You must call `compile()` before calling `test_on_batch()`.")
    rows, _ = _rows(request)
    shares = 1 if _adds_up(model.loss) else len(run.worker_group.members)
    each = -(-len(rows[0]) // max(1, shares))
    evaluation = Evaluation(run, strategy, model, _in_parts(request, each))
    try:
        evaluation.build()
        return evaluation.run(_NoCallbacks())
    finally:
        evaluation.close()


def predict_on_batch(run: Run, model: Any, x: Any, original: Any) -> Any:
    """The rows of one batch, computed by all workers; everyone gets all of them."""
    given, skeleton = flatten(x)
    rows = [leaves.settle(leaves.to_column(leaf)) for leaf in given]

    def predicted(low: int, high: int) -> tuple[Rows, Skeleton]:
        outputs, shape = flatten(original(model, rebuild(skeleton, [leaves.to_leaf(row[low:high]) for row in rows])))
        return [leaves.of_output(output) for output in outputs], shape

    def act(group: AbstractGroup) -> Result:
        bounds = piece_bounds(len(rows[0]), min(group.size, len(rows[0])))
        is_idle = group.rank >= len(bounds) - 1
        low, high = (0, 1) if is_idle else (bounds[group.rank], bounds[group.rank + 1])
        mine, shape = predicted(low, high)
        specs = [spec_of(column) for column in mine]
        told = group.gather_rows("predict_on_batch: rows", pack([column[:0] if is_idle else column for column in mine]))
        joined = [concatenate(parts) for parts in zip(*(unpack(specs, arrays) for arrays in told), strict=True)]
        return Result([msgspec.json.encode((shape, specs))], pack(joined))

    result = run.worker_group.commit(act)
    shape, specs = msgspec.json.decode(result.values[0], type=tuple[Any, list[LeafSpec]])
    return rebuild(shape, [leaves.to_result(column) for column in unpack(specs, result.arrays)])


def _steps_of(run: Run, strategy: AbstractStrategy, model: Any, spec: Spec) -> SingleSteps:
    example = feeds.example(spec, spec.samples)
    build(model, example)
    engine = engine_for(run, model)
    kept = run.memory.of(StepsOnBatches)
    if (known := kept.of(model, engine)) is not None:
        return known
    run.record(Phase.TRACING)
    seed = agree_on_seed(run)
    engine.begin(seed)
    engine.refuse_unless_distributable()
    strategy.refuse_single_steps()
    pieces = strategy.pieces_for(run.pieces, run.workers)
    shape = engine.trace(feeds.example(spec, max(1, spec.samples // pieces)))
    engine.put_seeds_back()
    share_chiefs_state(run.worker_group, engine, "train_on_batch")
    engine.begin(seed)
    steps = SingleSteps(run, engine, shape, pieces, "train_on_batch", strategy.codec_for(run.compress))
    kept.keep(model, steps)
    return steps


def _rows(request: feeds.DataRequest) -> tuple[Rows, Skeleton]:
    batch = keras.utils.pack_x_y_sample_weight(request.x, request.y, request.sample_weight)
    rows, skeleton = feeds.rows_of(request, batch if isinstance(batch, tuple) else (batch,))
    if not rows or len(rows[0]) == 0:
        raise UsageError(f"{request.what}(): the batch has no samples")
    return rows, skeleton


def _adds_up(loss: Any) -> bool:
    """Whether some loss is a sum over the batch, which its parts would make smaller."""
    return any(getattr(one, "reduction", None) == "sum" for one in keras.tree.flatten(loss))


def _in_parts(request: feeds.DataRequest, size: int) -> feeds.DataRequest:
    return feeds.DataRequest("evaluate", request.x, request.y, request.sample_weight, size)


class _NoCallbacks:
    """Nobody listens."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None

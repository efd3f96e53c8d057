"""How a fit is going to train: measured before it, planned alike by all workers, and the same for who comes later."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import keras
import msgspec
import psutil

from shoal.errors import CannotDistribute
from shoal.hook.backends import registry
from shoal.hook.backends.registry import engine_for
from shoal.hook.calls.callbacks import given_callbacks, looks_after_batches
from shoal.hook.calls.fit import fit, prepared_for
from shoal.hook.planning.measuring import cut_facts, whole_facts
from shoal.hook.planning.timing import measured_link
from shoal.hook.scopes import Plans
from shoal.hook.served.sliced_choice import ENCODED
from shoal.hook.stages.graph import refuse_unless_stageable
from shoal.observe.phases import Phase
from shoal.observe.story import StoryKind
from shoal.planning.candidates import Kind, PlanCandidate
from shoal.planning.facts import CutFacts, PlanFacts, StageFacts, at_rows
from shoal.planning.ranking import Ranking, rank, why_first
from shoal.planning.replanning import Replanning
from shoal.planning.replay import predict
from shoal.strategies.abstract import AbstractStrategy
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.pipeline import Pipeline
from shoal.training.calls import PLAN
from shoal.training.prepared import FitArguments, Prepared
from shoal.training.run import Run

_ALL_STAGES = 4  # up to so many, every number of stages is measured; beyond, the powers of two and all workers
_WHOLE_SIZES = 3  # sizes of pieces that are timed, each half of the one before
_SMALLER = 4  # of a stage only two, one so many times as large as the other
_STEPS = 12  # in which it is seen what a step takes besides its programs
_OURS = 0.9  # of the memory that is free
_ALIKE = 1.25  # workers whose speeds differ by less than this factor are taken as equal


class Planned(msgspec.Struct, frozen=True):
    """What was decided, for all and for who comes later."""

    candidate: PlanCandidate
    seconds: float  # that a step is expected to take
    facts: PlanFacts | None = None  # from which it was made, so that steps can be compared with it


def planned(run: Run, model: Any, arguments: FitArguments) -> AbstractStrategy:
    """The strategy of the fit that comes next. Collective; one who comes late is told."""
    found: Planned = run.calls.count(
        PLAN,
        lambda call: _plan(run, model, arguments),
        msgspec.msgpack.encode,
        lambda kept: msgspec.msgpack.decode(kept, type=Planned),
    )
    strategy = strategy_for(found.candidate)
    replanning = None
    if found.facts is not None and found.candidate.kind is not Kind.MESH:
        replanning = Replanning(found.facts, found.candidate, found.seconds, run.pieces)
    run.memory.of(Plans).keep(model, strategy, replanning)
    if found.seconds:
        run.expect(found.candidate.name, found.seconds)
    return strategy


def strategy_for(candidate: PlanCandidate) -> AbstractStrategy:
    if candidate.kind is Kind.PIPELINE:
        return Pipeline(candidate.stages, candidate.pieces, speeds=candidate.speeds)
    return AllReduce(candidate.pieces, sliced=candidate.kind is Kind.SLICED)


def _plan(run: Run, model: Any, arguments: FitArguments) -> Planned:
    if not model.compiled:
        raise ValueError("You must call `compile()` before calling `fit()`.")
    if not run.only_plans and hasattr(arguments.x, "__next__"):
        return _unmeasured(run)
    facts = _measured(run, model, arguments)
    if run.only_plans:
        run.hand_over(msgspec.json.encode(facts))
    told = run.worker_group.gather("plan: what was measured", msgspec.msgpack.encode(facts))
    facts = _agreed([msgspec.msgpack.decode(value, type=PlanFacts) for value in told.values])
    ranking = rank(facts, facts.limit, run.pieces)
    _tell(run, ranking)
    return Planned(ranking.first.candidate, ranking.first.seconds, facts)


def _agreed(everybody: Sequence[PlanFacts]) -> PlanFacts:
    """What the chief has measured counts for all. How fast each is, and how much memory it has, it says itself."""
    limits = [facts.limit for facts in everybody if facts.limit is not None]
    return msgspec.structs.replace(everybody[0], limit=min(limits, default=None))


def _speeds(run: Run, whole: StageFacts) -> tuple[float, ...]:
    """Of all workers; 1.0 is the chief's. As the user has said, where there are only plans. Collective."""
    if run.only_plans:
        return run.speeds or (1.0,) * run.workers
    told = run.worker_group.gather("plan: how fast each is", msgspec.msgpack.encode(whole.times[-1].forward))
    seconds = [msgspec.msgpack.decode(value, type=float) for value in told.values]
    speeds = tuple(round(seconds[0] / own, 2) for own in seconds)
    return speeds if max(speeds) >= _ALIKE * min(speeds) else (1.0,) * len(speeds)


def _unmeasured(run: Run) -> Planned:
    pieces = run.pieces or run.workers
    text = f"plan: data parallel, {pieces} pieces: the data can be read only once, so nothing is measured with it"
    run.tell(text)
    run.happened(StoryKind.PLAN, text)
    return Planned(PlanCandidate(Kind.DATA, pieces), 0.0)


def _tell(run: Run, ranking: Ranking) -> None:
    text = f"plan: {why_first(ranking)} The same again: {ranking.first.candidate.flags}"
    run.tell(text)
    run.happened(StoryKind.PLAN, text)
    for name, why in ranking.left_out.items():
        run.happened(StoryKind.PLAN, f"left out: {name}: {why}")


def _measured(run: Run, model: Any, arguments: FitArguments) -> PlanFacts:
    """What this worker finds, and the memory that it may use. Only the chief looks at everything."""
    bare = msgspec.structs.replace(
        arguments, callbacks=None, verbose=0, validation_data=None, validation_split=0.0, epochs=1, initial_epoch=0
    )
    workers = run.workers
    here = psutil.Process().memory_info().rss - sum(
        registry.current().bytes_of(variable) for variable in model.variables
    )
    limit = run.memory_limit or here + int(_OURS * psutil.virtual_memory().available / workers)
    with prepared_for(run, AllReduce(), model, bare, workers) as prepared:
        engine = engine_for(run, model)
        batch = prepared.size
        run.record(Phase.MEASURING)
        sizes = _halves(max(1, batch // workers), _WHOLE_SIZES if run.is_chief else 1)
        whole = whole_facts(model, prepared, engine, sizes)
        if any(looks_after_batches(each) for each in given_callbacks(arguments.callbacks)):
            why = "a callback may look at the weights after every batch, and all would be copied for it"
            whole = msgspec.structs.replace(whole, why_not_sliced=whole.why_not_sliced or why)
        if not prepared.codec.is_identity:
            whole = msgspec.structs.replace(whole, why_not_sliced=whole.why_not_sliced or ENCODED)
        facts = PlanFacts(batch, _speeds(run, whole), measured_link(), here, limit, whole=whole)
        if not run.is_chief:
            return facts
        cuts, left_out = _cuts(run, model, prepared, arguments, facts)
        if whole.why_not_sliced:
            left_out[str(Kind.SLICED)] = whole.why_not_sliced
        whole = _with_activations(whole, cuts)
        facts = msgspec.structs.replace(facts, whole=whole, cuts=tuple(cuts), left_out=left_out)
    return msgspec.structs.replace(facts, overhead=_overhead(run, model, bare, facts)) if run.only_plans else facts


def _overhead(run: Run, model: Any, bare: FitArguments, facts: PlanFacts) -> float:
    """Seconds of a step that no program takes: reading rows, notes, callbacks. From a few real steps, in this process
    alone: it ends after them, and nobody gets to see what they have changed.
    """
    used: list[float] = []
    clock = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: used.append(time.process_time()))
    arguments = msgspec.structs.replace(bare, callbacks=[clock], steps_per_epoch=_STEPS)
    strategy = AllReduce(max(run.workers, run.pieces or 0))
    try:
        fit(run, strategy, model, arguments, run.calls.number)
    except Exception:  # such as data that is too short, of which a fit would only warn
        return 0.0
    taken = sorted(after - before for before, after in pairwise(used[1:]))
    alone = msgspec.structs.replace(facts, speeds=(1.0,), overhead=0.0)
    expected = predict(alone, PlanCandidate(Kind.DATA, strategy.pieces_for(None, run.workers))).seconds
    return max(0.0, taken[len(taken) // 4] - expected) if taken else 0.0


def _cuts(
    run: Run, model: Any, prepared: Prepared, arguments: FitArguments, facts: PlanFacts
) -> tuple[list[CutFacts], dict[str, str]]:
    """The ways to cut the model that there are, and why others are not."""
    pipeline = str(Kind.PIPELINE)
    if run.workers < 2:
        return [], {}
    if run.mesh is not None:
        return [], {pipeline: f"each worker has a mesh of devices ({run.mesh}), and a stage is on one device"}
    try:
        refuse_unless_stageable(model, given_callbacks(arguments.callbacks))
    except CannotDistribute as error:
        return [], {pipeline: str(error)}
    found: list[CutFacts] = []
    most = max(1, facts.batch // run.workers)
    speeds = facts.speeds if len(set(facts.speeds)) > 1 else ()
    sizes = sorted({max(1, most // _SMALLER), most})
    for stages in _stage_counts(run.workers):
        run.record(Phase.MEASURING, f"{stages} stages")
        cut = cut_facts(model, prepared, engine_for(run, model), stages, sizes)
        if isinstance(cut, str):  # nor can it be cut into more
            return found, {f"{pipeline} of {stages} stages or more": cut}
        found.append(cut)
        unequal = cut_facts(model, prepared, engine_for(run, model), stages, sizes, speeds) if speeds else cut
        if isinstance(unequal, CutFacts) and unequal.costs != cut.costs:
            found.append(unequal)
    return found, {}


def _stage_counts(workers: int) -> list[int]:
    if workers <= _ALL_STAGES:
        return list(range(2, workers + 1))
    powers = [1 << power for power in range(1, workers.bit_length())]
    return sorted({*powers, workers})


def _halves(most: int, count: int) -> list[int]:
    return sorted({max(1, most >> power) for power in range(count)})


def _with_activations(whole: StageFacts, cuts: Sequence[CutFacts]) -> StageFacts:
    """Where the backend can't tell what a piece of the whole keeps: what its stages keep together."""
    if whole.times[0].kept or not cuts:
        return whole
    times = tuple(
        msgspec.structs.replace(time, kept=int(sum(at_rows(stage.times, time.rows)[2] for stage in cuts[0].stages)))
        for time in whole.times
    )
    return msgspec.structs.replace(whole, times=times)

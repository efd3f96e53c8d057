"""What comes between the steps, or before they can be computed: callbacks, checkpoints, compilation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shoal.observe.amounts import duration, percent
from shoal.observe.counters import SEPARATOR
from shoal.observe.doctor.facts import WORTH_IT, Finding, FindingKind, RunFacts
from shoal.observe.phases import TimeUse

_BAR = "ProgbarLogger"
_MUCH_FOR_A_BAR = 0.25  # the progress bar of a tiny model takes some
_HELD_UP = 0.1  # of the time by checkpoints: they are meant to cost next to nothing
_A_FEW = 3  # programs: for whole batches, for the last of an epoch, for another number of pieces


def callbacks(facts: RunFacts) -> Iterator[Finding]:
    worker = facts.most(TimeUse.CALLBACKS)
    share = facts.cost(TimeUse.CALLBACKS)
    by_name = sorted(worker.counted.callbacks.items(), key=lambda item: -item[1])
    name, seconds = by_name[0] if by_name else ("", 0.0)
    if share < (_MUCH_FOR_A_BAR if name in ("", _BAR) else WORTH_IT):
        return
    which = f"callbacks take {percent(share)} of the time"
    if name:
        calls = max(1, worker.counted.steps)
        which += f", most of it {name}: {percent(worker.part(seconds))}, {duration(seconds / calls)} for each step"
    advice = f"Do less in {name or 'them'}, or not after every batch."
    if name in ("", _BAR):
        advice = "Keras's progress bar costs much where steps are short: `verbose=2` prints one line an epoch."
    yield Finding(share, which, advice, FindingKind.CALLBACKS)


def checkpoints(facts: RunFacts) -> Iterator[Finding]:
    worker = max(facts.workers, key=lambda worker: worker.counted.saving)
    counted = worker.counted
    share = counted.saving / (worker.seconds + counted.saving) if counted.saving else 0.0
    if share < _HELD_UP:
        return
    number = max(1, counted.checkpoints)
    yield Finding(
        share,
        f"checkpoints hold up the training {percent(share)} of the time: {number} of them, "
        f"{duration(counted.saving / number)} each",
        "Write them less often (`--checkpoint-every`), or to a faster disk. A `fit` ends with one, for which the "
        "script waits: one `fit` of many epochs has fewer of them than many fits.",
        FindingKind.CHECKPOINTS,
    )


def compiling(facts: RunFacts) -> Iterator[Finding]:
    worker = max(facts.workers, key=lambda worker: worker.counted.compiling)
    counted = worker.counted
    share = worker.part(counted.compiling)
    if counted.compilations <= _A_FEW or share < WORTH_IT:
        return
    yield Finding(
        share,
        f"the training step was compiled {counted.compilations} times in {counted.steps} steps, which takes "
        f"{percent(share)} of the time: the shape of the batch changes{_changed(counted.shapes)}",
        "Pad samples to a few lengths, or sort them into buckets of equal length: for each shape there is a program. "
        "Where the last batch of an epoch is smaller, drop it.",
        FindingKind.COMPILING,
    )


def _changed(shapes: Sequence[str]) -> str:
    """Of those tensors of a batch that are not always alike."""
    tensors = zip(*(shape.split(SEPARATOR) for shape in shapes), strict=False)
    found = [" to ".join(dict.fromkeys(tensor)) for tensor in tensors if len(set(tensor)) > 1]
    return f", lately from {', '.join(found)}" if found else ""


interruption_rules = (callbacks, checkpoints, compiling)

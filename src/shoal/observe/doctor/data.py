"""Workers that wait for data."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.observe.amounts import percent
from shoal.observe.doctor.facts import WORTH_IT, Finding, FindingKind, RunFacts
from shoal.observe.phases import TimeUse

_FASTER = "more threads or processes in the loader, a cache, `prefetch`, larger files"


def stream(facts: RunFacts) -> Iterator[Finding]:
    """The chief reads for all."""
    reader = facts.most(TimeUse.READING)
    share = reader.share(TimeUse.READING)
    if not reader.counted.streams or share < WORTH_IT:
        return
    yield Finding(
        share,
        f"all wait for the data that {reader.id} reads for them: {percent(share)} of the time",
        f"A generator, a stream or a `tf.data.Dataset` is read by the chief alone. Read it faster: {_FASTER}. Or give "
        "what can be asked for by number (arrays, a `PyDataset`, a torch `DataLoader` over a map-style data set): then "
        "every worker reads its own part.",
        FindingKind.DATA,
    )


def own_data(facts: RunFacts) -> Iterator[Finding]:
    """Every worker reads its part."""
    slow = facts.most(TimeUse.READING)
    if slow.counted.streams or facts.cost(TimeUse.READING) < WORTH_IT:
        return
    shares = sorted(worker.share(TimeUse.READING) for worker in facts.workers)
    alone = len(shares) > 1 and shares[-1] - shares[-2] > WORTH_IT
    share = shares[-1] if alone else facts.share(TimeUse.READING)
    who = f"{slow.id} on {slow.host or 'its host'} waits" if alone else "the workers wait"
    yield Finding(
        facts.cost(TimeUse.READING),
        f"{who} for data {percent(share)} of the time",
        f"Read faster: {_FASTER}."
        + (" Of the other workers' data this is not so: look at that host's disk and network." if alone else ""),
        FindingKind.DATA,
    )


data_rules = (stream, own_data)

"""What the launcher says: one line at the start, one line or block at the end. Pure."""

from __future__ import annotations

from pathlib import Path

from shoal.checkpoint.addresses import place_of
from shoal.checkpoint.drafts import step_of
from shoal.cluster.messages import End
from shoal.config import RunConfig, Servers
from shoal.launch import logs
from shoal.observe.amounts import amount

_LAST_LINES = 20
_TOLD_WAIT = 0.1  # seconds
_CALLS = {"fit": "fit", "loop": "loop", "evaluate": "evaluation", "predict": "prediction", "plan": "plan"}


def opening(config: RunConfig) -> str:
    """Who will train, with what, and where the others write."""
    parts = [
        f"run {config.run}",
        _count(config.workers, "worker"),
        *(_servers(config.servers) if config.servers else ()),
        _count(config.pieces or config.workers, "replica" if config.strategy == "local" else "piece"),
        _count(config.threads, "thread") + (" each" if config.workers > 1 or config.servers else ""),
        config.backend,
        f"logs in {config.logs}",
    ]
    if config.mesh is not None:
        parts.insert(-1, f"mesh {config.mesh}")
    line = f"shoal: {' · '.join(parts)}"
    return f"{line}\nshoal: devices: {config.devices.found}" if config.devices is not None else line


def summary(end: End, config: RunConfig) -> str:
    """What the workers of a run that went well have done together; nothing of plain Keras."""
    work = end.work
    if work.is_nothing:
        return "" if config.is_plain else _untrained(end)
    calls = ", ".join(_count(number, _CALLS.get(name, f"{name} call")) for name, number in work.calls.items())
    begun = step_of(place_of(config.resume)) if config.resume else None
    steps = _count(work.steps, "step") + (f", from step {begun:,} on" if begun else "")
    trained = [steps, _count(work.samples, "sample")] if work.steps else ["nothing was trained"]
    done = f"shoal: {' · '.join([*([calls] if calls else []), *trained, _workers(end, config)])}"
    return "\n".join([done, *(f"shoal:   {name:<13}{told}" for name, told in _rows(end) if told)])


def _rows(end: End) -> list[tuple[str, str]]:
    """What there is to say of a training beside what was done, by its name; empty texts are left out."""
    work, counted = end.work, end.work.counted
    if not work.steps:
        return []
    least = "at least " if end.losses else ""  # who came in another's place has not seen those before
    saved = f"{least}{counted.checkpoints:,}, the last of step {counted.saved:,}" if counted.checkpoints else ""
    ways = {
        "through shared memory": counted.shared,
        "over sockets": counted.sent,
        "spared": counted.spared,
    }
    waited = counted.arriving / max(1, end.finishers)
    return [
        ("time", str(work.spent)),
        ("checkpoints", saved),
        ("exchanged", " · ".join(f"{amount(nbytes)} {way}" for way, nbytes in ways.items() if nbytes)),
        ("the link", f"each worker waited {waited:,.1f} s for bytes on their way" if waited >= _TOLD_WAIT else ""),
    ]


def _untrained(end: End) -> str:
    who = "the worker" if end.finishers == 1 else f"each of the {end.finishers} workers"
    return (
        f"shoal: nothing was trained through Keras: {who} ran the whole script by itself.\n"
        '  Workers share the work of fit, train_on_batch, evaluate and predict, and of loops over shoal.batches ("Your '
        'own loop" in docs/guide.md). What does not train needs no workers: run it with `python`.'
    )


def _workers(end: End, config: RunConfig) -> str:
    started = _count(config.workers, "worker")
    who = started if end.finishers == config.workers else f"{started} at the start, {end.finishers} at the end"
    lost = _count(end.losses, "loss", "losses")
    return f"{who}, {lost} survived" if end.losses else who


def closing(end: End, config: RunConfig) -> str:
    """Why the run ended: the sentence, what the culprit last said, and where to read on."""
    lines = [f"shoal: the run ended: {end.reason}."]
    if end.advice:
        lines.append(f"  {end.advice}")
    if end.refused:
        lines.append(f"  The whole traceback is in {logs.path_of(Path(config.logs), end.culprits[0])}")
    elif logs.CHIEF in end.culprits:
        return "\n".join([*end.traceback.splitlines(), *lines])  # as Python would have said it
    elif end.culprits:
        lines += _last_words(end, config)
    return "\n".join(lines)


def _last_words(end: End, config: RunConfig) -> list[str]:
    """Of a worker that has not said them on the terminal."""
    culprit = end.culprits[0]
    log = logs.path_of(Path(config.logs), culprit)
    last = end.traceback.splitlines() or logs.tail(log, _LAST_LINES)
    if not last:
        return [f"  {culprit} wrote nothing to its log, {log}"]
    title = "last words" if end.traceback else f"last {_count(len(last), 'line')}"
    return [f"  {culprit}'s {title}:", *(f"    {line}" for line in last), f"  Its whole log: {log}"]


def _servers(servers: Servers) -> tuple[str, str]:
    match servers.staleness:
        case None:
            pace = "no bound on staleness"
        case 0:
            pace = "synchronous"
        case bound:
            pace = f"staleness {bound}"
    return _count(servers.count, "server"), pace


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"

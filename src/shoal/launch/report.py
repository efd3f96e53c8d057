"""What the launcher says: one line at the start, one block at the end. Pure."""

from __future__ import annotations

from pathlib import Path

from shoal.cluster.messages import End
from shoal.config import RunConfig, Servers
from shoal.launch import logs

_LAST_LINES = 20
CHIEF = "worker-0"


def opening(config: RunConfig) -> str:
    """Who will train, with what, and where the others write."""
    parts = [
        f"run {config.run}",
        _count(config.workers, "worker"),
        *(_servers(config.servers) if config.servers else ()),
        _count(config.pieces or config.workers, "piece"),
        _count(config.threads, "thread") + (" each" if config.workers > 1 or config.servers else ""),
        config.backend,
        f"logs in {config.logs}",
    ]
    return f"shoal: {' · '.join(parts)}"


def closing(end: End, config: RunConfig) -> str:
    """Why the run ended: the sentence, what the culprit last said, and where to read on."""
    lines = [f"shoal: the run ended: {end.reason}."]
    if end.advice:
        lines.append(f"  {end.advice}")
    if end.culprits:
        lines += _last_words(end, config)
    return "\n".join(lines)


def _last_words(end: End, config: RunConfig) -> list[str]:
    if CHIEF in end.culprits:
        # The chief's standard error is this terminal: it has been read already.
        what = "traceback" if end.traceback else "output"
        return [f"  The {what} of {CHIEF} is above; the other workers' logs are in {config.logs}"]
    culprit = end.culprits[0]
    log = logs.path_of(Path(config.logs), culprit)
    last = end.traceback.splitlines() or logs.tail(log, _LAST_LINES)
    if not last:
        return [f"  {culprit} wrote nothing to its log, {log}"]
    title = "traceback" if end.traceback else f"last {_count(len(last), 'line')}"
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

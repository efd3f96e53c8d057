"""`shoal doctor`: what limits a run."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

import click

from shoal.cli.runs import living, logs_of
from shoal.cluster.asking import ask
from shoal.cluster.last_status import read_last
from shoal.cluster.messages import StatusReply, StatusRequest
from shoal.errors import UsageError, WireError
from shoal.observe.doctor import Finding, RunFacts, WorkerFacts, examine
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import together

_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="The same findings for programs.")
def doctor(run: str | None, as_json: bool) -> None:
    """Say what limits a run, the worst first: data, callbacks, checkpoints, compilation, a slow worker, the exchange,
    small pieces, cores, memory.

    RUN is a run's name, or the folder of its logs; without it, the one that is going on, or the last one. Of a run that
    is going on, the last seconds are looked at; of one that is over, all of it.
    """
    reply = _reply(run)
    facts = facts_of(reply)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(examine(facts))))
        return
    click.echo("\n".join(told(reply, facts, examine(facts))))


def told(reply: StatusReply, facts: RunFacts, findings: list[Finding]) -> list[str]:
    """For people."""
    lines = [f"run {reply.run} · {len(facts.workers)} workers · {together(worker.spent for worker in facts.workers)}"]
    if not any(worker.spent.seconds for worker in facts.workers):
        return [*lines, "It has not trained yet: there is nothing to look at."]
    if not findings:
        share = together(worker.spent for worker in facts.workers).share(TimeUse.COMPUTING)
        return [*lines, f"Nothing stands out: {100 * share:.0f} % of the time is spent computing."]
    for number, finding in enumerate(findings, 1):
        lines += [f"{number}. {finding.what[0].upper()}{finding.what[1:]}.", f"   {finding.advice}"]
    return lines


def facts_of(reply: StatusReply) -> RunFacts:
    """What is to be judged of what a coordinator says."""
    trained = ("training", "finished")
    workers = [member for member in reply.members if member.role == "worker" and member.state in trained]
    here = all(member.host == platform.node() for member in workers)
    return RunFacts(
        tuple(
            WorkerFacts(member.id, member.host, member.spent, member.memory, member.counted, reply.threads)
            for member in workers
        ),
        reply.pieces,
        reply.threads,
        os.cpu_count() if here else None,
        _memory() if here else None,
        not any(member.counted.asynchronous for member in workers),
        sum(member.role == "server" for member in reply.members),
    )


def _memory() -> int:
    """Bytes that this host has, or that a container on it may use."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": there is none
            limits.append(int(path.read_text(encoding="ascii")))
    return min(limits)


def _reply(run: str | None) -> StatusReply:
    alive = [folder for folder in living(os.environ) if run in (None, folder.name)]
    if alive:
        return _ask(alive[-1])
    folder = logs_of(run)
    last = read_last(folder)
    if last is None:
        raise UsageError(f"{folder.name} has left no figures: it ended before its workers had trained, or was killed.")
    return last


def _ask(folder: Path) -> StatusReply:
    try:
        reply = ask(folder, StatusRequest())
    except (WireError, OSError) as error:
        raise UsageError(f"run {folder.name} does not answer: {error}") from error
    if not isinstance(reply, StatusReply):
        raise UsageError(f"run {folder.name} answers with {type(reply).__name__}: use the same Shoal for both")
    return reply

"""`shoal drain` and `shoal scale`: change who trains while it goes on."""

from __future__ import annotations

import os

import click

from shoal.cli.runs import the_run
from shoal.cluster.asking import ask
from shoal.cluster.messages import Answer, CheckpointRequest, DrainRequest, ScaleRequest
from shoal.cluster.process_limits import check_processes
from shoal.errors import UsageError, WireError

run_option = click.option("--run", "run", metavar="ID", help="Which run, if there are several on this machine.")


@click.command()
@click.argument("worker")
@run_option
def drain(worker: str, run: str | None) -> None:
    """Let WORKER finish its step and leave the run; the others go on."""
    tell(run, DrainRequest(worker))


@click.command()
@click.argument("workers", type=int)
@run_option
def scale(workers: int, run: str | None) -> None:
    """Train with WORKERS workers from now on: start more, or let the last ones leave."""
    if workers < 1:
        raise UsageError(f"shoal scale {workers}: a run needs at least 1 worker.")
    check_processes(f"shoal scale {workers}", workers, len(os.sched_getaffinity(0)))
    tell(run, ScaleRequest(workers))


def tell(run: str | None, request: DrainRequest | ScaleRequest | CheckpointRequest) -> None:
    """Ask the coordinator of a run for something, and print its answer; UsageError if that is no."""
    folder = the_run(os.environ, run)
    try:
        answer = ask(folder, request)
    except (WireError, OSError) as error:
        raise UsageError(f"the coordinator of run {folder.name} does not answer: {error}") from error
    if not isinstance(answer, Answer) or not answer.ok:
        raise UsageError(answer.text if isinstance(answer, Answer) else "the coordinator did not understand")
    click.echo(answer.text)

"""`shoal plan`: how a script would be trained fastest, in what each worker has. Trains nothing."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
import msgspec

from shoal.config import BACKENDS
from shoal.errors import RunFailed
from shoal.launch.request import LaunchRequest
from shoal.launch.sizes import nbytes
from shoal.launch.speeds import speeds_of


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "workers", type=int, default=2, show_default=True, metavar="N", help="Workers to plan for.")
@click.option("--memory", metavar="SIZE", help="Of each worker, as 2G.  [default: its part of what is free here]")
@click.option("--speeds", metavar="S,S…", help="Of the workers, relative to each other, as 1,1,0.5.  [default: equal]")
@click.option(
    "--bandwidth",
    metavar="SIZE",
    help="Bytes per second between workers of several hosts, as 125M.  [default: one host]",
)
@click.option("--backend", metavar="|".join(BACKENDS), help="Keras backend.  [default: as Keras would choose]")
@click.option("--devices-per-worker", type=int, metavar="K", help="Compare the meshes of K devices, on JAX.")
@click.option("--pieces", type=int, help="Pieces of a batch.  [default: what is best]")
@click.option("--threads", type=int, help="Threads per worker.  [default: cores divided by workers]")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module's name, as for `python -m`.")
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGUMENTS]...", type=click.UNPROCESSED)
def plan(words: tuple[str, ...], as_json: bool, speeds: str | None, bandwidth: str | None, **options: Any) -> None:
    """Measure SCRIPT in one process, until its first fit would train, and rank the ways to train it."""
    if not words:
        raise click.UsageError("name a script to plan for: shoal plan -n 4 train.py")
    memory = nbytes("--memory", options["memory"]) if options["memory"] is not None else None
    across = nbytes("--bandwidth", bandwidth) if bandwidth is not None else None
    request = LaunchRequest(script=words[0], arguments=words[1:], **options)
    told = speeds_of(speeds, request.workers) if speeds is not None else None
    from shoal.launch.planner import measured

    try:
        facts, run = measured(request, os.environ, tuple(sorted(os.sched_getaffinity(0))), told or ())
    except RunFailed as failed:
        click.echo(f"shoal: {failed}", err=True)
        sys.exit(failed.code)
    from shoal.planning.facts import on_link
    from shoal.planning.ranking import rank
    from shoal.planning.words import as_data, table

    facts = msgspec.structs.replace(facts, speeds=told or facts.speeds, link=on_link(facts.link, across))
    ranking = rank(facts, memory if memory is not None else facts.limit, request.pieces)
    about = {"script": request.script, "workers": request.workers, "threads": run.config.threads}
    if as_json:
        found = as_data(ranking, {**about, "backend": run.config.backend, "batch": facts.batch, "speeds": facts.speeds})
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        each = f"{request.workers} workers, {run.config.threads} thread{'s' if run.config.threads > 1 else ''} each"
        click.echo(table(ranking, f"{request.script}: {each}, {run.config.backend}, batches of {facts.batch}"))

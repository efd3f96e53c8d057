"""`shoal trace`: what every member of a run did, as a file for Perfetto."""

from __future__ import annotations

from pathlib import Path

import click

from shoal.cli.durations import seconds
from shoal.cli.runs import logs_of
from shoal.observe.trace_file import write_trace


@click.command()
@click.argument("run", required=False)
@click.option("-o", "file", metavar="FILE", help="Where to write it; compressed if it ends in .gz.")
@click.option("--last", metavar="TIME", help="Only the run's last so many: 90s, 10m, 2h, 1d.")
@click.option("--json", "as_json", is_flag=True, help="Say what was written for programs.")
def trace(run: str | None, file: str | None, last: str | None, as_json: bool) -> None:
    """Write a trace of a run: what each member did, step by step, all on one clock.

    Open the file at https://ui.perfetto.dev or in chrome://tracing. RUN is a run's name, or the folder of its logs;
    without it, the last run that was started here. It may be over, or going on.
    """
    logs = logs_of(run)
    path = Path(file or f"{logs.name}.trace.json")
    summary = write_trace(logs, path, seconds("--last", last) if last is not None else None)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(summary).decode())
    else:
        click.echo(f"{path}: {summary}. Open it at https://ui.perfetto.dev", err=True)

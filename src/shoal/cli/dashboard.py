"""`shoal dashboard`: runs in a browser."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.runs import finished, living, logs_of
from shoal.config import RunConfig

if TYPE_CHECKING:
    from shoal.dashboard.sources import WatchedRun

_FINISHED = 5  # runs that are over, and shown too


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Where to listen.  [default: a free port]")
def dashboard(runs: tuple[str, ...], port: int) -> None:
    """Show runs in a browser: members, throughput and loss, where the time goes, what happened.

    RUN is a run's name, or the folder of its logs. Without it all runs of this machine are shown, also those that begin
    later, and the last ones that are over. Ctrl-C ends the page; the runs go on.
    """
    from shoal.dashboard.extra import require

    require("shoal dashboard")
    from shoal.dashboard.server import serve, token_of

    watched_runs(runs)  # a run that there is not is said at once
    token = token_of(os.environ)
    try:
        serve(lambda: watched_runs(runs), port, token, lambda address: click.echo(f"The page: {address}"))
    except KeyboardInterrupt:
        return


def watched_runs(names: Sequence[str]) -> list[WatchedRun]:
    """Those that are meant, the oldest first."""
    from shoal.dashboard.sources import WatchedRun

    alive = {}
    for folder in living(os.environ):
        try:
            logs = RunConfig.load(folder).logs
        except (OSError, ValueError):
            continue  # it is just being made, or has just ended
        alive[folder.name] = WatchedRun(folder.name, Path(logs), folder)
    if names:
        return [alive[name] if name in alive else _over(logs_of(name)) for name in names]
    over = [_over(logs) for logs in finished(os.environ) if logs.name not in alive]
    return [*over[-_FINISHED:], *alive.values()]


def _over(logs: Path) -> WatchedRun:
    """A folder that was named for its logs may have another name than the run."""
    from shoal.cluster.last_status import read_last
    from shoal.dashboard.sources import WatchedRun

    last = read_last(logs)
    return WatchedRun(last.run if last is not None else logs.name, logs)

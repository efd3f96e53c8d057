"""`shoal agent`: the part of a run that `shoal run --hosts` starts on another host. Nobody calls it by hand."""

from __future__ import annotations

import os
import sys

import click


@click.command(hidden=True)
def agent() -> None:
    """Take part in a run as the launcher says that started this. Standard input and output belong to it."""
    if sys.stdin.isatty():
        raise click.UsageError("`shoal run --hosts` starts agents itself; to join a run by hand: shoal join --help")
    from shoal.launch.remote.agent_process import main

    sys.exit(main(os.environ))

"""`shoal join`: more workers for a run that was started in another terminal or on another host."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from shoal.launch.joining import JoinRequest
from shoal.launch.joining import join as join_run


class _AddressFirst(click.Command):
    """`join HOST:PORT --key-file F script`: options may stand between the address and the script, never after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-"):
            args = ["--address", *args]
        return super().parse_args(ctx, args)


@click.command(cls=_AddressFirst, context_settings={"allow_interspersed_args": False})
@click.option("--address", required=True, metavar="HOST:PORT", help="Where the run is; also as the first word.")
@click.option("-n", "workers", type=int, default=1, show_default=True, metavar="N", help="Workers to bring.")
@click.option(
    "--key-file", required=True, metavar="FILE", help="What `shoal run --key-file` wrote, brought here safely."
)
@click.option(
    "--host", metavar="HOST", help="This machine's address for the others.  [default: the one that leads there]"
)
@click.option("--max-restarts", type=int, default=3, show_default=True, metavar="K", help="Of a dead worker, per hour.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module's name, as for `python -m`.")
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGUMENTS]...", type=click.UNPROCESSED)
def join(
    address: str,
    words: tuple[str, ...],
    workers: int,
    key_file: str,
    host: str | None,
    max_restarts: int,
    is_module: bool,
) -> None:
    """Add workers to a run. SCRIPT and its arguments are the same as there."""
    if not words:
        raise click.UsageError("name the script that the run trains: shoal join HOST:PORT --key-file F train.py")
    request = JoinRequest(address, Path(key_file), words[0], words[1:], is_module, host, max_restarts, workers)
    sys.exit(join_run(request, os.environ, sorted(os.sched_getaffinity(0))))

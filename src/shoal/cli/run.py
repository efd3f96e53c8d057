"""`shoal run`: train a script on several workers of this machine."""

from __future__ import annotations

import os
import sys

import click

from shoal.config import BACKENDS, STRATEGIES, TRANSPORTS
from shoal.errors import UsageError
from shoal.launch.local import launch
from shoal.launch.plan import Request, make_plan

USAGE = 2  # the exit code for input that can't be used


# What follows the script is the script's, options like -n and --help too: parsing stops at the first word
# that is not an option.
@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
@click.option("-n", "workers", type=int, default=1, show_default=True, help="Workers to start.")
@click.option("--backend", metavar="|".join(BACKENDS), help="Keras backend.  [default: as Keras would choose]")
@click.option("--pieces", type=int, help="Pieces of a batch. Fixed pieces, same bits.  [default: the workers]")
@click.option("--threads", type=int, help="Threads per worker.  [default: cores divided by workers]")
@click.option(
    "--strategy", default=STRATEGIES[0], show_default=True, metavar="|".join(STRATEGIES), help="How to train."
)
@click.option(
    "--transport",
    default=TRANSPORTS[0],
    show_default=True,
    metavar="|".join(TRANSPORTS),
    help="How workers exchange gradients.",
)
@click.option("--address", metavar="HOST:PORT", help="Where the coordinator listens.  [default: a unix socket]")
@click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    help="A worker silent for so long is lost; one that lives but does not come gets 60 times as long.  [default: 5]",
)
@click.option("--logs", metavar="DIR", help="Folder for the workers' logs.")
@click.option("--verbose", is_flag=True, help="Show the other workers' output too.")
@click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does.")
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGUMENTS]...", type=click.UNPROCESSED)
def run(words: tuple[str, ...], module: str | None, **options: object) -> None:
    """Train SCRIPT on several workers. Everything after it is the script's own."""
    if module is None and not words:
        raise click.UsageError("name a script to train: shoal run -n 4 train.py")
    script, arguments = (module, words) if module is not None else (words[0], words[1:])
    request = Request(script=script, arguments=arguments, is_module=module is not None, **options)  # type: ignore[arg-type]
    try:
        plan = make_plan(request, os.environ, tuple(sorted(os.sched_getaffinity(0))))
        code = launch(plan, os.environ)
    except UsageError as error:
        click.echo(f"shoal: {error}", err=True)
        code = USAGE
    sys.exit(code)

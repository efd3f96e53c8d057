"""The command line: one file per verb. Nothing here imports keras, a backend or numpy: it must start at once."""

from __future__ import annotations

from typing import Any

import click

from shoal.cli import checkpoint, drain, join, run, status
from shoal.errors import UsageError

__all__ = ["main"]


USAGE = 2  # the exit code for input that can't be used


class _Verbs(click.Group):
    """Shows a UsageError as one clear block."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            click.echo(f"shoal: {error}", err=True)
            ctx.exit(USAGE)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shoal", prog_name="shoal")
def main() -> None:
    """Train one Keras 3 model on many workers."""


main.add_command(run.run)
main.add_command(status.status)
main.add_command(checkpoint.checkpoint)
main.add_command(drain.drain)
main.add_command(drain.scale)
main.add_command(join.join)

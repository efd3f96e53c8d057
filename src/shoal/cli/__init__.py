"""The command line: one file per verb. Nothing here imports keras, a backend or numpy: it must start at once."""

from __future__ import annotations

import click

from shoal.cli.run import run
from shoal.cli.status import status

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shoal", prog_name="shoal")
def main() -> None:
    """Train one Keras 3 model on many workers."""


main.add_command(run)
main.add_command(status)

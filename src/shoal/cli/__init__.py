"""The command line: one file per verb, imported when it is used. Nothing here imports keras, a backend or numpy: it
must start at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from shoal.errors import UsageError

__all__ = ["main"]


USAGE = 2  # the exit code for input that can't be used
_FILES = {
    "run": "run",
    "plan": "plan",
    "join": "join",
    "agent": "agent",
    "worker": "worker",
    "scale": "drain",
    "drain": "drain",
    "status": "status",
    "top": "top",
    "story": "story",
    "doctor": "doctor",
    "dashboard": "dashboard",
    "trace": "trace",
    "checkpoint": "checkpoint",
}


class _Verbs(click.Group):
    """Imports a verb when it is asked for. Shows a UsageError as one clear block."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_FILES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _FILES:
            return None
        command: click.Command = getattr(import_module(f"shoal.cli.{_FILES[cmd_name]}"), cmd_name)
        return command

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

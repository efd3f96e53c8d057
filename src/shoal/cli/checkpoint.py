"""`shoal checkpoint`: look at checkpoints, verify them, turn one into a Keras file, ask for one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.drain import run_option, tell
from shoal.cluster.messages import CheckpointRequest
from shoal.errors import ShoalError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.checkpoint.addresses import Place
    from shoal.checkpoint.manifest import Manifest

    Verdicts = dict[Place, Manifest | str]  # of each checkpoint: what it holds, or what is wrong with it

BAD = 1  # the exit code when a checkpoint is not whole

_json = click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")


@click.group()
def checkpoint() -> None:
    """Look at checkpoints, verify them, export one, ask a run for one."""


@checkpoint.command("list")
@click.argument("folder", metavar="DIR")
@_json
def list_(folder: str, as_json: bool) -> None:
    """Show the checkpoints in DIR, newest first. All of each is read and compared with its digests.

    DIR may be an address in an object store, such as s3://bucket/folder.
    """
    _print(_verdicts(folder), as_json)


@checkpoint.command()
@run_option
def now(run: str | None) -> None:
    """Have a run that is going on write a checkpoint after its next step, and not only when one is due."""
    tell(run, CheckpointRequest())


@checkpoint.command()
@click.argument("path", metavar="DIR|CHECKPOINT")
@_json
def verify(path: str, as_json: bool) -> None:
    """Verify one checkpoint, or all in DIR. The exit code is 1 if one of them is not whole."""
    verdicts = _verdicts(path)
    _print(verdicts, as_json)
    if any(isinstance(verdict, str) for verdict in verdicts.values()):
        sys.exit(BAD)


@checkpoint.command()
@click.argument("path", metavar="CHECKPOINT")
@click.argument("out", metavar="OUT.keras", type=click.Path(path_type=Path))
def export(path: str, out: Path) -> None:
    """Write the model in CHECKPOINT as a Keras file: its layers and weights, not its optimizer."""
    from shoal.checkpoint.addresses import given_place
    from shoal.checkpoint.read import load
    from shoal.hook.calls.export import export as write

    try:
        loaded = load(given_place(path))
        write(loaded.header, loaded.arrays, out)
    except UsageError:
        raise
    except (ShoalError, OSError) as error:
        click.echo(f"shoal: {error}", err=True)
        sys.exit(BAD)
    click.echo(f"{out}: the model at step {loaded.step}, from {path}")


def _verdicts(text: str) -> Verdicts:
    from shoal.checkpoint.addresses import given_place
    from shoal.checkpoint.read import verify
    from shoal.checkpoint.storage.choice import storage_of
    from shoal.errors import BadCheckpoint

    path = given_place(text)
    storage = storage_of(path)
    verdicts: Verdicts = {}
    for found in [path] if storage.is_checkpoint() else storage.checkpoints():
        try:
            verdicts[found] = verify(found)
        except BadCheckpoint as error:
            verdicts[found] = error.why
    if not verdicts:
        raise UsageError(f"there are no checkpoints in {path}: expected folders named like step-000001234")
    return verdicts


def _print(verdicts: Verdicts, as_json: bool) -> None:
    if as_json:
        import msgspec

        facts = [_facts(path, verdict) for path, verdict in verdicts.items()]
        click.echo(msgspec.json.format(msgspec.json.encode(facts)))
    else:
        from rich.console import Console

        Console(markup=False, highlight=False).print(_table(verdicts))
        for path, verdict in verdicts.items():
            if isinstance(verdict, str):
                click.echo(f"{path.name} is not whole: {verdict}")  # below the table, where it is not cut


def _facts(path: Place, verdict: Manifest | str) -> dict[str, Any]:
    if isinstance(verdict, str):
        return {"path": str(path), "whole": False, "why": verdict}
    return {
        "path": str(path),
        "whole": True,
        "step": verdict.step,
        "when": verdict.when,
        "bytes": verdict.nbytes,
        "parts": len(verdict.parts),
        "tensors": len(verdict.tensors),
        "run": verdict.run,
        "training": verdict.first_run,
    }


def _table(verdicts: Verdicts) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("checkpoint", "step", "run", "written", "MiB", "parts", "whole"):
        table.add_column(heading, justify="right" if heading in ("step", "MiB", "parts") else "left")
    for path, verdict in verdicts.items():
        if isinstance(verdict, str):
            table.add_row(path.name, "", "", "", "", "", "no")
        else:
            when = verdict.when.astimezone().strftime("%Y-%m-%d %H:%M:%S")
            size, parts = f"{verdict.nbytes / 2**20:,.1f}", str(len(verdict.parts))
            table.add_row(path.name, str(verdict.step), verdict.run, when, size, parts, "yes")
    return table

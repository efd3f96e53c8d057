"""`shoal status`: the runs on this machine and their members."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.runs import living
from shoal.cluster.asking import ask
from shoal.cluster.messages import StatusReply, StatusRequest
from shoal.errors import WireError

if TYPE_CHECKING:
    from rich.table import Table

Replies = dict[str, StatusReply | str]  # by run; a text says why there is none


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")
def status(as_json: bool) -> None:
    """Show the runs on this machine: members, steps, samples per second."""
    replies = ask_all()
    if as_json:
        print_json(replies)
    else:
        _print_tables(replies)


def ask_all(run: str | None = None) -> Replies:
    """What the coordinators of all living runs on this machine say, or of the one that is meant."""
    return {folder.name: _ask(folder) for folder in living(os.environ) if run in (None, folder.name)}


def _ask(folder: Path) -> StatusReply | str:
    """What the run's coordinator says, or why it says nothing."""
    try:
        reply = ask(folder, StatusRequest())
    except (WireError, OSError) as error:
        return f"does not answer: {error}"
    return reply if isinstance(reply, StatusReply) else f"answers with {type(reply).__name__}"


def print_json(replies: Replies) -> None:
    import msgspec

    runs = [
        {"run": run, "error": reply} if isinstance(reply, str) else msgspec.to_builtins(reply)
        for run, reply in replies.items()
    ]
    for facts in runs:
        facts.pop("type", None)  # a word of the wire
    click.echo(msgspec.json.format(msgspec.json.encode(runs)))


def _print_tables(replies: Replies) -> None:
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if not replies:
        console.print("No runs on this machine. Start one with `shoal run -n 4 train.py`.")
    for run, reply in replies.items():
        if isinstance(reply, str):
            console.print(f"run {run} {reply}")
        else:
            console.print(_table(reply))


def _table(reply: StatusReply) -> Table:
    from rich.table import Table

    strategy = f"{reply.strategy}: {reply.plan}" if reply.plan else reply.strategy
    title = (
        f"run {reply.run} · {Path(reply.script).name} · {strategy} · {reply.backend} · "
        f"{reply.pieces} pieces · view {reply.view} · up {duration(reply.uptime)}"
    )
    if reply.mesh:
        title += f" · mesh {reply.mesh}"
    caption = f"devices: {reply.devices}\nlogs in {reply.logs}" if reply.devices else f"logs in {reply.logs}"
    table = Table(title=title, caption=caption, box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.title_justify = table.caption_justify = "left"
    for heading in ("role", "id", "pid", "host", "state", "step", "samples/s", "doing"):
        numeric = heading in ("pid", "step", "samples/s")
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=heading != "doing")
    for member in reply.members:
        trains = member.role == "worker"
        table.add_row(
            member.role,
            member.id,
            str(member.pid or ""),
            member.host,
            member.state,
            str(member.step) if trains else "",
            f"{member.samples_per_second:,.0f}" if trains else "",
            member.doing,
        )
    return table


def duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"

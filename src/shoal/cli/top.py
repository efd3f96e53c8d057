"""`shoal top`: what the members of the runs on this machine do, as it changes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.status import Replies, ask_all, duration, print_json
from shoal.cluster.figures import pace
from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.observe.phases import TimeUse

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_USES = (TimeUse.COMPUTING, TimeUse.EXCHANGING, TimeUse.WAITING, TimeUse.READING, TimeUse.CALLBACKS)
_NUMBERS = ("pid", "step", "rows/s", "pcs", "kB", "MB", *(use[:4] for use in _USES))
_STALE = "stale"  # only with parameter servers whose weights may be old


@click.command()
@click.option("--run", metavar="ID", help="Only this run.")
@click.option(
    "--every", type=click.FloatRange(0.1, 60.0), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--json", "as_json", is_flag=True, help="One look, for programs.")
def top(run: str | None, every: float, as_json: bool) -> None:
    """Watch the runs on this machine: who does what, and where each member's time goes.

    comp, exch, wait, read and call are percents of the last seconds: computing, exchanging, waiting for other members,
    reading data, callbacks. pcs and kB are what it computes and gives to others in a step: pieces of the batch, and
    kilobytes. MB is resident memory. With parameter servers and a staleness, stale says how old the weights are that
    updates were computed with: how many updates of another worker they lacked, on average. Ctrl-C ends it; the runs go
    on.
    """
    if as_json:
        print_json(ask_all(run))
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.print(shown(ask_all(run)))
        return
    try:
        with Live(shown(ask_all(run)), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(shown(ask_all(run)), refresh=True)
    except KeyboardInterrupt:
        return


def shown(replies: Replies) -> Group:
    """A table for each run."""
    from rich.console import Group
    from rich.text import Text

    if not replies:
        return Group(Text("No runs on this machine. Start one with `shoal run -n 4 train.py`."))
    return Group(
        *(Text(f"run {run} {reply}") if isinstance(reply, str) else _table(reply) for run, reply in replies.items())
    )


def _table(reply: StatusReply) -> Table:
    from rich.table import Table

    workers = [member for member in reply.members if member.role == "worker"]
    training = [member for member in workers if member.state == "training"]
    told = [
        f"run {reply.run}",
        Path(reply.script).name,
        reply.strategy,
        reply.backend,
        f"up {duration(reply.uptime)}",
        f"{len(training)} of {reply.wanted or len(workers)} workers",
        f"step {max((member.step for member in training), default=0):,}",
        f"{pace(training):,.0f} samples/s",
    ]
    table = Table(title=" · ".join(told), box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.title_justify = "left"
    several = len({member.host for member in reply.members if member.host}) > 1
    numbers = (*_NUMBERS, _STALE) if any(member.counted.aged for member in reply.members) else _NUMBERS
    for heading in ("id", *(("host",) if several else ()), "state", *numbers, "doing"):
        right, whole = heading in numbers, heading != "doing"
        table.add_column(heading, justify="right" if right else "left", no_wrap=whole, min_width=5 if whole else None)
    for member in reply.members:
        place = (member.host,) if several else ()
        stale = (_staleness(member),) if _STALE in numbers else ()
        table.add_row(member.id, *place, member.state, *_numbers(member), *stale, member.doing)
    return table


def _numbers(member: MemberStatus) -> tuple[str, ...]:
    is_worker = member.role == "worker"
    shares = [round(100 * member.spent.share(use)) for use in _USES] if is_worker else [0] * len(_USES)
    return (
        str(member.pid or ""),
        f"{member.step:,}" if member.role != "coordinator" else "",
        f"{member.samples_per_second:,.0f}" if is_worker else "",
        _in_a_step(member.counted.pieces, member),
        _in_a_step((member.counted.sent + member.counted.shared) / 1e3, member),
        f"{member.memory / 1e6:,.0f}" if member.memory else "",
        *(str(share) if share else "" for share in shares),
    )


def _staleness(member: MemberStatus) -> str:
    """On average, lately: of a worker's updates, or of those that a server applied."""
    mean = member.counted.staleness_mean
    return f"{mean:.1f}" if mean is not None else ""


def _in_a_step(number: float, member: MemberStatus) -> str:
    """On average, lately."""
    each = number / member.counted.steps if member.counted.steps else 0.0
    if not each:
        return ""
    return f"{each:,.0f}" if each >= 10 or each.is_integer() else f"{each:.1f}"

"""`shoal story`: what has happened in a run, and why."""

from __future__ import annotations

import re
import time

import click

from shoal.cli.durations import seconds
from shoal.cli.runs import logs_of
from shoal.observe.story import StoryEvent, read


@click.command()
@click.argument("run", required=False)
@click.option("--since", metavar="TIME", help="Only the last so many: 90s, 10m, 2h, 1d.")
@click.option("--member", metavar="ID", help="Only what is about this member, such as worker-2.")
@click.option("--step", type=int, metavar="N", help="Only what happened at this step.")
@click.option("--json", "as_json", is_flag=True, help="The same facts for programs, one object a line.")
def story(run: str | None, since: str | None, member: str | None, step: int | None, as_json: bool) -> None:
    """Tell what happened in a run: members that came and went, losses and their reasons, fits, checkpoints.

    RUN is a run's name, or the folder of its logs; without it, the last run that was started here. It may be over.
    """
    earliest = time.time() - seconds("--since", since) if since is not None else 0.0
    found = [event for event in read(logs_of(run)) if event.at >= earliest and is_about(event, member, step)]
    for event in found:
        click.echo(_json(event) if as_json else line(event))


def is_about(event: StoryEvent, member: str | None, step: int | None) -> bool:
    # `worker-1` is no part of `worker-12`.
    named = member is None or event.member == member or re.search(rf"\b{re.escape(member)}\b", event.text) is not None
    return named and step in (None, event.step)


def line(event: StoryEvent) -> str:
    """For people."""
    clock = time.strftime("%H:%M:%S", time.localtime(event.at))
    step = f" step {event.step:,}:" if event.step is not None else ""
    return f"{clock}.{int(event.at % 1 * 1000):03}  {event.kind:<10} {step}{' ' if step else ''}{event.text}"


def _json(event: StoryEvent) -> str:
    import msgspec

    return msgspec.json.encode(event).decode()

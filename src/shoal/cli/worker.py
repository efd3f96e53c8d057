"""`shoal worker`: one task of several that torchrun, Slurm, MPI, Kubernetes or the like has started."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import click

from shoal.config import BACKENDS
from shoal.launch.request import LaunchRequest
from shoal.launch.task_place import READERS, find_place
from shoal.launch.tasks import Task, work

KEY_FILE = "SHOAL_KEY_FILE"


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--key-file", envvar=KEY_FILE, metavar="FILE", help=f"A secret that all tasks have; also as {KEY_FILE}.")
@click.option("--by", metavar="|".join(READERS), help="Whose variables to believe, where several disagree.")
@click.option("--first", metavar="HOST", help="Where the first task is.  [default: as the variables tell]")
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="Of the first task, where all others come.")
@click.option("--backend", metavar="|".join(BACKENDS), help="Keras backend.  [default: as Keras would choose]")
@click.option("--pieces", type=int, help="Pieces of a batch. Fixed pieces, same bits.  [default: the tasks]")
@click.option("--threads", type=int, help="Threads per worker.  [default: cores divided by this host's tasks]")
@click.option("--checkpoint", metavar="DIR", help="Write checkpoints to this folder.")
@click.option("--resume", metavar="auto|PATH", help="Go on from a checkpoint; auto: from the newest whole one.")
@click.option("--max-restarts", type=int, default=3, show_default=True, metavar="K", help="Of a dead worker, per hour.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module's name, as for `python -m`.")
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGUMENTS]...", type=click.UNPROCESSED)
def worker(
    words: tuple[str, ...], key_file: str | None, by: str | None, first: str | None, port: int | None, **options: Any
) -> None:
    """Be one worker of a run whose tasks somebody else has started. What the first task is told counts for all."""
    if not words:
        raise click.UsageError("name a script to train: shoal worker --key-file FILE train.py")
    if key_file is None:
        raise click.UsageError(
            f"name the --key-file, or set {KEY_FILE}: a file with a secret that all tasks have. Make one with "
            "`openssl rand -hex 32`."
        )
    place = find_place(os.environ, by)
    place = replace(place, first=first or place.first, port=port or place.port)
    request = LaunchRequest(script=words[0], arguments=words[1:], workers=place.size, **options)
    ended = work(Task(place, key_file, request), os.environ, sorted(os.sched_getaffinity(0)))
    if ended.said:
        click.echo(ended.said if ended.ok else f"\n{ended.said}", err=True)
    sys.exit(ended.code)

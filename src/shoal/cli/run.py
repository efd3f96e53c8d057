"""`shoal run`: train a script on several workers, of this machine or of several hosts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from shoal.cli.late_options import late_options
from shoal.cli.optional_port import fill_in_port
from shoal.codecs.words import WORDS
from shoal.config import BACKENDS, STRATEGIES, TRANSPORTS
from shoal.launch.local import start
from shoal.launch.remote.host_list import choose_hosts, named_hosts
from shoal.launch.remote.slurm import allocation
from shoal.launch.request import LaunchRequest

AUTO = -1  # workers, as many as the host's devices call for


class WithOptionalPort(click.Command):
    """`--dashboard train.py` names a script, not a port."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes = {name for one in self.params if isinstance(one, click.Option) and not one.is_flag for name in one.opts}
        return super().parse_args(ctx, fill_in_port(args, takes))


class WorkerRange(click.ParamType[tuple[int | None, int]]):
    """`4`, or `2:6` for at least two and at most six; `auto` for what the devices call for."""

    name = "workers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int | None, int]:
        least, colon, most = str(value).rpartition(":")
        if value == "auto":
            return None, AUTO
        try:
            return (int(least) if colon else None), int(most)
        except ValueError:
            self.fail(f"{value!r} is neither a number of workers, nor a range such as 2:6, nor auto", param, ctx)


# What follows the script is the script's, options like -n and --help too: parsing stops at the first word
# that is not an option.
@click.command(cls=WithOptionalPort, context_settings={"allow_interspersed_args": False})
@click.option(
    "-n",
    "workers",
    type=WorkerRange(),
    metavar="N|MIN:MAX|auto",
    help="Workers to start, and the least with which to go on; auto: as the devices call for.  "
    "[default: 1, or all slots of the hosts; least: 1]",
)
@click.option(
    "--devices",
    metavar="K|a,b;c,d|shared",
    help="Accelerators of each worker: how many, or which.  [default: all, divided among the workers]",
)
@click.option(
    "--devices-per-worker", type=int, metavar="K", help="The same number; without accelerators, virtual ones, on JAX."
)
@click.option(
    "--mesh", metavar="batch=B,model=M[,fsdp]", help="How a worker uses its devices, on JAX.  [default: batch]"
)
@click.option(
    "--mesh-hosts", type=int, default=1, metavar="G", help="Processes of each worker, which compute as one, on JAX."
)
@click.option(
    "--max-restarts", type=int, default=3, show_default=True, metavar="K", help="Of a member that dies, per hour."
)
@click.option("--standby", type=int, default=0, metavar="K", help="Workers that wait, ready, to replace one that dies.")
@click.option("--fail-fast", is_flag=True, help="End the run when a worker is lost, instead of going on.")
@click.option("--backend", metavar="|".join(BACKENDS), help="Keras backend.  [default: as Keras would choose]")
@click.option("--pieces", type=int, help="Pieces of a batch. Fixed pieces, same bits.  [default: the workers]")
@click.option("--threads", type=int, help="Threads per worker.  [default: cores divided by workers]")
@click.option(
    "--strategy", default=STRATEGIES[0], show_default=True, metavar="|".join(STRATEGIES), help="How to train."
)
@click.option("--stages", type=int, metavar="K", help="Parts of the model, with --strategy pipeline.  [default: 2]")
@click.option(
    "--speeds", metavar="S,S…", help="Of the workers, for which a pipeline is cut, as 1,1,0.5.  [default: equal]"
)
@click.option("--sliced", is_flag=True, help="Each worker updates a slice of the weights, with --strategy allreduce.")
@click.option(
    "--memory", metavar="SIZE", help="Of each worker, for --strategy auto, as 2G.  [default: its part of what is free]"
)
@click.option("--every", type=int, metavar="STEPS", help="Between two exchanges, with --strategy local.  [default: 50]")
@click.option("--servers", type=int, default=0, metavar="N", help="Parameter servers to start, with --strategy ps.")
@click.option(
    "--staleness",
    metavar="K|inf",
    help="How many of another worker's updates an update may miss; 0: synchronous.  [default: inf]",
)
@click.option(
    "--replicas",
    type=int,
    metavar="K",
    help="Servers that hold each part of the weights.  [default: 2, or 1 with one server]  With --strategy local: "
    "models that train side by side.  [default: the workers]",
)
@click.option("--compress", metavar="CODEC", help=f"Make gradients smaller on their way: {', '.join(WORDS)}.")
@click.option(
    "--transport",
    default=TRANSPORTS[0],
    show_default=True,
    metavar="|".join(TRANSPORTS),
    help="How workers exchange gradients.",
)
@click.option("--hosts", metavar="HOST:SLOTS,…", help="Start workers on these hosts, over ssh.")
@click.option("--hostfile", metavar="FILE", help="The same from a file, one host per line.")
@click.option(
    "--on-split",
    default="first",
    show_default=True,
    metavar="first|wait|CMD",
    help="What half of the hosts does when it can't reach the other half: the one with this host goes on, both wait, "
    "or the one goes on for which this command, which must know that the others are dead, ends with 0.",
)
@click.option(
    "--ray",
    is_flag=False,
    flag_value="auto",
    metavar="[ADDRESS]",
    help="Start workers on the nodes of a Ray cluster.  [default: at RAY_ADDRESS, or the one of this host]",
)
@click.option("--sync", is_flag=True, help="Copy the script's folder to the other hosts first.")
@click.option(
    "--remote-python", metavar="PATH", help="The Python that has Shoal there.  [default: the path of this one]"
)
@click.option("--env", multiple=True, metavar="NAME", help="Pass this variable on to the other hosts, too.")
@click.option("--address", metavar="HOST:PORT", help="Where the coordinator listens.  [default: a unix socket]")
@click.option("--key-file", metavar="FILE", help="Write what `shoal join` needs to this new file; keep it secret.")
@click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    help="A worker silent for so long is lost; one that lives but does not come gets 60 times as long.  [default: 5]",
)
@click.option(
    "--check-every",
    type=int,
    default=100,
    show_default=True,
    metavar="STEPS",
    help="How often workers compare their weights.",
)
@click.option("--checkpoint", metavar="DIR", help="Write checkpoints to this folder, or to s3://bucket/folder.")
@click.option(
    "--checkpoint-every", default="5m", show_default=True, metavar="TIME|STEPS", help="How often, as 5m or 500steps."
)
@click.option("--keep", type=int, default=3, show_default=True, metavar="K", help="Checkpoints to keep.")
@click.option("--resume", metavar="auto|PATH", help="Go on from a checkpoint; auto: from the newest whole one.")
@click.option("--logs", metavar="DIR", help="Folder for the workers' logs.")
@click.option(
    "--stall",
    type=float,
    default=5.0,
    metavar="SECONDS",
    help="Say who is waited for, and where it is, after so long; 5 if not said.",
)
@click.option("--trace", metavar="FILE", help="Write what every member did to this file, for Perfetto.")
@click.option("--profile", metavar="STEP|FIRST:LAST", help="Have the backend profile these steps, on every worker.")
@click.option("--record/--no-record", default=True, help="Keep a record of what members do, or not.")
@click.option("--verbose", is_flag=True, help="Show the other workers' output too.")
@click.option("--live/--no-live", default=True, help="Show in one line how the run goes on, or not.")
@click.option(
    "--dashboard",
    type=click.IntRange(0, 65535),
    is_flag=False,
    flag_value=0,
    metavar="[PORT]",
    help="Serve a page that shows the run, on this host.  [default: at a free port]",
)
@click.option("--otel", is_flag=True, help="Send spans of what members do to where OTEL_EXPORTER_OTLP_ENDPOINT says.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module's name, as for `python -m`.")
@click.argument("words", nargs=-1, metavar="SCRIPT [ARGUMENTS]...", type=click.UNPROCESSED)
@click.pass_context
def run(context: click.Context, /, words: tuple[str, ...], **options: Any) -> None:
    """Train SCRIPT on several workers. Everything after it is the script's own."""
    if not words:
        raise click.UsageError("name a script to train: shoal run -n 4 train.py")
    least, asked = options.pop("workers") or (None, None)
    auto = asked == AUTO
    named = named_hosts(options.pop("hosts"), options.pop("hostfile"))
    by_ray = options["ray"] is not None
    if by_ray and (named is not None or auto or (asked is not None and asked < 1)):
        raise click.UsageError("--ray finds the hosts itself, for -n 1 or more workers: leave --hosts and -n auto out.")
    allocated = allocation(os.environ) if named is None and not by_ray else None
    chosen = choose_hosts(named, allocated, None if auto else asked)
    options |= {"hosts": chosen.hosts, "by_srun": chosen.by_srun, "auto": auto}
    workers = chosen.workers if not by_ray else asked or 0  # 0: one on each node
    request = LaunchRequest(script=words[0], arguments=words[1:], workers=workers, least=least, **options)
    _hint_at_late_options(context, request)
    if request.dashboard is not None:
        from shoal.dashboard.extra import require

        require("--dashboard")
    if request.otel:
        from shoal.otel.extra import require as require_otel

        require_otel(os.environ)
    ended = start(request, os.environ, tuple(sorted(os.sched_getaffinity(0))))
    if ended.said:
        click.echo(ended.said if ended.ok else f"\n{ended.said}", err=True)
    sys.exit(ended.code)


def _hint_at_late_options(context: click.Context, request: LaunchRequest) -> None:
    """A hint and no error: a script may have options of the same names."""
    options = [parameter for parameter in context.command.params if isinstance(parameter, click.Option)]
    unsaid = [one for one in options if context.get_parameter_source(one.name or "") is ParameterSource.DEFAULT]
    known = {name: not one.is_flag for one in unsaid for name in one.opts if name != "-m"}  # which many scripts have
    late = late_options(request.arguments, known, "" if request.is_module else _text(request.script))
    if late:
        script = f"{'-m ' if request.is_module else ''}{request.script}"
        what = " ".join(late)
        click.echo(
            f"shoal: {what} came after {script}, so it is the script's own. If it was meant for shoal: "
            f"`shoal run {what} {script}`",
            err=True,
        )


def _text(script: str) -> str:
    try:
        return Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # a folder, an archive, or nothing

"""A run on this machine: starts the coordinator, the workers and the servers, waits for them, leaves nothing behind.

The coordinator says when and why the run is over (End). Members that do not follow by themselves get the signals
of a farewell, one after the other. When all are gone the launcher's pipe is let go, and the coordinator goes with it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec

from shoal.cluster import folders
from shoal.cluster.messages import End
from shoal.errors import UsageError
from shoal.launch import environment, logs, report
from shoal.launch.checkpoint_choice import claimed_by
from shoal.launch.companion import Companion
from shoal.launch.devices.reading import read_inventory
from shoal.launch.live_line import LiveLine
from shoal.launch.on_hosts import HostedRun, check_split, planned_on_hosts
from shoal.launch.outputs import Outputs, say
from shoal.launch.plan import THIS_HOST, LaunchPlan, make_plan, new_run
from shoal.launch.remote.ray_reservation import RayReservation, RayWish
from shoal.launch.request import LaunchRequest
from shoal.launch.supervision.decisions import Supervision
from shoal.launch.supervision.farewell import ENDING, SAVING
from shoal.launch.supervision.heard_signals import HeardSignals
from shoal.launch.supervision.local_coordination import LocalCoordination
from shoal.launch.supervision.local_launcher import LocalLauncher
from shoal.launch.supervision.supervisor import FOLLOW_EVERY, WATCH_EVERY, KeptFolder, Supervisor
from shoal.observe.profiled_steps import PROFILES, ProfiledSteps
from shoal.observe.trace_file import write_trace
from shoal.wire.certificates import Pin
from shoal.wire.join_token import JoinToken
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener


class Ended(msgspec.Struct, frozen=True):
    """How a run ended."""

    ok: bool
    code: int  # for the shell
    said: str  # what was distributed, or why it failed


def start(request: LaunchRequest, environ: Mapping[str, str], cores: tuple[int, ...]) -> Ended:
    """From what was asked for to the run's end. UsageError if it can't be started.

    The folder of checkpoints is locked before anybody looks into it.
    """
    run = new_run()
    check_split(request)
    with contextlib.ExitStack() as stack:
        claimed = None
        if request.checkpoint is not None:
            claimed = stack.enter_context(claimed_by(request.checkpoint, run))
        shell = None
        if request.ray is not None:
            wish = RayWish(request.ray, request.workers or None, request.threads)
            reservation = stack.enter_context(closing(RayReservation(wish)))
            shell, hosts = reservation.shell, reservation.hosts
            request = replace(request, hosts=hosts, workers=sum(host.slots for host in hosts))
        if request.hosts is None:
            return launch(make_plan(request, environ, cores, run, inventory=read_inventory(environ)), environ, claimed)
        plan, hosted = stack.enter_context(planned_on_hosts(request, environ, cores, run, shell))
        return launch(plan, environ, claimed, hosted)


def launch(
    plan: LaunchPlan,
    environ: Mapping[str, str],
    claimed: int | None = None,
    hosted: HostedRun | None = None,
    key: RunKey | None = None,
) -> Ended:
    """Run it to its end. `claimed`: the lock on the folder of its checkpoints, which is held as long as it lives.

    `hosted`: its part on other hosts, if it has one. `key`: the one that others have already; None: a new one.
    """
    config = plan.config
    logs_folder = logs.prepare(Path(config.logs), prune=Path(config.logs).name == config.run)
    with folders.create(folders.home(environ), config.run) as folder:
        key = key or RunKey.new()
        key.save(folder / "key")
        address = config.address or folders.coordinator_address(folder)
        certificate = folders.certificate(folder, address)
        pin = certificate.pin if certificate is not None else Pin(bytes(32))  # nobody shows one on this host
        # Bound once and let go: an address in use, too long, or out of others' reach is found before anything starts.
        with closing(Listener(address, key, certificate=certificate)) as probe:
            if hosted is not None:
                hosted.order(plan, key, pin, probe)
        config.save(folder)
        with _written(JoinToken(config.run, key, pin), plan.token):
            print(report.opening(config), file=sys.stderr, flush=True)
            if not config.is_plain and (text := environment.left_over(environ)):
                say(text)
            try:
                end = supervise(plan, folder, logs_folder, environ, claimed, hosted)
            finally:
                if plan.trace is not None:
                    _write_trace(logs_folder, plan.trace)
                if config.profile is not None:
                    say(_profiled(logs_folder, ProfiledSteps(*config.profile)))
    return Ended(end.ok, end.code, report.summary(end, config) if end.ok else report.closing(end, config))


def supervise(
    plan: LaunchPlan,
    folder: Path,
    logs_folder: Path,
    environ: Mapping[str, str],
    claimed: int | None = None,
    hosted: HostedRun | None = None,
) -> End:
    """From the coordinator's start to the end of all that was started, in the run's folder."""
    config = plan.config
    kept_logs = logs.Logs(logs_folder, say)
    supervision = Supervision(plan.members, plan.max_restarts, SAVING if config.saving is not None else ENDING)
    # All that are expected, those of other hosts too: whoever is started later gets another number.
    servers = config.servers.count if config.servers is not None else 0
    expected = [
        *(f"worker-{number}" for number in range(config.workers)),
        *(f"server-{number}" for number in range(servers)),
    ]
    members = list(dict.fromkeys([*expected, *(member.id for member in plan.members)]))
    elected = hosted is not None and hosted.prepare(folder, config)
    with (
        closing(HeardSignals()) as signals,
        closing(KeptFolder(folder)) as kept,
        # Closed after all others but these, so that whoever watches sees the end.
        _companions(plan, folder, environ, kept_logs),
        closing(LocalCoordination(folder, config, environ, kept_logs, members, claimed, elected)) as local,
        closing(Outputs(kept_logs, lambda id: id == logs.CHIEF, config.verbose)) as outputs,
        closing(LocalLauncher(folder, outputs, plan.preload(THIS_HOST))) as launcher,
        closing(LiveLine(folder, environ)) if plan.live else contextlib.nullcontext(),
    ):
        look_every = FOLLOW_EVERY if config.verbose else WATCH_EVERY
        coordination = local if hosted is None else hosted.begin(local, config)
        end = Supervisor(supervision, coordination, {THIS_HOST: launcher}, kept, signals, look_every).run()
        if hosted is not None:
            hosted.end(end)
        return end


@contextlib.contextmanager
def _companions(plan: LaunchPlan, folder: Path, environ: Mapping[str, str], kept_logs: logs.Logs) -> Iterator[None]:
    """What was asked for that goes on beside the run: its page, and what exports its spans."""
    with contextlib.ExitStack() as stack:
        for companion in plan.companions:
            stack.enter_context(closing(Companion(companion, folder, environ, kept_logs, say)))
        yield


def _write_trace(logs_folder: Path, file: Path) -> None:
    """However the run has ended, and whatever becomes of the trace: it is not the run's."""
    try:
        say(f"trace: {write_trace(logs_folder, file)}, in {file}. Open it at https://ui.perfetto.dev")
    except UsageError as error:
        say(f"there is no trace: {error}")


def _profiled(logs_folder: Path, steps: ProfiledSteps) -> str:
    folder = logs_folder / PROFILES
    if not folder.is_dir():
        return f"there is no profile: {steps} did not come, or the workers' logs say why"
    return f"the profiles of {steps} are in {folder}, for `tensorboard --logdir {folder}`"


@contextlib.contextmanager
def _written(token: JoinToken, path: Path | None) -> Iterator[None]:
    """What a joining host needs lies there as long as the run lasts; then it is worth nothing."""
    if path is None:
        yield
        return
    try:
        token.save(path)
    except OSError as error:
        raise UsageError(f"can't write the key file {path}: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)

"""What somebody asks from another terminal: that one leaves, that there are more or fewer, to come in, how it goes.

Pure: the run as it is goes in, and what to make of a request comes out; membership.py does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.cluster.membership.member_state import MemberState
from shoal.cluster.messages import (
    Answer,
    Beat,
    CheckpointRequest,
    DrainRequest,
    End,
    JoinerPlace,
    MemberStatus,
    PlaceRequest,
    RunOutcome,
    ScaleRequest,
    StatusReply,
    WorkDone,
)
from shoal.cluster.view import Member, Role, View, number_of, role_of
from shoal.config import RunConfig
from shoal.observe.counters import WorkerFigures
from shoal.observe.time_shares import TimeShares

GUESTS = 1000  # the number of the first worker from another terminal or host; the launcher's own count from 0


@dataclass(frozen=True, slots=True)
class RunAsked:
    """The run as it is when somebody asks."""

    config: RunConfig
    members: Mapping[str, MemberState]
    view: View | None
    is_over: bool
    most: int  # workers that are wanted


@dataclass(frozen=True, slots=True)
class Granted:
    """What to do, and what to answer."""

    answer: Answer | JoinerPlace
    most: int  # workers that are wanted from now on
    leaving: tuple[str, ...] = ()
    why: str = ""  # they leave
    more: int = 0  # workers to start
    newcomer: str | None = None  # who is expected
    saves: bool = False  # a checkpoint is due


AnyRequest = DrainRequest | ScaleRequest | CheckpointRequest | PlaceRequest


def decide(request: AnyRequest, run: RunAsked) -> Granted:
    """What to make of a request."""
    if run.is_over:
        return _refuse(run, "the run is over")
    if isinstance(request, PlaceRequest) and _is_awaited(request.member, run):
        return Granted(JoinerPlace(request.member, run.config), run.most)
    if run.view is None:
        return Granted(Answer(False, "the run has not begun yet", again=True), run.most)
    match request:
        case PlaceRequest():
            return _place(run, request.own, request.role)
        case DrainRequest(id):
            return _drain(id, run)
        case ScaleRequest(workers):
            return _scale(workers, run.view, run)
        case CheckpointRequest():
            return _save(run)


def _is_awaited(id: str, run: RunAsked) -> bool:
    """Whether this member was planned from the start, and nobody has come in its place yet."""
    state = run.members.get(id)
    return state is not None and number_of(id) < run.config.workers and state.member is None and state.counts


def _place(run: RunAsked, own: bool, role: Role) -> Granted:
    if run.config.least is None:
        return _refuse(run, "this run takes nobody in: it was started without --key-file, or with --fail-fast")
    if role == "server" and not (own and run.config.servers is not None):
        return _refuse(run, "servers come only from hosts that a run with parameter servers was started on")
    numbers = [number_of(id) for id in run.members if role_of(id) == role and (not own or number_of(id) < GUESTS)]
    id = f"{role}-{max(0 if own else GUESTS, 1 + max(numbers, default=-1))}"
    return Granted(JoinerPlace(id, run.config), run.most, newcomer=id)


def _drain(id: str, run: RunAsked) -> Granted:
    here = [other for other, state in run.members.items() if state.counts and state.link is not None]
    if id not in here:
        return _refuse(run, f"there is no {id} in the run; there is {', '.join(here)}")
    if role_of(id) == "server":
        return _refuse(run, f"{id} is a server; only workers can leave so far")
    if run.config.least is None:
        return _refuse(run, f"this run was started with --fail-fast: without {id} it could not go on")
    most = max(run.config.least, run.most - 1)
    return Granted(Answer(True, f"{id} leaves after its step"), most, (id,), "somebody asked for it with `shoal drain`")


def _scale(workers: int, view: View, run: RunAsked) -> Granted:
    if run.config.least is None or workers < run.config.least:
        least = run.config.least or run.config.workers
        return _refuse(run, f"this run needs at least {least} workers: `shoal run -n MIN:MAX` sets that")
    here = sorted((member.number, member.id) for member in view.workers if run.members[member.id].counts)
    coming = sum(role_of(id) == "worker" and state.counts and not view.has(id) for id, state in run.members.items())
    return Granted(
        Answer(True, f"{counted(len(here), 'worker')} now, {workers} soon"),
        workers,
        tuple(id for _, id in here[workers:]),
        f"scaled to {workers}",
        max(0, workers - len(here) - coming),
    )


def _save(run: RunAsked) -> Granted:
    if run.config.saving is None:
        return _refuse(run, "this run writes no checkpoints: `shoal run --checkpoint DIR` says where")
    return Granted(Answer(True, "a checkpoint is written after the next step of a fit"), run.most, saves=True)


def _refuse(run: RunAsked, text: str) -> Granted:
    return Granted(Answer(False, text), run.most)


def status(
    run: RunAsked, coordinator: Member, started: float, now: float, losses: int, end: End | None = None
) -> StatusReply:
    """The run as it is known now."""
    config = run.config
    return StatusReply(
        run=config.run,
        script=config.script,
        backend=config.backend,
        strategy=config.strategy,
        pieces=_pieces(run),
        threads=config.threads,
        view=run.view.number if run.view else 0,
        uptime=now - started,
        logs=config.logs,
        members=(
            _line(coordinator, "serving"),
            *(_line_of(id, state, run.view, now) for id, state in run.members.items()),
        ),
        devices=config.devices.found if config.devices is not None else "",
        mesh=config.mesh or "",
        losses=losses,
        ended=RunOutcome(end.ok, end.reason) if end is not None else None,
        wanted=run.most,
        plan=_plan(run),
    )


def _plan(run: RunAsked) -> str:
    """That the workers train by; the chief's, if some have not heard of another one yet."""
    told = (run.members[member.id].beat.plan for member in run.view.workers) if run.view else iter(())
    return next((plan for plan in told if plan), "")


def _pieces(run: RunAsked) -> int:
    """That a batch is cut into: as the workers say, else as they begin."""
    told = (run.members[member.id].beat.pieces for member in run.view.workers) if run.view else iter(())
    return max(told, default=0) or run.config.pieces or run.config.workers


def _line_of(id: str, state: MemberState, view: View | None, now: float) -> MemberStatus:
    member = state.member or Member(id, role_of(id), 0, host="", machine="", address="")
    # Of one that is done, all of its time counts; of the others, what they did lately.
    about: WorkDone | Beat = state.work if state.done else state.beat
    return _line(member, _word(id, state, view), state.beat, now - state.heard, about.spent, about.counted)


def _word(id: str, state: MemberState, view: View | None) -> str:
    if state.trouble:
        return "lost"
    if state.done or state.left:
        return "finished"
    if role_of(id) == "server" and state.member:
        return "serving"
    if view and view.has(id):
        return "training"
    if state.ready is not None:
        return "ready"
    return "joined" if state.member else "starting"


def _line(
    member: Member,
    state: str,
    beat: Beat | None = None,
    silent: float = 0.0,
    spent: TimeShares = TimeShares(),  # noqa: B008
    counted: WorkerFigures = WorkerFigures(),  # noqa: B008
) -> MemberStatus:
    return MemberStatus(
        id=member.id,
        role=member.role,
        pid=member.pid,
        host=member.host,
        state=state,
        step=beat.step if beat else 0,
        phase=str(beat.doing.phase) if beat else "",
        doing=str(beat.doing) if beat else "",
        samples_per_second=beat.samples_per_second if beat else 0.0,
        silent=silent,
        spent=spent,
        memory=beat.memory if beat else 0,
        logs=beat.logs if beat else {},
        counted=counted,
    )


def counted(count: int, what: str) -> str:
    """So many of them, in words."""
    return f"{count} {what}{'' if count == 1 else 's'}"

"""What a supervisor does about what it sees and hears: events and the time in, actions out. Pure.

It decides nothing about the run. It starts what the plan has, and others in the place of the dead; it tells the
coordinator what it sees, and carries out the coordinator's End.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals

from shoal.cluster.exits import ENDED, INTERRUPTED
from shoal.cluster.launcher_pipe import Dying, Interrupt, MemberTold, Reaped, Spawned, Wanted
from shoal.cluster.messages import End
from shoal.cluster.trouble import ending
from shoal.cluster.view import role_of
from shoal.launch.plan import ProcessPlan
from shoal.launch.supervision.coordination import CoordinatorOrder, PlaceGiven
from shoal.launch.supervision.farewell import (
    AFTER_FAILURE,
    AFTER_SUCCESS,
    AT_ONCE,
    ON_INTERRUPT,
    Farewell,
    InterruptPolicy,
)
from shoal.launch.supervision.launcher import MemberEvent
from shoal.launch.supervision.restarts import Restarts
from shoal.wire.messages import Message

NOT_REPLACED = (0, ENDED, INTERRUPTED)  # exit codes of members that left on purpose


# What happens, besides what launchers and coordinators tell -------------------------------------------


@dataclass(frozen=True, slots=True)
class InterruptHeard:
    """Somebody wants an end."""

    why: str
    code: int  # to exit with


@dataclass(frozen=True, slots=True)
class FolderDeleted:
    """The run's folder was deleted."""

    folder: str
    lost: str = ""  # why it can't be made anew; empty: it was


# What is to be done -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartMember:
    id: str
    plan: ProcessPlan


@dataclass(frozen=True, slots=True)
class ReleaseMember:
    """It may begin. A coordinator refuses whom it has not been told of."""

    id: str
    plan: ProcessPlan


@dataclass(frozen=True, slots=True)
class AskForPlace:
    """Of the coordinator, which gives it with `PlaceGiven`."""

    plan: ProcessPlan


@dataclass(frozen=True, slots=True)
class TellCoordinator:
    message: Message


@dataclass(frozen=True, slots=True)
class SignalMembers:
    number: Signals


@dataclass(frozen=True, slots=True)
class MarkInterrupted:
    """Before anybody gets a SIGINT: it is no error of the script."""


@dataclass(frozen=True, slots=True)
class ShowUser:
    text: str
    apart: bool = False  # from what the terminal shows after a Ctrl-C


SupervisionEvent = MemberEvent | CoordinatorOrder | InterruptHeard | FolderDeleted
SupervisionAction = (
    StartMember | ReleaseMember | AskForPlace | TellCoordinator | SignalMembers | MarkInterrupted | ShowUser
)


@dataclass(slots=True)
class _Started:
    """A member."""

    plan: ProcessPlan
    pid: int | None = None  # once it is there
    code: int | None = None  # once it has ended

    @property
    def lives(self) -> bool:
        return self.pid is not None and self.code is None


class Supervision:
    """The members of one run that are started from here."""

    def __init__(self, plans: Sequence[ProcessPlan], max_restarts: int, policy: InterruptPolicy) -> None:
        self._workers = [plan for plan in plans if role_of(plan.id) == "worker"]
        self._unstarted = deque(plans)
        self._policy = policy
        self._restarts = Restarts(max_restarts)
        self._members: dict[str, _Started] = {}
        self._asked: list[ProcessPlan] = []  # places that are not given yet
        self._lost: set[str] = set()  # who ended before the run did
        self._interrupts = 0
        self._farewell = Farewell()
        self._end: End | None = None

    @property
    def is_over(self) -> bool:
        """The run has ended, and nobody is left."""
        return self._end is not None and not any(member.lives for member in self._members.values())

    def outcome(self) -> End:
        """Of a run that is over."""
        assert self._end is not None
        codes = {id: member.code for id, member in self._members.items() if member.code is not None}
        return with_late_deaths(self._end, codes, self._lost)

    def patience(self, now: float, most: float) -> float:
        """Seconds until something is to be done, unless something happens; at most so many."""
        if self._unstarted:
            return 0.0
        left = self._farewell.left(now)
        return most if left is None else min(left, most)

    def due(self, now: float) -> list[SupervisionAction]:
        """What it is time for. Members are started one at a time: who asked for too many can end it meanwhile."""
        acts: list[SupervisionAction] = []
        if self._interrupts or self._end is not None:
            self._unstarted.clear()
        if self._unstarted:
            plan = self._unstarted.popleft()
            acts.append(self._start(plan.id, plan))
        return [*acts, *map(SignalMembers, self._farewell.take(now))]

    def handle(self, event: SupervisionEvent, now: float) -> list[SupervisionAction]:
        """What is to be done about it."""
        match event:
            case Spawned(id, pid):
                self._members[id].pid = pid
                return [TellCoordinator(event), ReleaseMember(id, self._members[id].plan)]
            case Dying():
                return [TellCoordinator(event)]
            case Reaped(id, code):
                return [TellCoordinator(event), *self._see_death(id, code, now)]
            case PlaceGiven(id, plan):
                self._asked.remove(plan)
                return [] if self._interrupts or self._end is not None else [self._start(id, plan)]
            case Wanted(workers):
                if not self._workers:
                    return [
                        ShowUser("this host has no workers, so none can be added here: use `shoal join` on another")
                    ]
                return [self._ask(self._spare_plan()) for _ in range(workers)]
            case MemberTold(text):
                return [ShowUser(text)]
            case InterruptHeard(why, code):
                return self._interrupt(why, code, now)
            case FolderDeleted(folder, lost):
                return self._miss_folder(folder, lost, now)
            case End():
                self._finish(event, now)
                return []

    # Starting ---------------------------------------------------------------------------------------

    def _start(self, id: str, plan: ProcessPlan) -> SupervisionAction:
        self._members[id] = _Started(plan)
        return StartMember(id, plan)

    def _ask(self, plan: ProcessPlan) -> SupervisionAction:
        self._asked.append(plan)
        return AskForPlace(plan)

    def _spare_plan(self) -> ProcessPlan:
        """What one more worker is started with: as those whose cores are used least."""
        started = [member.plan for member in self._members.values() if member.code is None]
        used = Counter(plan.id for plan in (*started, *self._asked))
        return min(self._workers, key=lambda plan: used[plan.id])

    def _see_death(self, id: str, code: int, now: float) -> list[SupervisionAction]:
        """Let another come in the place of a member that died, unless too many have died there."""
        member = self._members[id]
        member.code = code
        if self._end is not None:
            return []
        self._lost.add(id)
        if self._interrupts or code in NOT_REPLACED:
            return []
        place = member.plan.id
        if self._restarts.grant(place, now):
            return [self._ask(member.plan)]
        if not self._restarts.most:
            return []
        text = f"{place} was replaced {self._restarts.most} times within an hour; the run goes on without it"
        return [ShowUser(text)]

    # Ending -----------------------------------------------------------------------------------------

    def _interrupt(self, why: str, code: int, now: float) -> list[SupervisionAction]:
        self._interrupts += 1
        acts: list[SupervisionAction] = [MarkInterrupted(), TellCoordinator(Interrupt(why, code))]
        if self._interrupts > 1:
            self._farewell.bid(AT_ONCE, now)
            return acts
        self._farewell.bid(self._policy.first, now)
        return [*acts, ShowUser(f"{self._policy.says}; a second Ctrl-C ends it at once", apart=True)]

    def _miss_folder(self, folder: str, lost: str, now: float) -> list[SupervisionAction]:
        """Whoever is started next finds in it what it needs; whoever runs already does without it for a while.

        If it is lost nobody can be started any more, and those who are left can't meet anew: better to end while all
        are there.
        """
        if not lost:
            return [ShowUser(f"{folder}, the run's folder, was deleted; it is made anew, training goes on")]
        reason = f"its folder was deleted, and can't be made anew: {lost}"
        if self._policy.saves and self._end is None and not self._interrupts:
            return self._interrupt(reason, 1, now)
        return [ShowUser(f"the run goes on as long as nobody is lost: {reason}")]

    def _finish(self, end: End, now: float) -> None:
        self._end = end
        if not self._interrupts:
            self._farewell.bid(AFTER_SUCCESS if end.ok else AFTER_FAILURE, now)
        elif self._interrupts == 1 and self._policy.saves:
            self._farewell.bid(ON_INTERRUPT, now)  # the checkpoint is written: whoever is there has not heard of it


def with_late_deaths(end: End, codes: Mapping[str, int], lost: Collection[str]) -> End:
    """A worker that crashed after its script had finished is no success. Servers have nothing to finish."""
    others = {*lost, *end.culprits}  # who did not finish
    # ENDED: one that was started so late that the coordinator, which names who did not finish, had not heard of it.
    crashed = {
        id: code
        for id, code in codes.items()
        if role_of(id) == "worker" and id not in others and code not in (0, ENDED)
    }
    if not end.ok or not crashed:
        return end
    id, code = next(iter(crashed.items()))
    reason = f"{id} finished its script, but its process then {ending(code)}"
    return End(ok=False, code=1, reason=reason, culprits=tuple(crashed))

"""What happens in a run, and what follows from it: the next view, or the end. Acted upon in coordinator.py.

    forming  ── all have joined ──▶  training in view 1, 2, 3 …  ── all are done ──▶  over (ok)
       │                                │        ▲
       │                                ├────────┘ a worker is lost, leaves or is let in
       └──── nothing left to go on ─────┴──▶  over

Every view is to be taken at once by all who are in it. A loss makes one the moment it is known. A newcomer waits until
the members have agreed, by their notes, on a step between which and the next they let it in (Admit).

Servers are members too, and are watched like workers, but they are in no view: a service of the coordinator looks after
what they do.

A run without a minimum (`least` is None) ends with its first loss. It gathers for a moment what else there is to know:
that the process was killed and by what, that the other workers raised the same error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from shoal.cluster.coordinator_service import CoordinatorService
from shoal.cluster.events import (
    Decision,
    Ending,
    Event,
    Exited,
    HangUp,
    Interrupted,
    KeepSpans,
    KeepStory,
    LinkClosed,
    Noted,
    ReportTrouble,
    RunOver,
    Said,
    ShowStack,
    Started,
    Tell,
    Tick,
    WantWorkers,
)
from shoal.cluster.membership.finished_calls import FinishedCalls
from shoal.cluster.membership.joining import Offers, objection
from shoal.cluster.membership.loss_reports import LossReports
from shoal.cluster.membership.losses import LossJudge
from shoal.cluster.membership.member_state import MemberState
from shoal.cluster.membership.patience import News, Wait, for_joining, going_on
from shoal.cluster.membership.remembered import Remembered
from shoal.cluster.membership.requests import AnyRequest, RunAsked, decide, status
from shoal.cluster.membership.roster import Roster
from shoal.cluster.membership.service_caller import ServiceCaller
from shoal.cluster.membership.verdicts import fault, good_end, may_have_ended_the_script
from shoal.cluster.membership_record import LogBase, LogChange, MembershipRecord
from shoal.cluster.messages import (
    Admit,
    Beat,
    Candidates,
    Caught,
    CheckpointRequest,
    ClockTold,
    Complaint,
    Decline,
    Done,
    Drain,
    DrainRequest,
    End,
    Failed,
    Finished,
    Join,
    Leave,
    PlaceRequest,
    Post,
    Ready,
    RefusalReason,
    Refuse,
    SaveNow,
    ScaleRequest,
    ServiceMessage,
    SpansRecorded,
    StatusReply,
    StatusRequest,
    StoryTold,
    ViewChange,
)
from shoal.cluster.trouble import Absent, Died, ScriptRaised, Trouble, Unlike, Vanished, explain
from shoal.cluster.view import Member, View, role_of
from shoal.config import RunConfig
from shoal.errors import BadFrame
from shoal.observe.phases import Activity, Phase
from shoal.wire.messages import Message

GATHERING = 0.3  # seconds from the first trouble to the verdict
LEAVING = 60.0  # seconds that workers get to write a last checkpoint when the run is interrupted
SERVERLESS = 10.0  # seconds without any server, and none that was started, after which a run that needs one ends


class Membership:
    """The coordinator's decisions. One instance is one run; `now` never goes back."""

    def __init__(
        self,
        config: RunConfig,
        coordinator: Member,
        now: float,
        service: CoordinatorService | None = None,
        *,
        record: MembershipRecord | None = None,
        finished: Sequence[int] = (),
    ) -> None:
        self.view: View | None = record.view if record is not None else None
        self.end: End | None = None
        self._config = config
        self._coordinator = coordinator
        self._deadlines = config.deadlines
        self._most = record.most if record is not None else config.workers
        self._started = now
        # Of one that took over: until when the launcher may still say whom it has started.
        self._hears_until = now + self._deadlines.connect if record is not None else now
        self._roster = Roster.recorded(record, now) if record is not None else Roster.expected(config, now)
        self._judge = LossJudge(self._roster.members, self._deadlines, now)
        self._service = ServiceCaller(service, self._roster)
        self._finished = FinishedCalls(self._roster, finished)
        self._remembered = Remembered(record.posts if record is not None else ())
        self._reports = LossReports(
            self._roster,
            self._judge,
            owed=record.owed if record is not None else (),
            losses_before=record.losses if record is not None else 0,
        )
        self._offers = Offers()
        self._news = News()
        self._reference = record.reference if record is not None else None  # the first that asked: all must be like it
        self._interrupted: End | None = None  # the run ends when its workers have written a last checkpoint
        self._finish_at = 0.0
        self._served = now  # when there last was a server, or one that was started
        self._renew_at: float | None = None  # when members that can't reach each other get a fresh view

    @classmethod
    def restored(
        cls,
        record: MembershipRecord,
        config: RunConfig,
        coordinator: Member,
        now: float,
        service: CoordinatorService | None = None,
        *,
        finished: Sequence[int] = (),
    ) -> Membership:
        """Goes on where another coordinator died. The members will join again; who does not is lost.

        `finished`: the calls whose results are kept.
        """
        return cls(config, coordinator, now, service, record=record, finished=finished)

    # What the shell asks ----------------------------------------------------------------------------

    def record(self) -> MembershipRecord | None:
        """What must not be forgotten, besides results and what its service knows; None as long as there is nothing."""
        outline = self._outlined()
        return self._remembered.record(outline) if outline is not None else None

    def whole(self) -> LogBase | None:
        """What a log begins with; None as long as there is nothing to remember."""
        outline = self._outlined()
        return self._remembered.whole(outline, self._service.record()) if outline is not None else None

    def changes(self) -> LogChange | None:
        """What has changed since this was last asked, however little; None if nothing has."""
        return self._remembered.changes(self._outlined(), self._service.changes())

    def _outlined(self) -> MembershipRecord | None:
        """The record but for its posts, of which there may be many."""
        if self.view is None or self._reference is None:
            return None
        roster, reports = self._roster, self._reports
        return MembershipRecord(
            self.view,
            self._most,
            tuple(roster.members),
            roster.uncounted(),
            self._reference,
            (),
            tuple(roster.servers().values()),
            reports.unheard(),
            reports.losses,
        )

    def link_of(self, id: str) -> int | None:
        """Over which a member is heard, if it is."""
        return self._roster.link_of(id)

    def member_at(self, link: int) -> str | None:
        """Who is heard over it."""
        return self._roster.id_at(link)

    def suspects(self, now: float) -> tuple[Member, ...]:
        """Members that missed a few beats: the shell looks at their processes before the next Tick."""
        return self._roster.silent_for(self._deadlines.silence / 4, now)

    def status(self, now: float) -> StatusReply:
        """The run as it is known now."""
        return status(self._asked(), self._coordinator, self._started, now, self._reports.losses, self.end)

    def _asked(self) -> RunAsked:
        return RunAsked(self._config, self._roster.members, self.view, self.end is not None, self._most)

    # Events -----------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take one event; return what to do, in order. What the one before decided has been done."""
        self._reports.decided(())
        decisions = self._handle(event, now)
        self._reports.decided(decisions)
        return decisions

    def _handle(self, event: Event, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        match event:
            case Said(link, StatusRequest()):
                return [Tell((link,), self.status(now)), HangUp(link)]
            case Said(link, DrainRequest() | ScaleRequest() | CheckpointRequest() | PlaceRequest() as request):
                return [*self._serve(link, request), HangUp(link)]
            case Said(link, Join()) if self.end is not None:
                return [Tell((link,), Refuse(RefusalReason.OVER, self.end.reason)), HangUp(link)]
            case _ if self.end is not None:
                return []  # the last word has been said
            case Said(link, Join() as join):
                decisions = self._join(link, join, now)
            case Said(link, message):
                decisions = self._said(link, message, now)
            case LinkClosed(link):
                self._closed(link, now)
            case Started(member):
                self._roster.expect(member, now)
            case Ending(member):
                self._ending(member, now)
            case Exited(member, code):
                self._exited(member, code, now)
            case Noted(member, step, doing):
                state = self._roster.members.get(member, MemberState())
                if not state.done and not state.trouble:
                    state.beat = msgspec.structs.replace(state.beat, step=step, doing=doing)
            case Interrupted(why, code):
                return self._interrupt(End(ok=False, code=code, reason=why), now)
            case Tick(evidence):
                # Where a loss does not end the run, a finished worker may be slow to come to a new view.
                patience = self._deadlines.silence * (1 if self._config.least is None else 2)
                self._judge.tick(self.view, evidence, patience, now)
                decisions = [*self._reports.overdue(), *self._remark(now), *self._service.tick(now)]
        decisions += self._settle(now)
        if self.view is not None and self.end is None:
            decisions += self._service.take(self.view, now)
        return decisions

    def _closed(self, link: int, now: float) -> None:
        id = self._roster.hang_up(link)
        if id is not None:
            state = self._roster.members[id]
            if state.code is not None:
                self._exited(id, state.code, now)
            elif not state.left:
                self._judge.note(id, Vanished(state.whereabouts(now)), now)

    def _ending(self, id: str, now: float) -> None:
        state = self._roster.members.get(id)
        # One that has finished, or has yet to join, is not missed.
        if state is not None and state.counts and not state.done and self._roster.takes_part(id, self.view):
            self._judge.note(id, Vanished(state.whereabouts(now)), now)

    def _exited(self, id: str, code: int, now: float) -> None:
        state = self._roster.members[id]
        if code >= 0 and state.link is not None:
            state.code = code  # it ended of its own accord: its last words, which may be Leave, are on their way
        elif not state.left:
            self._judge.note(id, Died(state.whereabouts(now), code), now)

    def _interrupt(self, end: End, now: float) -> list[Decision]:
        if self._config.saving is None or self.view is None or self._interrupted is not None:
            return self._finish(end)
        self._interrupted, self._finish_at = end, now + LEAVING
        return self._drain(self._roster.workers(), end.reason)

    def _remark(self, now: float) -> list[Decision]:
        """What the user is told of a wait that has become long."""
        long = self._news.of(self._wait(now))
        return [ReportTrouble(long.text), *map(ShowStack, long.late)] if long is not None else []

    def _wait(self, now: float) -> Wait | None:
        if self.view is not None:
            return going_on(self.view, self._roster, self._deadlines, now)
        missing = [id for id, state in self._roster.needed(self._most) if state.member is None]
        return for_joining(missing, now - self._started, self._deadlines.start)

    # What members say -------------------------------------------------------------------------------

    def _join(self, link: int, join: Join, now: float) -> list[Decision]:
        id = join.member.id
        if self._roster.id_at(link) == id:
            return []  # said twice
        refusal, self._reference = objection(join, self._roster.members, self._reference)
        if refusal is None:
            state = self._roster.seat(link, join.member, now)
            if isinstance(state.trouble, Absent):  # better late than never
                self._judge.pardon(id)
                self._reports.withdraw(id)
            posts = [Tell((link,), post) for post in self._remembered.posts]
            if self.view is None:
                return [*posts]
            late = (ViewChange(self.view), Candidates(self._offers.made))
            return [*posts, *self._finished.tell(link), *(Tell((link,), message) for message in late)]
        if refusal.reason is RefusalReason.UNKNOWN_MEMBER and now < self._hears_until:
            return [HangUp(link)]  # it comes again, and by then the launcher has told who it is
        if refusal.reason is RefusalReason.UNLIKE:
            self._judge.note(id, Unlike(refusal.text), now)
        return [Tell((link,), refusal), HangUp(link)]

    def _said(self, link: int, message: Message, now: float) -> list[Decision]:
        id = self._roster.id_at(link)
        if id is None:
            refusal = Refuse(RefusalReason.NOT_JOINED, f"{type(message).__name__} came before Join")
            return [Tell((link,), refusal), HangUp(link)]
        state = self._roster.members[id]
        state.heard = now
        if state.left or (not state.counts and not isinstance(message, Failed)):
            return []  # nothing that a lost member says is heeded, except why it was lost
        match message:
            case Beat(clock=clock):
                state.beat = message
                if clock is not None:
                    return [Tell((link,), ClockTold(clock, now, self._coordinator.machine))]
            case SpansRecorded(frame):
                return [KeepSpans(id, frame)]
            case StoryTold():
                return [KeepStory(id, message)]
            case Failed():
                self._failed(id, message, now)
            case Done(step, work):
                state.done_at = state.done_at if state.done else now
                state.done, state.work = True, work
                state.beat = Beat(step, Activity(Phase.FINISHED), memory=state.beat.memory)
            case Post():
                self._remembered.post(message)
                return [Tell(self._roster.links(), message)]
            case Ready(call):
                if call not in self._finished and (self.view is None or not self.view.has(id)):
                    state.ready = call
            case ServiceMessage(content):
                try:
                    return self._service.hear(id, content, now)
                except BadFrame:
                    return [HangUp(link)]
            case Finished():
                return self._finished.finish(message, self.view)
            case Caught(call, next, outcome) if self.view is not None and self.view.has(id):
                return self._leave_call(self.view, call, next, outcome, now)
            case Caught():
                pass  # it took no part: the others go on
            case Admit(view, candidates):
                return self._admit(view, candidates)
            case Decline(view, newcomers):
                return self._decline(view, newcomers)
            case Complaint() as complaint:
                is_ours = self.view is not None and complaint.view == self.view.number
                if is_ours and self.view is not None and self._judge.complain(self.view, id, complaint, now):
                    self._renew_at = self._renew_at or now + GATHERING  # if one of them is dead, that is known by then
            case Leave():
                state.left = True
                return [ReportTrouble(f"{id} has left the run")]
            case _:
                raise TypeError(f"{type(message).__name__} is not a member's message")
        return []

    def _failed(self, id: str, failed: Failed, now: float) -> None:
        state = self._roster.members[id]
        state.beat = Beat(failed.step, failed.doing)
        # Only a member of the run can be the cause; an error about anything else is its own.
        blamed = tuple(other for other in failed.blames if other in self._roster.members)
        self._judge.note(id, ScriptRaised(state.whereabouts(now), msgspec.structs.replace(failed, blames=blamed)), now)
        if failed.late:
            self._judge.lose_overdue(self.view, id, blamed, now)

    def _leave_call(self, view: View, call: int, next: int, outcome: bytes, now: float) -> list[Decision]:
        """A worker has left a call with an error: so do all, since none of them could end it without the others."""
        if call < view.call:
            return []  # another's word came first
        known = self._finished.leave(call, outcome)
        abandoned = self._service.abandon(call, now)
        return [*known, *self._publish(view.workers, next), *abandoned]

    def _admit(self, view: int, candidates: tuple[str, ...]) -> list[Decision]:
        if self.view is None or view != self.view.number:
            return []  # another member's word came first
        wanted = [self._roster.members[id] for id in candidates if id in self._roster.members]
        newcomers = [state.member for state in wanted if state.counts and state.member and state.ready is not None]
        return self._publish([*self.view.workers, *newcomers])

    def _decline(self, view: int, newcomers: tuple[str, ...]) -> list[Decision]:
        # The chief has been there for longest: it is no newcomer.
        if self.view is None or view != self.view.number or self.view.chief.id in newcomers:
            return []
        # Calls that ended while they were in the view: they were not told of these.
        untold = self._finished.tell(*self._roster.links_of(newcomers))
        return [*untold, *self._publish([m for m in self.view.workers if m.id not in newcomers])]

    def _serve(self, link: int, request: AnyRequest) -> list[Decision]:
        """What somebody asks from another terminal."""
        granted = decide(request, self._asked())
        self._most = granted.most
        if granted.newcomer is not None:
            self._roster.expect(granted.newcomer, 0.0)
        more: list[Decision] = [WantWorkers(granted.more)] if granted.more else []
        offer = self._offer(self.view) if self.view and not self.end else []
        saves: list[Decision] = [Tell(self._roster.links(), SaveNow())] if granted.saves else []
        return [Tell((link,), granted.answer), *self._drain(granted.leaving, granted.why), *more, *offer, *saves]

    def _drain(self, ids: Sequence[str], why: str) -> list[Decision]:
        links = self._roster.links_of(ids)
        return [Tell(links, Drain(why))] if links else []

    # Consequences -----------------------------------------------------------------------------------

    def _settle(self, now: float) -> list[Decision]:
        """What follows from all that is known by now."""
        if self._interrupted is not None:
            here = (self._roster.members[id] for id in self._roster.workers())
            if now >= self._finish_at or not any(state.member and state.counts for state in here):
                return self._finish(self._interrupted)
        noticed = self._judge.first_noticed
        if self._config.least is None and noticed is not None:
            gathered = now - noticed >= GATHERING
            if gathered or all(state.is_accounted_for() for state in self._roster.members.values()):
                return self._end_with(self._judge.troubles())
            return []
        if (again := fault(self._roster, self._judge, self.view, now)) is not None:
            return self._end_with(again)
        return self._form(now) if self.view is None else self._go_on(self.view, now)

    def _form(self, now: float) -> list[Decision]:
        """View 1, once everyone who may still come is there."""
        needed = self._roster.needed(self._most)
        members = [state.member for id, state in needed if state.member and role_of(id) == "worker"]
        if not members or any(state.member is None for _, state in needed):
            return []
        return [*self._reports.report(len(members), now), *self._publish(members)]

    def _go_on(self, view: View, now: float) -> list[Decision]:
        counting = self._roster.of_view(view)
        remaining = [member for member in view.workers if member.id in counting]
        if not remaining and not self._judge.troubles():
            return self._finish(End(False, 1, "every worker has left the run"))
        if not remaining and self._judge.may_explain(now):
            return []
        if not remaining:
            return self._end_with(self._reports.news() or self._judge.troubles())
        if all(state.done for state in counting.values()):
            losses = self._reports.report(len(remaining), math.inf)  # nothing more will be known about them
            works = [state.work for state in counting.values()]
            return [*losses, *self._finish(good_end(works, self._roster.unfinished(), self._reports.losses))]
        if self._roster.expected_servers() or self._config.servers is None:
            self._served = now
        elif now - self._served > SERVERLESS:
            return self._end_with(self._judge.troubles())
        decisions = self._reports.report(len(remaining), now)
        renew = self._renew_at is not None and now >= self._renew_at
        chief = view.chief.id
        if (renew or len(remaining) < len(view.workers)) and not may_have_ended_the_script(
            chief, self._roster, self._judge, view, now
        ):
            decisions += self._publish(remaining)
        assert self.view is not None
        if welcome := self._service.welcomes(self.view, self._most):
            decisions += self._admit(self.view.number, welcome)
        return decisions + self._offer(self.view)

    def _offer(self, view: View) -> list[Decision]:
        """Tell the members whom they could let in, when that has changed."""
        news = self._offers.renew(self._roster.members, view, self._most)
        return [Tell(self._roster.links(), news)] if news is not None else []

    def _publish(self, members: Sequence[Member], call: int | None = None) -> list[Decision]:
        """The next view. Those who are not in it, and can hear, are told too. `call`: those before it are over."""
        number = self.view.number + 1 if self.view else 1
        call = call if call is not None else self.view.call if self.view else 0
        self.view = View.of(number, members, len(members) >= (self._config.least or 1), call)
        self._renew_at = None
        for member in members:
            self._roster.members[member.id].ready = None
        return [Tell(self._roster.links(), ViewChange(self.view))]

    def _end_with(self, troubles: dict[str, Trouble]) -> list[Decision]:
        """They are why the run is over."""
        return self._finish(explain(troubles, len(self._roster), self._roster.done()))

    def _finish(self, end: End) -> list[Decision]:
        self.end = end
        # The launcher first: when it sees a worker's process end, it must know whether that was the run's end.
        return [RunOver(end), Tell(self._roster.links(), end)]

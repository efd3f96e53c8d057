"""Who is in the run and when it is over: decided here, acted upon in coordinator.py.

Pure: events and the time go in, decisions come out; nothing here reads a clock, a file or a socket. Who is lost is
judged in losses.py, who may join in joining.py, what becomes of requests from other terminals in requests.py.

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

from shoal.cluster.coordinator_service import CoordinatorService, SayToUser, SendMessage, Wish
from shoal.cluster.events import (
    Decision,
    Ending,
    Event,
    Exited,
    Fence,
    HangUp,
    Interrupted,
    KeepResult,
    KeepSpans,
    LinkClosed,
    Noted,
    ReportTrouble,
    RunOver,
    Said,
    ShowStack,
    Started,
    Tell,
    TellResults,
    Tick,
    WantWorkers,
)
from shoal.cluster.exits import is_scripts
from shoal.cluster.joining import candidates, objection
from shoal.cluster.losses import LossJudge
from shoal.cluster.member_state import MemberState
from shoal.cluster.membership_record import LogBase, LogChange, MembershipRecord
from shoal.cluster.messages import (
    Admit,
    Beat,
    Candidate,
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
    ViewChange,
    WorkDone,
)
from shoal.cluster.patience import News, Wait, for_chief, for_exchange, for_joining, for_nobody
from shoal.cluster.requests import AnyRequest, RunAsked, counted, decide, status
from shoal.cluster.trouble import (
    Absent,
    Deserted,
    Died,
    Overdue,
    ScriptRaised,
    Silent,
    Trouble,
    Unlike,
    Unreachable,
    Vanished,
    explain,
    is_own_accord,
    same_fault,
)
from shoal.cluster.view import Member, View, role_of
from shoal.config import RunConfig
from shoal.errors import BadFrame
from shoal.observe.counters import summed
from shoal.observe.phases import Activity, Phase
from shoal.observe.time_shares import together
from shoal.wire.messages import Message

GATHERING = 0.3  # seconds from the first trouble to the verdict
LEAVING = 60.0  # seconds that workers get to write a last checkpoint when the run is interrupted
SERVERLESS = 10.0  # seconds without any server, and none that was started, after which a run that needs one ends

_FRESH = 0.3  # of the time after which silence is a loss: so long what a member said last is taken for what it does


class Membership:
    """The coordinator's decisions. One instance is one run; `now` never goes back."""

    def __init__(
        self, config: RunConfig, coordinator: Member, now: float, service: CoordinatorService | None = None
    ) -> None:
        self.view: View | None = None
        self.end: End | None = None
        self._config = config
        self._coordinator = coordinator
        self._service = service
        self._deadlines = config.deadlines
        self._most = config.workers
        self._started = now
        self._hears_until = now  # of one that took over: until when the launcher may still say whom it has started
        servers = config.servers.count if config.servers is not None else 0
        expected = (*(f"worker-{n}" for n in range(config.workers)), *(f"server-{n}" for n in range(servers)))
        self._members = {id: MemberState(heard=now) for id in expected}
        self._ids: dict[int, str] = {}  # link -> member
        self._reference: Join | None = None  # the first that asked; the others must be like it
        self._posts: dict[str, Post] = {}
        self._unwritten: dict[str, Post] = {}  # posts since `changes` was last asked
        self._outline: MembershipRecord | None = None  # as it was then
        self._finished: dict[int, None] = {}  # the calls that are over, in order
        self._judge = LossJudge(self._members, self._deadlines, now)
        self._reported: set[str] = set()
        self._losses_before = 0  # that another coordinator saw
        self._owed: tuple[str, ...] = ()  # reports that another coordinator did not come to
        self._telling: tuple[str, ...] = ()  # reports of the last event: told when the next one comes
        self._offered: tuple[Candidate, ...] = ()
        self._interrupted: End | None = None  # the run ends when its workers have written a last checkpoint
        self._finish_at = 0.0
        self._served = now  # when there last was a server, or one that was started
        self._news = News()
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
        self = cls(config, coordinator, now, service)
        self.view = record.view
        self._most = record.most
        self._reference = record.reference
        self._members.clear()
        self._members |= {id: MemberState(heard=now, left=id in record.lost) for id in record.members}
        for member in (*record.view.workers, *record.servers):
            state = self._members[member.id]
            state.member, state.worked = member, now
        self._posts = {post.name: post for post in record.posts}
        self._finished = dict.fromkeys(finished)
        self._owed = record.owed
        self._losses_before = record.losses
        self._hears_until = now + self._deadlines.connect
        return self

    def record(self) -> MembershipRecord | None:
        """What must not be forgotten, besides results and what its service knows; None as long as there is nothing."""
        outline = self._outlined()
        return msgspec.structs.replace(outline, posts=tuple(self._posts.values())) if outline is not None else None

    def whole(self) -> LogBase | None:
        """What a log begins with; None as long as there is nothing to remember."""
        record = self.record()
        return LogBase(record, self._service.record() if self._service is not None else None) if record else None

    def changes(self) -> LogChange | None:
        """What has changed since this was last asked, however little; None if nothing has."""
        before, self._outline = self._outline, self._outlined()
        posts, self._unwritten = tuple(self._unwritten.values()), {}
        service = tuple(self._service.changes()) if self._service is not None else ()
        outline = self._outline if self._outline != before else None
        return LogChange(outline, posts, service) if outline or posts or service else None

    def _outlined(self) -> MembershipRecord | None:
        """The record but for its posts, of which there may be many."""
        if self.view is None or self._reference is None:
            return None
        return MembershipRecord(
            self.view,
            self._most,
            tuple(self._members),
            tuple(id for id, state in self._members.items() if not state.counts),
            self._reference,
            (),
            tuple(self._servers().values()),
            (
                *self._owed,
                *self._telling,
                *(t.sentence(id) for id, t in self._judge.troubles().items() if id not in self._reported),
            ),
            self._losses,
        )

    # What the shell asks ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take one event; return what to do, in order. What the one before decided has been done."""
        self._telling = ()
        decisions = self._handle(event, now)
        self._telling = tuple(decision.text for decision in decisions if isinstance(decision, ReportTrouble))
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
                self._members.setdefault(member, MemberState(heard=now))
            case Ending(member):
                state = self._members.get(member)
                # One that has finished, or has yet to join, is not missed.
                if state is not None and state.counts and not state.done and self._takes_part(member):
                    self._judge.note(member, Vanished(state.whereabouts(now)), now)
            case Exited(member, code):
                self._exited(member, code, now)
            case Noted(member, step, doing):
                state = self._members.get(member, MemberState())
                if not state.done and not state.trouble:
                    state.beat = msgspec.structs.replace(state.beat, step=step, doing=doing)
            case Interrupted(why, code):
                end = End(ok=False, code=code, reason=why)
                if self._config.saving is None or self.view is None or self._interrupted is not None:
                    return self._finish(end)
                self._interrupted, self._finish_at = end, now + LEAVING
                return self._drain([id for id in self._members if role_of(id) == "worker"], why)
            case Tick(evidence):
                # Where a loss does not end the run, a finished worker may be slow to come to a new view.
                patience = self._deadlines.silence * (1 if self._config.least is None else 2)
                self._judge.tick(self.view, evidence, patience, now)
                decisions = [ReportTrouble(text) for text in self._owed]
                self._owed = ()
                if (long := self._news.of(self._wait(now))) is not None:
                    decisions += [ReportTrouble(long.text), *map(ShowStack, long.late)]
                decisions += self._fulfil(self._service.tick(now)) if self._service is not None else []
        decisions += self._settle(now)
        return decisions + self._inform(now)

    def link_of(self, id: str) -> int | None:
        """Over which a member is heard, if it is."""
        state = self._members.get(id)
        return state.link if state is not None else None

    def member_at(self, link: int) -> str | None:
        """Who is heard over it."""
        return next((id for id, state in self._members.items() if state.link == link), None)

    def suspects(self, now: float) -> tuple[Member, ...]:
        """Members that missed a few beats: the shell looks at their processes before the next Tick."""
        patience = self._deadlines.silence / 4
        return tuple(
            state.member
            for state in self._members.values()
            if state.member and state.counts and now - state.heard > patience
        )

    def status(self, now: float) -> StatusReply:
        """The run as it is known now."""
        return status(self._asked(), self._coordinator, self._started, now, self._losses, self.end)

    def _asked(self) -> RunAsked:
        return RunAsked(self._config, self._members, self.view, self.end is not None, self._most)

    # Events -----------------------------------------------------------------------------------------

    def _join(self, link: int, join: Join, now: float) -> list[Decision]:
        member = join.member
        if self._ids.get(link) == member.id:
            return []  # said twice
        refusal, self._reference = objection(join, self._members, self._reference)
        if refusal is None:
            self._ids[link] = member.id
            state = self._members[member.id]
            if isinstance(state.trouble, Absent):  # better late than never
                self._judge.pardon(member.id)
                self._reported.discard(member.id)
            state.member, state.link, state.heard, state.worked = member, link, now, now
            posts = [Tell((link,), post) for post in self._posts.values()]
            if self.view is None:
                return [*posts]
            late = (ViewChange(self.view), Candidates(self._offered))
            return [*posts, *self._tell_results(link), *(Tell((link,), message) for message in late)]
        if refusal.reason is RefusalReason.UNKNOWN_MEMBER and now < self._hears_until:
            return [HangUp(link)]  # it comes again, and by then the launcher has told who it is
        if refusal.reason is RefusalReason.UNLIKE:
            self._judge.note(member.id, Unlike(refusal.text), now)
        return [Tell((link,), refusal), HangUp(link)]

    def _said(self, link: int, message: Message, now: float) -> list[Decision]:
        id = self._ids.get(link)
        if id is None:
            refusal = Refuse(RefusalReason.NOT_JOINED, f"{type(message).__name__} came before Join")
            return [Tell((link,), refusal), HangUp(link)]
        state = self._members[id]
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
            case Failed(step, doing, blames=blames):
                state.beat = Beat(step, doing)
                # Only a member of the run can be the cause; an error about anything else is its own.
                blamed = tuple(other for other in blames if other in self._members)
                failed = msgspec.structs.replace(message, blames=blamed)
                self._judge.note(id, ScriptRaised(state.whereabouts(now), failed), now)
                if message.late:
                    self._judge.lose_overdue(self.view, id, blamed, now)
            case Done(step, work):
                state.done_at = state.done_at if state.done else now
                state.done, state.work = True, work
                state.beat = Beat(step, Activity(Phase.FINISHED), memory=state.beat.memory)
            case Post(name):
                self._posts[name] = self._unwritten[name] = message
                return [Tell(self._links(), message)]
            case Ready(call):
                if call not in self._finished and (self.view is None or not self.view.has(id)):
                    state.ready = call
            case ServiceMessage(content) if self._service is not None:
                try:
                    return self._fulfil(self._service.hear(id, content, now))
                except BadFrame:
                    return [HangUp(link)]
            case Finished(call, result):
                if call not in self._finished:
                    self._finished[call] = None
                    for other in self._members.values():
                        other.ready = None if other.ready == call else other.ready  # it need not be let in any more
                    return [KeepResult(call, result), Tell(self._links(late=True), message)]
            case Caught(call, next, outcome) if self.view is not None and self.view.has(id):
                return self._leave_call(call, next, outcome, now)
            case Caught():
                pass  # it took no part: the others go on
            case Admit(view, candidates):
                return self._admit(view, candidates)
            case Decline(view, newcomers):
                # The chief has been there for longest: it is no newcomer.
                if self.view is not None and view == self.view.number and self.view.chief.id not in newcomers:
                    late = (self._members[newcomer].link for newcomer in newcomers if newcomer in self._members)
                    links = tuple(other for other in late if other is not None)
                    # Calls that ended while they were in the view: they were not told of these.
                    return [
                        *self._tell_results(*links),
                        *self._publish([m for m in self.view.workers if m.id not in newcomers]),
                    ]
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

    def _closed(self, link: int, now: float) -> None:
        id = self._ids.pop(link, None)
        if id is not None:
            state = self._members[id]
            state.link = None
            if state.code is not None:
                self._exited(id, state.code, now)
            elif not state.left:
                self._judge.note(id, Vanished(state.whereabouts(now)), now)

    def _exited(self, id: str, code: int, now: float) -> None:
        state = self._members[id]
        if code >= 0 and state.link is not None:
            state.code = code  # it ended of its own accord: its last words, which may be Leave, are on their way
        elif not state.left:
            self._judge.note(id, Died(state.whereabouts(now), code), now)

    # Waits ------------------------------------------------------------------------------------------

    def _wait(self, now: float) -> Wait | None:
        """The wait that is going on, for the user to know."""
        if self.view is None:
            missing = [id for id, state in self._needed() if state.member is None]
            return for_joining(missing, now - self._started, self._deadlines.start)
        members = {member.id: self._members[member.id] for member in self.view.workers}
        members = {id: state for id, state in members.items() if state.counts and not state.done}
        # One that was stopped in an exchange may have said so last. It does not wait: it is waited for.
        fresh = _FRESH * self._deadlines.silence
        waiting = {id: state.beat for id, state in members.items() if state.waits and now - state.heard < fresh}
        late = {id: state.whereabouts(now) for id, state in members.items() if id not in waiting}
        remark, chief = self._deadlines.remark, self.view.chief.id
        if (exchange := for_exchange(waiting, late, self._deadlines.stall, remark)) is not None:
            return exchange
        if waiting or chief not in members:
            return None
        beats = {id: state.beat for id, state in members.items()}
        return for_chief(beats, chief, late[chief], remark) or for_nobody(beats, late, remark)

    # Consequences -----------------------------------------------------------------------------------

    def _settle(self, now: float) -> list[Decision]:
        """What follows from all that is known by now."""
        if self._interrupted is not None:
            here = (state for id, state in self._members.items() if role_of(id) == "worker")
            if now >= self._finish_at or not any(state.member and state.counts for state in here):
                return self._finish(self._interrupted)
        noticed = self._judge.first_noticed
        if self._config.least is None and noticed is not None:
            gathered = now - noticed >= GATHERING
            if gathered or all(state.is_accounted_for() for state in self._members.values()):
                return self._finish(explain(self._judge.troubles(), len(self._members), self._done()))
            return []
        if (fault := self._fault(now)) is not None:
            return self._finish(explain(fault, len(self._members), self._done()))
        return self._form(now) if self.view is None else self._go_on(self.view, now)

    def _fault(self, now: float) -> dict[str, Trouble] | None:
        """Troubles that would come again whoever takes over: no use in going on."""
        troubles = self._judge.troubles()
        initial = self.view is None
        for id, trouble in troubles.items():
            if isinstance(trouble, Deserted) or (initial and isinstance(trouble, Unlike)):
                return {id: trouble}
            if initial and isinstance(trouble, Died) and trouble.code >= 0:
                return {id: trouble}  # it could not even start
            if isinstance(trouble, ScriptRaised) and trouble.failed.of_all:
                return {id: trouble}
            if isinstance(trouble, Died) and is_scripts(trouble.code) and trouble.code and self._led_the_script(id):
                return {id: trouble}  # whoever took the chief's place would come to the same line
            again = {other: it for other, it in troubles.items() if other == id or same_fault(trouble, it)}
            if len(again) > 1:
                return again
        if troubles and not self._may_explain(now) and not any(state.counts for state in self._members.values()):
            return troubles
        return None

    def _form(self, now: float) -> list[Decision]:
        """View 1, once everyone who may still come is there."""
        members = [state.member for id, state in self._needed() if state.member and role_of(id) == "worker"]
        if not members or any(state.member is None for _, state in self._needed()):
            return []
        return [*self._report_losses(len(members), now), *self._publish(members)]

    def _needed(self) -> list[tuple[str, MemberState]]:
        """Those without whom the first view can't be: servers, and workers other than standbys."""
        coming = [(id, state) for id, state in self._members.items() if state.counts]
        workers = [(id, state) for id, state in coming if role_of(id) == "worker"]
        return [*workers[: self._most], *((id, state) for id, state in coming if role_of(id) == "server")]

    def _go_on(self, view: View, now: float) -> list[Decision]:
        remaining = [member for member in view.workers if self._members[member.id].counts]
        if not remaining and not self._judge.troubles():
            return self._finish(End(False, 1, "every worker has left the run"))
        if not remaining and self._may_explain(now):
            return []
        if not remaining:
            news = {id: trouble for id, trouble in self._judge.troubles().items() if id not in self._reported}
            return self._finish(explain(news or self._judge.troubles(), len(self._members), self._done()))
        if all(self._members[member.id].done for member in remaining):
            losses = self._report_losses(len(remaining), math.inf)  # nothing more will be known about them
            return [*losses, *self._finish(self._good_end([self._members[member.id].work for member in remaining]))]
        if self._expected_servers() or self._config.servers is None:
            self._served = now
        elif now - self._served > SERVERLESS:
            return self._finish(explain(self._judge.troubles(), len(self._members), self._done()))
        decisions = self._report_losses(len(remaining), now)
        renew = self._renew_at is not None and now >= self._renew_at
        if (renew or len(remaining) < len(view.workers)) and not self._may_have_ended_the_script(view.chief.id, now):
            decisions += self._publish(remaining)
        return decisions + self._welcome() + self._offer()

    def _led_the_script(self, id: str) -> bool:
        """Whether it is the chief, in the script's own lines as far as it has said."""
        is_chief = self.view is not None and id == self.view.chief.id
        return is_chief and self._members[id].beat.doing.phase.is_scripts

    def _may_have_ended_the_script(self, id: str, now: float) -> bool:
        """It is gone from there: how its process ended, which is about to be known, tells whether the run goes on."""
        gone = isinstance(self._members[id].trouble, Vanished)
        return gone and self._led_the_script(id) and self._judge.is_fresh(id, now)

    def _may_explain(self, now: float) -> bool:
        """Whether it is about to be known how the process of one that is gone has ended."""
        troubles = self._judge.troubles()
        return any(isinstance(troubles[id], Vanished) and self._judge.is_fresh(id, now) for id in troubles)

    def _report_losses(self, remaining: int, now: float) -> list[Decision]:
        """Say who is gone and why, once; make sure that it does no more harm."""
        decisions: list[Decision] = []
        for id, trouble in self._judge.troubles().items():
            state = self._members[id]
            more = isinstance(trouble, Vanished) or is_own_accord(trouble)
            if id in self._reported or (more and self._judge.is_fresh(id, now)):
                continue  # how its process ended, or that the others did the same, is about to be known
            self._reported.add(id)
            with_whom = (
                counted(len(self._servers()), "server") if role_of(id) == "server" else counted(remaining, "worker")
            )
            decisions.append(ReportTrouble(f"{trouble.sentence(id)}; going on with {with_whom}"))
            if state.member is not None and isinstance(trouble, Silent | Unreachable | Overdue):
                decisions.append(Fence(state.member))
                decisions += [HangUp(state.link)] if state.link is not None else []
        return decisions

    def _leave_call(self, call: int, next: int, outcome: bytes, now: float) -> list[Decision]:
        """A worker has left a call with an error: so do all, since none of them could end it without the others."""
        assert self.view is not None
        if call < self.view.call:
            return []  # another's word came first
        links = self._links()
        known: list[Decision] = [TellResults(links, (call,))]
        if call not in self._finished:
            self._finished[call] = None
            known = [KeepResult(call, outcome), Tell(links, Finished(call, outcome))]
        abandoned = self._fulfil(self._service.abandon(call, now)) if self._service is not None else []
        return [*known, *self._publish(self.view.workers, next), *abandoned]

    def _tell_results(self, *links: int) -> list[Decision]:
        """What every call has returned that is over."""
        return [TellResults(links, tuple(self._finished))] if links and self._finished else []

    def _publish(self, members: Sequence[Member], call: int | None = None) -> list[Decision]:
        """The next view. Those who are not in it, and can hear, are told too. `call`: those before it are over."""
        number = self.view.number + 1 if self.view else 1
        call = call if call is not None else self.view.call if self.view else 0
        self.view = View.of(number, members, len(members) >= (self._config.least or 1), call)
        self._renew_at = None
        for member in members:
            self._members[member.id].ready = None
        return [Tell(self._links(), ViewChange(self.view))]

    # Servers and the service that looks after them ---------------------------------------------------

    def _servers(self) -> dict[str, Member]:
        """Those who are there."""
        return {
            id: state.member
            for id, state in self._members.items()
            if role_of(id) == "server" and state.counts and state.member
        }

    def _takes_part(self, id: str) -> bool:
        """Whether somebody may wait for this one: it is in the view, or serves those who are."""
        return self.view is not None and (self.view.has(id) or id in self._servers())

    def _expected_servers(self) -> int:
        """How many are there, or may be soon."""
        return sum(role_of(id) == "server" and state.counts for id, state in self._members.items())

    def _welcome(self) -> list[Decision]:
        """Let those in for whom the service has something to do at once."""
        if self._service is None or self.view is None:
            return []
        ready = ((id, state.ready) for id, state in self._members.items() if state.counts and not self.view.has(id))
        welcome = tuple(id for id, call in ready if call is not None and self._service.welcomes(call))
        free = max(0, self._most - len(self.view.workers))
        return self._admit(self.view.number, welcome[:free]) if welcome[:free] else []

    def _inform(self, now: float) -> list[Decision]:
        """Tell the service who is there."""
        if self._service is None or self.view is None or self.end is not None:
            return []
        servers = {id: member.address for id, member in self._servers().items()}
        workers = [member.id for member in self.view.workers]
        return self._fulfil(self._service.take(workers, servers, self._expected_servers(), now))

    def _fulfil(self, wishes: Sequence[Wish]) -> list[Decision]:
        decisions: list[Decision] = []
        for wish in wishes:
            match wish:
                case SendMessage(to, content):
                    members = (self._members[id] for id in to)
                    links = tuple(state.link for state in members if state.link is not None)
                    decisions += [Tell(links, ServiceMessage(content))] if links else []
                case SayToUser(text):
                    decisions.append(ReportTrouble(text))
        return decisions

    # Coming late ------------------------------------------------------------------------------------

    def _offer(self) -> list[Decision]:
        """Tell the members whom they could let in, when that has changed."""
        assert self.view is not None
        offered = candidates(self._members, self.view, self._most)
        if offered == self._offered:
            return []
        self._offered = offered
        return [Tell(self._links(), Candidates(offered))]

    def _admit(self, view: int, candidates: tuple[str, ...]) -> list[Decision]:
        if self.view is None or view != self.view.number:
            return []  # another member's word came first
        wanted = [self._members[id] for id in candidates if id in self._members]
        newcomers = [state.member for state in wanted if state.counts and state.member and state.ready is not None]
        return self._publish([*self.view.workers, *newcomers])

    def _serve(self, link: int, request: AnyRequest) -> list[Decision]:
        """What somebody asks from another terminal."""
        granted = decide(request, self._asked())
        self._most = granted.most
        if granted.newcomer is not None:
            self._members[granted.newcomer] = MemberState()
        more: list[Decision] = [WantWorkers(granted.more)] if granted.more else []
        offer = self._offer() if self.view and not self.end else []
        saves: list[Decision] = [Tell(self._links(), SaveNow())] if granted.saves else []
        return [Tell((link,), granted.answer), *self._drain(granted.leaving, granted.why), *more, *offer, *saves]

    def _drain(self, ids: Sequence[str], why: str) -> list[Decision]:
        links = tuple(link for id in ids if (link := self._members[id].link) is not None)
        return [Tell(links, Drain(why))] if links else []

    # The end ----------------------------------------------------------------------------------------

    def _finish(self, end: End) -> list[Decision]:
        self.end = end
        # The launcher first: when it sees a worker's process end, it must know whether that was the run's end.
        return [RunOver(end), Tell(self._links(), end)]

    def _good_end(self, works: Sequence[WorkDone]) -> End:
        # One that came when the last training was over knows less of it than the others.
        work = max(works, key=lambda work: (work.steps, work.samples))
        spent, counted = together(one.spent for one in works), summed(one.counted for one in works)
        work = msgspec.structs.replace(work, spent=spent, counted=counted)
        reason = "every worker finished its script"
        return End(True, 0, reason, self._unfinished(), work=work, finishers=len(works), losses=self._losses)

    @property
    def _losses(self) -> int:
        return self._losses_before + len(self._judge.troubles())

    def _unfinished(self) -> tuple[str, ...]:
        """Whose end does not matter any more: they were lost, left, or came too late to take part."""
        return tuple(id for id, state in self._members.items() if not (state.done and state.counts))

    def _done(self) -> tuple[str, ...]:
        return tuple(id for id, state in self._members.items() if state.done)

    def _links(self, late: bool = False) -> tuple[int, ...]:
        """Everyone who can be told something; or only those who came late and are not in the view yet."""
        return tuple(
            state.link
            for id, state in self._members.items()
            if state.link is not None and not (late and self.view and self.view.has(id))
        )

"""Who is in the run and when it is over: decided here, acted upon in coordinator.py.

Pure: events and the time go in, decisions come out; nothing here reads a clock, a file or a socket.

    forming  ── all have joined ──▶  training in view 1, 2, 3 …  ── all are done ──▶  over (ok)
       │                                │        ▲
       │                                ├────────┘ a worker is lost, leaves or is let in
       └──── nothing left to go on ─────┴──▶  over

Every view is to be taken at once by all who are in it. A loss makes one the moment it is known. A newcomer waits until
the members have agreed, by their notes, on a step between which and the next they let it in (Admit).

Servers have seats too, and are watched like workers, but they are in no view: a department looks after what they do.

A run without a minimum (`least` is None) ends with its first loss. It gathers for a moment what else there is to know:
that the process was killed and by what, that the other workers raised the same error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from shoal.cluster.department import Department, Say, Send, Wish
from shoal.cluster.events import (
    Closed,
    Decision,
    Ending,
    Event,
    Evidence,
    Exited,
    Fence,
    HangUp,
    Interrupted,
    Noted,
    Over,
    Report,
    Said,
    Started,
    Tell,
    Tick,
    Want,
)
from shoal.cluster.messages import (
    Admit,
    Answer,
    Beat,
    Candidate,
    Candidates,
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
    Letter,
    MemberStatus,
    Place,
    PlaceRequest,
    Post,
    Ready,
    Reason,
    Refuse,
    ScaleRequest,
    StatusReply,
    StatusRequest,
    ViewChange,
)
from shoal.cluster.trouble import (
    Absent,
    Deserted,
    Died,
    Raised,
    Silent,
    Trouble,
    Unlike,
    Unreachable,
    Vanished,
    Whereabouts,
    explain,
    same_fault,
)
from shoal.cluster.view import Member, View, number_of, role_of
from shoal.config import RunConfig
from shoal.errors import BadFrame
from shoal.wire.messages import Message

GATHERING = 0.3  # seconds from the first trouble to the verdict
COMPLAINTS = 3  # about one member within so many seconds: it is lost, whatever it says itself
COMPLAINED_WITHIN = 60.0  # and as long as the waits that they are about may have lasted
DETAILS = 1.0  # seconds from a loss to its report: how a large process ended is known only when its memory is free
GUESTS = 1000  # the number of the first worker from another terminal or host; the launcher's own count from 0
LEAVING = 60.0  # seconds that workers get to write a last checkpoint when the run is interrupted
SERVERLESS = 10.0  # seconds without any server, and none that was started, after which a run that needs one ends
UNWATCHED = 1.0  # a longer gap between two Ticks means that the coordinator itself was held up


@dataclass(slots=True)
class _Seat:
    """What is known about one worker that was expected."""

    member: Member | None = None
    link: int | None = None
    beat: Beat = field(default_factory=Beat)
    heard: float = 0.0  # when it last said anything
    worked: float = 0.0  # when its process was last seen to use the processor
    evidence: Evidence | None = None
    ready: int | None = None  # the call at which it waits to be let in
    complaints: dict[tuple[int, str], float] = field(default_factory=dict)  # view, peer -> when that could not reach it
    done: bool = False
    done_at: float = 0.0
    left: bool = False  # of its own accord, between two steps
    code: int | None = None  # with which its process ended, while its last words were still on their way
    trouble: Trouble | None = None

    @property
    def counts(self) -> bool:
        """Whether something may still be expected of it."""
        return self.trouble is None and not self.left

    def whereabouts(self, now: float) -> Whereabouts:
        pid = self.member.pid if self.member else 0
        return Whereabouts(pid, self.beat.step, self.beat.doing, now - self.heard, self.done)

    def is_accounted_for(self) -> bool:
        """Nothing more is to be expected from it."""
        # A process may be seen to end before its last words are read: they are, once the link has closed.
        died = isinstance(self.trouble, Died) and self.link is None
        return self.done or self.left or died or isinstance(self.trouble, Raised | Unlike | Absent)


class Record(msgspec.Struct, frozen=True):
    """What a coordinator that takes over must know: written down before anybody is told of it."""

    view: View
    most: int
    seats: tuple[str, ...]  # everyone who was ever expected
    lost: tuple[str, ...]  # or left
    reference: Join
    posts: tuple[Post, ...] = ()
    finished: tuple[Finished, ...] = ()
    servers: tuple[Member, ...] = ()
    department: bytes | None = None
    owed: tuple[str, ...] = ()  # what the user was not told yet


class Membership:
    """The coordinator's decisions. One instance is one run; `now` never goes back."""

    def __init__(
        self, config: RunConfig, coordinator: Member, now: float, department: Department | None = None
    ) -> None:
        self.view: View | None = None
        self.end: End | None = None
        self._config = config
        self._coordinator = coordinator
        self._department = department
        self._deadlines = config.deadlines
        self._most = config.workers
        self._started = self._ticked = now
        servers = config.servers.count if config.servers is not None else 0
        expected = (*(f"worker-{n}" for n in range(config.workers)), *(f"server-{n}" for n in range(servers)))
        self._seats = {id: _Seat(heard=now) for id in expected}
        self._ids: dict[int, str] = {}  # link -> member
        self._reference: Join | None = None  # the first that asked; the others must be like it
        self._posts: dict[str, Post] = {}
        self._finished: dict[int, Finished] = {}
        self._noticed: dict[str, float] = {}  # troubled member -> when; in order
        self._reported: set[str] = set()
        self._owed: tuple[str, ...] = ()  # reports that another coordinator did not come to
        self._telling: tuple[str, ...] = ()  # reports of the last event: told when the next one comes
        self._offered: tuple[Candidate, ...] = ()
        self._interrupted: End | None = None  # the run ends when its workers have written a last checkpoint
        self._finish_at = 0.0
        self._served = now  # when there last was a server, or one that was started
        self._renew_at: float | None = None  # when members that can't reach each other get a fresh view

    @classmethod
    def restored(
        cls, record: Record, config: RunConfig, coordinator: Member, now: float, department: Department | None = None
    ) -> Membership:
        """Goes on where another coordinator died. The members will join again; who does not is lost."""
        self = cls(config, coordinator, now, department)
        self.view = record.view
        self._most = record.most
        self._reference = record.reference
        self._seats = {id: _Seat(heard=now, left=id in record.lost) for id in record.seats}
        for member in (*record.view.workers, *record.servers):
            seat = self._seats[member.id]
            seat.member, seat.worked = member, now
        self._posts = {post.name: post for post in record.posts}
        self._finished = {finished.call: finished for finished in record.finished}
        self._owed = record.owed
        return self

    def record(self) -> Record | None:
        """What must not be forgotten; None as long as there is nothing."""
        if self.view is None or self._reference is None:
            return None
        return Record(
            self.view,
            self._most,
            tuple(self._seats),
            tuple(id for id, seat in self._seats.items() if not seat.counts),
            self._reference,
            tuple(self._posts.values()),
            tuple(self._finished.values()),
            tuple(self._servers().values()),
            self._department.record() if self._department is not None else None,
            (
                *self._owed,
                *self._telling,
                *(t.sentence(id) for id, t in self._troubles().items() if id not in self._reported),
            ),
        )

    # What the shell asks ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take one event; return what to do, in order. What the one before decided has been done."""
        self._telling = ()
        decisions = self._handle(event, now)
        self._telling = tuple(decision.text for decision in decisions if isinstance(decision, Report))
        return decisions

    def _handle(self, event: Event, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        match event:
            case Said(link, StatusRequest()):
                return [Tell((link,), self.status(now)), HangUp(link)]
            case Said(link, DrainRequest() | ScaleRequest() | PlaceRequest() as request):
                return [*self._serve(link, request), HangUp(link)]
            case Said(link, Join()) if self.end is not None:
                return [Tell((link,), Refuse(Reason.OVER, self.end.reason)), HangUp(link)]
            case _ if self.end is not None:
                return []  # the last word has been said
            case Said(link, Join() as join):
                decisions = self._join(link, join, now)
            case Said(link, message):
                decisions = self._said(link, message, now)
            case Closed(link):
                self._closed(link, now)
            case Started(member):
                self._seats.setdefault(member, _Seat(heard=now))
            case Ending(member):
                seat = self._seats.get(member)
                # One that has finished, or has yet to join, is not missed.
                if seat is not None and seat.counts and not seat.done and self._takes_part(member):
                    self._trouble(member, Vanished(seat.whereabouts(now)), now)
            case Exited(member, code):
                self._exited(member, code, now)
            case Noted(member, step, doing):
                seat = self._seats.get(member, _Seat())
                if not seat.done and not seat.trouble:
                    seat.beat = msgspec.structs.replace(seat.beat, step=step, doing=doing)
            case Interrupted(why, code):
                end = End(ok=False, code=code, reason=why)
                if self._config.saving is None or self.view is None or self._interrupted is not None:
                    return self._finish(end)
                self._interrupted, self._finish_at = end, now + LEAVING
                return self._drain([id for id in self._seats if role_of(id) == "worker"], why)
            case Tick(evidence):
                self._tick(evidence, now)
                decisions = [Report(text) for text in self._owed]
                self._owed = ()
                decisions += self._fulfil(self._department.tick(now)) if self._department is not None else []
        decisions += self._settle(now)
        return decisions + self._inform(now)

    def suspects(self, now: float) -> tuple[Member, ...]:
        """Members that missed a few beats: the shell looks at their processes before the next Tick."""
        patience = self._deadlines.silence / 4
        return tuple(
            seat.member for seat in self._seats.values() if seat.member and seat.counts and now - seat.heard > patience
        )

    def status(self, now: float) -> StatusReply:
        """The run as it is known now."""
        config = self._config
        return StatusReply(
            run=config.run,
            script=config.script,
            backend=config.backend,
            strategy=config.strategy,
            pieces=config.pieces or config.workers,
            threads=config.threads,
            view=self.view.number if self.view else 0,
            uptime=now - self._started,
            logs=config.logs,
            members=(
                _status(self._coordinator, "serving"),
                *(self._seat_status(id, seat, now) for id, seat in self._seats.items()),
            ),
        )

    # Events -----------------------------------------------------------------------------------------

    def _join(self, link: int, join: Join, now: float) -> list[Decision]:
        member = join.member
        if self._ids.get(link) == member.id:
            return []  # said twice
        refusal = self._objection(join)
        if refusal is None:
            self._ids[link] = member.id
            seat = self._seats[member.id]
            if isinstance(seat.trouble, Absent):  # better late than never
                seat.trouble = None
                self._noticed.pop(member.id, None)
                self._reported.discard(member.id)
            seat.member, seat.link, seat.heard, seat.worked = member, link, now, now
            late = (*self._finished.values(), ViewChange(self.view), Candidates(self._offered)) if self.view else ()
            return [Tell((link,), message) for message in (*self._posts.values(), *late)]
        if refusal.reason is Reason.UNLIKE:
            self._trouble(member.id, Unlike(refusal.text), now)
        return [Tell((link,), refusal), HangUp(link)]

    def _objection(self, join: Join) -> Refuse | None:
        id = join.member.id
        seat = self._seats.get(id)
        if seat is None:
            return Refuse(Reason.UNKNOWN_MEMBER, f"{id} is not one of {', '.join(self._seats)}")
        known = seat.member in (None, join.member)
        if known and not seat.counts and not isinstance(seat.trouble, Absent):
            return Refuse(Reason.OUTSIDE, seat.trouble.sentence(id) if seat.trouble else f"{id} had left, or was lost")
        if seat.member == join.member and seat.link is None:
            return None  # it knew the coordinator that died
        if seat.member is not None:
            return Refuse(Reason.TAKEN, f"{id} has already joined, with pid {seat.member.pid}")
        self._reference = self._reference or join
        reference = self._reference
        differences = join.identity.differences(id, reference.identity, reference.member.id)
        return Refuse(Reason.UNLIKE, "; ".join(differences)) if differences else None

    def _said(self, link: int, message: Message, now: float) -> list[Decision]:
        id = self._ids.get(link)
        if id is None:
            refusal = Refuse(Reason.NOT_JOINED, f"{type(message).__name__} came before Join")
            return [Tell((link,), refusal), HangUp(link)]
        seat = self._seats[id]
        seat.heard = now
        if seat.left or (not seat.counts and not isinstance(message, Failed)):
            return []  # nothing that a lost member says is heeded, except why it was lost
        match message:
            case Beat():
                seat.beat = message
            case Failed(step, doing, blames=blames):
                seat.beat = Beat(step, doing)
                # Only a member of the run can be the cause; an error about anything else is its own.
                blamed = tuple(other for other in blames if other in self._seats)
                failed = msgspec.structs.replace(message, blames=blamed)
                self._trouble(id, Raised(seat.whereabouts(now), failed), now)
            case Done(step):
                seat.done_at = seat.done_at if seat.done else now
                seat.done = True
                seat.beat = Beat(step, "finished")
            case Post(name):
                self._posts[name] = message
                return [Tell(self._links(), message)]
            case Ready(call):
                if call not in self._finished and (self.view is None or not self.view.has(id)):
                    seat.ready = call
            case Letter(content) if self._department is not None:
                try:
                    return self._fulfil(self._department.hear(id, content, now))
                except BadFrame:
                    return [HangUp(link)]
            case Finished(call):
                if self._finished.setdefault(call, message) is message:
                    for other in self._seats.values():
                        other.ready = None if other.ready == call else other.ready  # it need not be let in any more
                    return [Tell(self._links(late=True), message)]
            case Admit(view, candidates):
                return self._admit(view, candidates)
            case Decline(view, newcomers):
                if self.view is not None and view == self.view.number:
                    late = (self._seats[newcomer].link for newcomer in newcomers if newcomer in self._seats)
                    links = tuple(other for other in late if other is not None)
                    # Calls that ended while they were in the view: they were not told of these.
                    missed = [Tell(links, finished) for finished in self._finished.values()]
                    return [*missed, *self._publish([m for m in self.view.workers if m.id not in newcomers])]
            case Complaint(view, about, why):
                self._complain(id, view, about, why, now)
            case Leave():
                seat.left = True
                return [Report(f"{id} has left the run")]
            case _:
                raise TypeError(f"{type(message).__name__} is not a member's message")
        return []

    def _closed(self, link: int, now: float) -> None:
        id = self._ids.pop(link, None)
        if id is not None:
            seat = self._seats[id]
            seat.link = None
            if seat.code is not None:
                self._exited(id, seat.code, now)
            elif not seat.left:
                self._trouble(id, Vanished(seat.whereabouts(now)), now)

    def _exited(self, id: str, code: int, now: float) -> None:
        seat = self._seats[id]
        if code >= 0 and seat.link is not None:
            seat.code = code  # it ended of its own accord: its last words, which may be Leave, are on their way
        elif not seat.left:
            self._trouble(id, Died(seat.whereabouts(now), code), now)

    def _tick(self, evidence: Mapping[str, Evidence], now: float) -> None:
        self._forgive(now)
        if self.view is None and now - self._started > self._deadlines.start:
            self._nobody_came(now)
        for id, seat in self._seats.items():
            if seat.member is not None and seat.counts:
                self._look(seat, evidence.get(id), now)
                self._judge_silence(id, seat, now)
        self._judge_desertion(now)

    # Judgements -------------------------------------------------------------------------------------

    def _forgive(self, now: float) -> None:
        """While the coordinator did not look (it was stopped, the machine paused), nobody was silent."""
        gap, self._ticked = now - self._ticked, now
        if gap > UNWATCHED:
            for seat in self._seats.values():
                seat.heard, seat.worked = min(now, seat.heard + gap), min(now, seat.worked + gap)

    def _look(self, seat: _Seat, evidence: Evidence | None, now: float) -> None:
        """A process that uses the processor is at work, even if Python's lock keeps its beats back."""
        before, seat.evidence = seat.evidence, evidence
        if before and evidence and evidence.state not in "TtZX" and evidence.cpu > before.cpu:
            seat.worked = now

    def _judge_silence(self, id: str, seat: _Seat, now: float) -> None:
        silence, stall = self._deadlines.silence, self._deadlines.stall
        silent = now - seat.heard
        if silent > silence and now - seat.worked > silence:
            process = _describe(seat.evidence)
            self._trouble(id, Silent(seat.whereabouts(now), silence, process), now)
        elif silent > stall:
            process = "is at work, but does not let its beats out"
            self._trouble(id, Silent(seat.whereabouts(now), stall, process), now)

    def _judge_desertion(self, now: float) -> None:
        """Workers in an exchange that a finished one will never come to would wait for their whole stall.

        All who have not finished must say so themselves: else they may wait for each other, or for one that is about to
        be found lost. Where a loss does not end the run, a finished worker may be slow to come to a new view.
        """
        silence = self._deadlines.silence
        long = silence if self._config.least is None else 2 * silence
        members = {member.id: self._seats[member.id] for member in self.view.workers} if self.view else {}
        members = {id: seat for id, seat in members.items() if seat.counts}
        if any(now - seat.heard > silence / 2 for seat in members.values()):
            return
        finished = [id for id, seat in members.items() if seat.done and now - seat.done_at > long]
        waiting = [id for id, seat in members.items() if not seat.done]
        beats = [members[id].beat for id in waiting]
        if finished and waiting and all(beat.exchanging and beat.lasting > long for beat in beats):
            there, where = members[finished[0]].whereabouts(now), members[waiting[0]].whereabouts(now)
            self._trouble(finished[0], Deserted(there, waiting[0], where, beats[0].lasting), now)

    def _nobody_came(self, now: float) -> None:
        missing = [id for id, seat in self._seats.items() if seat.member is None and seat.counts]
        came = len(self._seats) - len(missing)
        for id in missing:
            self._trouble(id, Absent(self._deadlines.start, came, len(self._seats)), now)

    def _trouble(self, id: str, trouble: Trouble, now: float) -> None:
        """Note it. What a worker said itself outweighs how it died, and that outweighs that it is gone."""
        seat = self._seats[id]
        match seat.trouble, trouble:
            case (None, _) | (Vanished() | Silent(), Died()) | (Vanished() | Died(), Raised()):
                seat.trouble = trouble
                self._noticed.setdefault(id, now)

    # Consequences -----------------------------------------------------------------------------------

    def _settle(self, now: float) -> list[Decision]:
        """What follows from all that is known by now."""
        if self._interrupted is not None:
            here = (seat for id, seat in self._seats.items() if role_of(id) == "worker")
            if now >= self._finish_at or not any(seat.member and seat.counts for seat in here):
                return self._finish(self._interrupted)
        if self._config.least is None and self._noticed:
            gathered = now - min(self._noticed.values()) >= GATHERING
            if gathered or all(seat.is_accounted_for() for seat in self._seats.values()):
                return self._finish(explain(self._troubles(), len(self._seats), self._done()))
            return []
        if (fault := self._fault()) is not None:
            return self._finish(explain(fault, len(self._seats), self._done()))
        return self._form(now) if self.view is None else self._go_on(self.view, now)

    def _fault(self) -> dict[str, Trouble] | None:
        """Troubles that would come again whoever takes over: no use in going on."""
        troubles = self._troubles()
        initial = self.view is None
        for id, trouble in troubles.items():
            if isinstance(trouble, Deserted) or (initial and isinstance(trouble, Unlike)):
                return {id: trouble}
            if initial and isinstance(trouble, Died) and trouble.code >= 0:
                return {id: trouble}  # it could not even start
            if isinstance(trouble, Raised) and trouble.failed.of_all:
                return {id: trouble}
            again = {other: it for other, it in troubles.items() if other == id or same_fault(trouble, it)}
            if len(again) > 1:
                return again
        if troubles and not any(seat.counts for seat in self._seats.values()):
            return troubles
        return None

    def _form(self, now: float) -> list[Decision]:
        """View 1, once everyone who may still come is there."""
        coming = {id: seat for id, seat in self._seats.items() if seat.counts}
        expected = [seat for id, seat in coming.items() if role_of(id) == "worker"][: self._most]  # not the standbys
        members = [seat.member for seat in expected if seat.member]
        if not members or len(members) < len(expected) or len(self._servers()) < self._expected_servers():
            return []
        return [*self._report_losses(len(members), now), *self._publish(members)]

    def _go_on(self, view: View, now: float) -> list[Decision]:
        remaining = [member for member in view.workers if self._seats[member.id].counts]
        if not remaining and not self._troubles():
            return self._finish(End(False, 1, "every worker has left the run"))
        if not remaining:
            news = {id: trouble for id, trouble in self._troubles().items() if id not in self._reported}
            return self._finish(explain(news or self._troubles(), len(self._seats), self._done()))
        if all(self._seats[member.id].done for member in remaining):
            losses = self._report_losses(len(remaining), math.inf)  # nothing more will be known about them
            end = End(True, 0, "every worker finished its script", culprits=self._unfinished())
            return [*losses, *self._finish(end)]
        if self._expected_servers() or self._config.servers is None:
            self._served = now
        elif now - self._served > SERVERLESS:
            return self._finish(explain(self._troubles(), len(self._seats), self._done()))
        decisions = self._report_losses(len(remaining), now)
        renew = self._renew_at is not None and now >= self._renew_at
        if renew or len(remaining) < len(view.workers):
            decisions += self._publish(remaining)
        return decisions + self._welcome() + self._offer()

    def _report_losses(self, remaining: int, now: float) -> list[Decision]:
        """Say who is gone and why, once; make sure that it does no more harm."""
        decisions: list[Decision] = []
        for id, trouble in self._troubles().items():
            seat = self._seats[id]
            if id in self._reported or (isinstance(trouble, Vanished | Raised) and now - self._noticed[id] < DETAILS):
                continue  # how its process ended, or that the others raised the same, is about to be known
            self._reported.add(id)
            with_whom = _count(len(self._servers()), "server") if role_of(id) == "server" else _workers(remaining)
            decisions.append(Report(f"{trouble.sentence(id)}; going on with {with_whom}"))
            if seat.member is not None and isinstance(trouble, Silent | Unreachable):
                decisions.append(Fence(seat.member))
                decisions += [HangUp(seat.link)] if seat.link is not None else []
        return decisions

    def _publish(self, members: Sequence[Member]) -> list[Decision]:
        """The next view. Those who are not in it, and can hear, are told too."""
        number = self.view.number + 1 if self.view else 1
        self.view = View.of(number, members, enough=len(members) >= (self._config.least or 1))
        self._renew_at = None
        for member in members:
            self._seats[member.id].ready = None
        return [Tell(self._links(), ViewChange(self.view))]

    # Servers and their department -------------------------------------------------------------------

    def _servers(self) -> dict[str, Member]:
        """Those who are there."""
        return {
            id: seat.member
            for id, seat in self._seats.items()
            if role_of(id) == "server" and seat.counts and seat.member
        }

    def _takes_part(self, id: str) -> bool:
        """Whether somebody may wait for this one: it is in the view, or serves those who are."""
        return self.view is not None and (self.view.has(id) or id in self._servers())

    def _expected_servers(self) -> int:
        """How many are there, or may be soon."""
        return sum(role_of(id) == "server" and seat.counts for id, seat in self._seats.items())

    def _welcome(self) -> list[Decision]:
        """Let those in for whom the department has something to do at once."""
        if self._department is None or self.view is None:
            return []
        ready = ((id, seat.ready) for id, seat in self._seats.items() if seat.counts and not self.view.has(id))
        welcome = tuple(id for id, call in ready if call is not None and self._department.welcomes(call))
        free = max(0, self._most - len(self.view.workers))
        return self._admit(self.view.number, welcome[:free]) if welcome[:free] else []

    def _inform(self, now: float) -> list[Decision]:
        """Tell the department who is there."""
        if self._department is None or self.view is None or self.end is not None:
            return []
        servers = {id: member.address for id, member in self._servers().items()}
        workers = [member.id for member in self.view.workers]
        return self._fulfil(self._department.take(workers, servers, self._expected_servers(), now))

    def _fulfil(self, wishes: Sequence[Wish]) -> list[Decision]:
        decisions: list[Decision] = []
        for wish in wishes:
            match wish:
                case Send(to, content):
                    seats = (self._seats[id] for id in to)
                    links = tuple(seat.link for seat in seats if seat.link is not None)
                    decisions += [Tell(links, Letter(content))] if links else []
                case Say(text):
                    decisions.append(Report(text))
        return decisions

    # Coming late ------------------------------------------------------------------------------------

    def _offer(self) -> list[Decision]:
        """Tell the members whom they could let in, when that has changed."""
        assert self.view is not None
        # Guests come on top of the workers that were asked for.
        guests = sum(number_of(id) >= GUESTS and seat.counts for id, seat in self._seats.items() if seat.member)
        free = max(0, self._most + guests - len(self.view.workers))
        ready = ((id, seat.ready) for id, seat in self._seats.items() if seat.counts)
        offered = tuple(Candidate(id, call) for id, call in ready if call is not None)[:free]
        if offered == self._offered:
            return []
        self._offered = offered
        return [Tell(self._links(), Candidates(offered))]

    def _admit(self, view: int, candidates: tuple[str, ...]) -> list[Decision]:
        if self.view is None or view != self.view.number:
            return []  # another member's word came first
        wanted = [self._seats[id] for id in candidates if id in self._seats]
        newcomers = [seat.member for seat in wanted if seat.counts and seat.member and seat.ready is not None]
        return self._publish([*self.view.workers, *newcomers])

    def _serve(self, link: int, request: DrainRequest | ScaleRequest | PlaceRequest) -> list[Decision]:
        """What somebody asks from another terminal."""
        decisions: list[Decision] = []
        match request:
            case _ if self.end is not None or self.view is None:
                answer = (
                    Answer(False, "the run is over")
                    if self.end
                    else Answer(False, "the run has not begun yet", again=True)
                )
            case PlaceRequest() if self._config.least is None:
                answer = Answer(False, "this run takes nobody in: it was started with one worker, or with --fail-fast")
            case PlaceRequest():
                guests = [number_of(id) for id in self._seats]
                id = f"worker-{max(GUESTS, 1 + max(guests))}"
                self._seats[id] = _Seat()
                return [Tell((link,), Place(id, self._config)), *self._offer()]
            case DrainRequest(id) if (seat := self._seats.get(id)) is None or not seat.counts or seat.link is None:
                there = ", ".join(id for id, seat in self._seats.items() if seat.counts and seat.link is not None)
                answer = Answer(False, f"there is no {id} in the run; there is {there}")
            case DrainRequest(id) if role_of(id) == "server":
                answer = Answer(False, f"{id} is a server; only workers can leave so far")
            case DrainRequest(id) if self._config.least is None:
                answer = Answer(False, f"this run was started with --fail-fast: without {id} it could not go on")
            case DrainRequest(id):
                self._most = max(self._config.least or 1, self._most - 1)
                decisions += self._drain([id], "somebody asked for it with `shoal drain`")
                answer = Answer(True, f"{id} leaves after its step")
            case ScaleRequest(workers) if self._config.least is None or workers < self._config.least:
                least = self._config.least or self._config.workers
                answer = Answer(False, f"this run needs at least {least} workers: `shoal run -n MIN:MAX` sets that")
            case ScaleRequest(workers):
                self._most = workers
                here = sorted((m.number, m.id) for m in self.view.workers if self._seats[m.id].counts)
                decisions += self._drain([id for _, id in here[workers:]], f"scaled to {workers}")
                others = ((id, seat) for id, seat in self._seats.items() if role_of(id) == "worker" and seat.counts)
                coming = [seat for id, seat in others if not self.view.has(id)]
                more = max(0, workers - len(here) - len(coming))
                decisions += [Want(more)] if more else []
                answer = Answer(True, f"{_workers(len(here))} now, {workers} soon")
        return [Tell((link,), answer), *decisions, *(self._offer() if self.view and not self.end else [])]

    def _drain(self, ids: Sequence[str], why: str) -> list[Decision]:
        links = tuple(link for id in ids if (link := self._seats[id].link) is not None)
        return [Tell(links, Drain(why))] if links else []

    def _complain(self, by: str, view: int, about: tuple[str, ...], why: str, now: float) -> None:
        if self.view is None or view != self.view.number:
            return
        self._renew_at = self._renew_at or now + GATHERING  # if one of them is dead, that is known by then
        recent = now - COMPLAINED_WITHIN - COMPLAINTS * self._deadlines.stall  # a complaint may take a whole stall
        blamed = {id: self._seats[id] for id in about if id in self._seats and self._seats[id].counts}
        for seat in (self._seats[by], *blamed.values()):
            seat.complaints = {which: at for which, at in seat.complaints.items() if at > recent}
        for seat in blamed.values():
            seat.complaints[view, by] = now
        # Who is cut off from one complains about all who wait for it: it is the one that most complain about who goes.
        worst = max(blamed, key=lambda id: len(blamed[id].complaints), default=by)
        complaints = self._seats[worst].complaints
        often = len({view for view, _ in complaints}) >= COMPLAINTS
        if often and worst != by and len(complaints) >= len(self._seats[by].complaints):
            self._trouble(worst, Unreachable(self._seats[worst].whereabouts(now), by, why), now)

    # The end ----------------------------------------------------------------------------------------

    def _finish(self, end: End) -> list[Decision]:
        self.end = end
        # The launcher first: when it sees a worker's process end, it must know whether that was the run's end.
        return [Over(end), Tell(self._links(), end)]

    def _troubles(self) -> dict[str, Trouble]:
        troubles = {id: self._seats[id].trouble for id in self._noticed}
        return {id: trouble for id, trouble in troubles.items() if trouble is not None}

    def _unfinished(self) -> tuple[str, ...]:
        """Whose end does not matter any more: they were lost, left, or came too late to take part."""
        return tuple(id for id, seat in self._seats.items() if not (seat.done and seat.counts))

    def _done(self) -> tuple[str, ...]:
        return tuple(id for id, seat in self._seats.items() if seat.done)

    def _links(self, late: bool = False) -> tuple[int, ...]:
        """Everyone who can be told something; or only those who came late and are not in the view yet."""
        return tuple(
            seat.link
            for id, seat in self._seats.items()
            if seat.link is not None and not (late and self.view and self.view.has(id))
        )

    def _seat_status(self, id: str, seat: _Seat, now: float) -> MemberStatus:
        member = seat.member or Member(id, role_of(id), 0, "", "")
        return _status(member, self._state(id, seat), seat.beat, now - seat.heard)

    def _state(self, id: str, seat: _Seat) -> str:
        if seat.trouble:
            return "lost"
        if seat.done or seat.left:
            return "finished"
        if role_of(id) == "server" and seat.member:
            return "serving"
        if self.view and self.view.has(id):
            return "training"
        if seat.ready is not None:
            return "ready"
        return "joined" if seat.member else "starting"


def _status(member: Member, state: str, beat: Beat | None = None, silent: float = 0.0) -> MemberStatus:
    beat = beat or Beat(doing="")
    return MemberStatus(
        id=member.id,
        role=member.role,
        pid=member.pid,
        host=member.host,
        state=state,
        step=beat.step,
        doing=beat.doing,
        samples_per_second=beat.samples_per_second,
        silent=silent,
    )


def _workers(count: int) -> str:
    return _count(count, "worker")


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _describe(evidence: Evidence | None) -> str:
    if evidence is None:
        return "can't be seen from here"
    match evidence.state:
        case "T" | "t":
            return "is stopped (by a SIGSTOP, a debugger or Ctrl-Z); `kill -CONT` continues one"
        case "Z" | "X":
            return "is dead"
        case "D":
            return "is stuck in the system, often on a disk or a network file system"
        case _:
            return "is alive but idle"

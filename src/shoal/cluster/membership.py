"""Who is in the run and when it is over: decided here, acted upon in coordinator.py.

Pure: events and the time go in, decisions come out; nothing here reads a clock, a file or a socket.

    forming  ── all have joined ──▶  training  ── all are done ──▶  over (ok)
       │                                │
       └────── a worker in trouble ─────┴──▶  gathering ── 0.3 s, or all accounted for ──▶  over

Gathering waits for what else there is to know: that the process was killed and by what, that the other
workers raised the same error. Then `_settle` draws the consequence. Today it is the end of the run; a run
that goes on without the lost would publish the next view there, and nothing else here would change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from shoal.cluster.events import (
    Closed,
    Decision,
    Event,
    Evidence,
    Exited,
    HangUp,
    Interrupted,
    Noted,
    Over,
    Said,
    Tell,
    Tick,
)
from shoal.cluster.messages import (
    Beat,
    Done,
    End,
    Failed,
    Join,
    MemberStatus,
    Post,
    Reason,
    Refuse,
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
    Vanished,
    Whereabouts,
    explain,
)
from shoal.cluster.view import Member, View
from shoal.config import RunConfig
from shoal.wire.messages import Message

GATHERING = 0.3  # seconds from the first trouble to the verdict
UNWATCHED = 1.0  # a longer gap between two Ticks means that the coordinator itself was held up


@dataclass(slots=True)
class _Seat:
    """What is known about one expected worker."""

    member: Member | None = None
    link: int | None = None
    beat: Beat = field(default_factory=Beat)
    heard: float = 0.0  # when it last said anything
    worked: float = 0.0  # when its process was last seen to use the processor
    evidence: Evidence | None = None
    done: bool = False
    trouble: Trouble | None = None

    def whereabouts(self, now: float) -> Whereabouts:
        pid = self.member.pid if self.member else 0
        return Whereabouts(pid, self.beat.step, self.beat.doing, now - self.heard, self.done)

    def is_accounted_for(self) -> bool:
        """Nothing more is to be expected from it."""
        # A process may be seen to end before its last words are read: they are, once the link has closed.
        died = isinstance(self.trouble, Died) and self.link is None
        return self.done or died or isinstance(self.trouble, Raised | Unlike | Absent)


class Membership:
    """The coordinator's decisions. One instance is one run; `now` never goes back."""

    def __init__(self, config: RunConfig, coordinator: Member, now: float) -> None:
        self.view: View | None = None
        self.end: End | None = None
        self._config = config
        self._coordinator = coordinator
        self._deadlines = config.deadlines
        self._started = self._ticked = now
        self._seats = {f"worker-{number}": _Seat(heard=now) for number in range(config.workers)}
        self._ids: dict[int, str] = {}  # link -> member
        self._reference: Join | None = None  # the first that asked; the others must be like it
        self._posts: dict[str, Post] = {}
        self._noticed: dict[str, float] = {}  # troubled member -> when; in order

    # What the shell asks ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take one event; return what to do, in order."""
        decisions: list[Decision] = []
        match event:
            case Said(link, StatusRequest()):
                return [Tell((link,), self.status(now)), HangUp(link)]
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
            case Exited(member, code):
                self._trouble(member, Died(self._seats[member].whereabouts(now), code), now)
            case Noted(member, step, doing):
                seat = self._seats[member]
                if not seat.done and not seat.trouble:
                    seat.beat = msgspec.structs.replace(seat.beat, step=step, doing=doing)
            case Interrupted(why, code):
                return self._finish(End(ok=False, code=code, reason=why))
            case Tick(evidence):
                self._tick(evidence, now)
        return decisions + self._settle(now)

    def suspects(self, now: float) -> tuple[Member, ...]:
        """Members that missed a few beats: the shell looks at their processes before the next Tick."""
        patience = self._deadlines.silence / 4
        return tuple(
            seat.member
            for seat in self._seats.values()
            if seat.member and not seat.trouble and now - seat.heard > patience
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
            seat.member, seat.link, seat.heard, seat.worked = member, link, now, now
            posts: list[Decision] = [Tell((link,), post) for post in self._posts.values()]
            return posts + self._form()
        if refusal.reason is Reason.UNLIKE:
            self._trouble(member.id, Unlike(refusal.text), now)
        return [Tell((link,), refusal), HangUp(link)]

    def _objection(self, join: Join) -> Refuse | None:
        id = join.member.id
        seat = self._seats.get(id)
        if seat is None:
            return Refuse(Reason.UNKNOWN_MEMBER, f"{id} is not one of {', '.join(self._seats)}")
        if seat.member is not None:
            return Refuse(Reason.TAKEN, f"{id} has already joined, with pid {seat.member.pid}")
        self._reference = self._reference or join
        reference = self._reference
        differences = join.identity.differences(id, reference.identity, reference.member.id)
        return Refuse(Reason.UNLIKE, "; ".join(differences)) if differences else None

    def _form(self) -> list[Decision]:
        """View 1, once everyone is there."""
        members = [seat.member for seat in self._seats.values() if seat.member]
        if self.view is not None or len(members) < len(self._seats):
            return []
        self.view = View.of(1, members)
        return [Tell(self._links(), ViewChange(self.view))]

    def _said(self, link: int, message: Message, now: float) -> list[Decision]:
        id = self._ids.get(link)
        if id is None:
            refusal = Refuse(Reason.NOT_JOINED, f"{type(message).__name__} came before Join")
            return [Tell((link,), refusal), HangUp(link)]
        seat = self._seats[id]
        seat.heard = now
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
                seat.done = True
                seat.beat = Beat(step, "finished")
            case Post(name):
                self._posts[name] = message
                return [Tell(self._links(), message)]
            case _:
                raise TypeError(f"{type(message).__name__} is not a member's message")
        return []

    def _closed(self, link: int, now: float) -> None:
        id = self._ids.pop(link, None)
        if id is not None:
            seat = self._seats[id]
            seat.link = None
            self._trouble(id, Vanished(seat.whereabouts(now)), now)

    def _tick(self, evidence: Mapping[str, Evidence], now: float) -> None:
        self._forgive(now)
        if self.view is None and now - self._started > self._deadlines.start:
            self._nobody_came(now)
        for id, seat in self._seats.items():
            if seat.member is not None:
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
        """A worker in an exchange that a finished one will never come to would wait for its whole stall."""
        finished = self._finished()
        for id, seat in self._seats.items():
            waited = seat.beat.lasting + now - seat.heard
            if finished and seat.beat.exchanging and waited > self._deadlines.silence:
                there = self._seats[finished[0]].whereabouts(now)
                self._trouble(finished[0], Deserted(there, id, seat.whereabouts(now), waited), now)

    def _nobody_came(self, now: float) -> None:
        missing = [id for id, seat in self._seats.items() if seat.member is None]
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
        if self._noticed:
            gathered = now - min(self._noticed.values()) >= GATHERING
            if gathered or all(seat.is_accounted_for() for seat in self._seats.values()):
                return self._finish(explain(self._troubles(), len(self._seats), self._finished()))
        elif all(seat.done for seat in self._seats.values()):
            return self._finish(End(True, 0, "every worker finished its script"))
        return []

    def _finish(self, end: End) -> list[Decision]:
        self.end = end
        return [Tell(self._links(), end), Over(end)]

    def _troubles(self) -> dict[str, Trouble]:
        troubles = {id: self._seats[id].trouble for id in self._noticed}
        return {id: trouble for id, trouble in troubles.items() if trouble is not None}

    def _finished(self) -> tuple[str, ...]:
        return tuple(id for id, seat in self._seats.items() if seat.done)

    def _links(self) -> tuple[int, ...]:
        return tuple(seat.link for seat in self._seats.values() if seat.link is not None)

    def _seat_status(self, id: str, seat: _Seat, now: float) -> MemberStatus:
        member = seat.member or Member(id, "worker", 0, "", "")
        joined = "training" if self.view else "joined"
        state = "lost" if seat.trouble else "finished" if seat.done else joined if seat.member else "starting"
        return _status(member, state, seat.beat, now - seat.heard)


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

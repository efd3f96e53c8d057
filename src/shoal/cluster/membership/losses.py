"""Who is lost, and why: judged by what members say, by their silence, and by what others say about them.

Pure: the time and the evidence go in. What follows from a loss is not decided here, but in membership.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.cluster.events import Evidence
from shoal.cluster.membership.member_state import MemberState
from shoal.cluster.messages import Complaint
from shoal.cluster.trouble import (
    Absent,
    Deserted,
    Died,
    Overdue,
    ScriptRaised,
    Silent,
    Trouble,
    Unreachable,
    Vanished,
)
from shoal.cluster.view import View
from shoal.config import Deadlines

COMPLAINTS = 3  # about one member within so many seconds: it is lost, whatever it says itself
COMPLAINED_WITHIN = 60.0  # and as long as the waits that they are about may have lasted
DETAILS = 1.0  # seconds from a loss to its report: how a large process ended is known only when its memory is free
UNWATCHED = 1.0  # a longer gap between two Ticks means that the coordinator itself was held up


class LossJudge:
    """Judges the members of a run. It notes what it finds in their states, once each."""

    def __init__(self, members: Mapping[str, MemberState], deadlines: Deadlines, now: float) -> None:
        self._members = members
        self._deadlines = deadlines
        self._started = self._ticked = now
        self._noticed: dict[str, float] = {}  # troubled member -> when; in order

    def tick(self, view: View | None, evidence: Mapping[str, Evidence], patience: float, now: float) -> None:
        """Time has passed. `patience`: seconds that a finished worker is waited for in an exchange."""
        self._forgive(now)
        if view is None and now - self._started > self._deadlines.start:
            self._nobody_came(now)
        for id, state in self._members.items():
            if state.member is not None and state.counts:
                self._look(state, evidence.get(id), now)
                self._judge_silence(id, state, now)
        self._judge_desertion(view, patience, now)

    @property
    def first_noticed(self) -> float | None:
        """When the first trouble was."""
        return min(self._noticed.values(), default=None)

    def pardon(self, id: str) -> None:
        """Its trouble is over: it has come after all."""
        self._members[id].trouble = None
        self._noticed.pop(id, None)

    def _forgive(self, now: float) -> None:
        """While the coordinator did not look (it was stopped, the machine paused), nobody was silent."""
        gap, self._ticked = now - self._ticked, now
        if gap > UNWATCHED:
            for state in self._members.values():
                state.heard, state.worked = min(now, state.heard + gap), min(now, state.worked + gap)

    def _look(self, state: MemberState, evidence: Evidence | None, now: float) -> None:
        """A process that uses the processor is at work, even if Python's lock keeps its beats back."""
        before, state.evidence = state.evidence, evidence
        if before and evidence and evidence.state not in "TtZX" and evidence.cpu > before.cpu:
            state.worked = now

    def _judge_silence(self, id: str, state: MemberState, now: float) -> None:
        silence, stall = self._deadlines.silence, self._deadlines.stall
        silent = now - state.heard
        if silent > silence and now - state.worked > silence:
            process = _describe(state.evidence)
            self.note(id, Silent(state.whereabouts(now), silence, process), now)
        elif silent > stall:
            process = "is at work, but does not let its beats out"
            self.note(id, Silent(state.whereabouts(now), stall, process), now)

    def _judge_desertion(self, view: View | None, long: float, now: float) -> None:
        """Workers in an exchange that a finished one will never come to would wait for their whole stall.

        All who have not finished must say so themselves: else they may wait for each other, or for one that is about to
        be found lost. Where a loss does not end the run, a finished worker may be slow to come to a new view.
        """
        silence = self._deadlines.silence
        members = {member.id: self._members[member.id] for member in view.workers} if view else {}
        members = {id: state for id, state in members.items() if state.counts}
        if any(now - state.heard > silence / 2 for state in members.values()):
            return
        finished = [id for id, state in members.items() if state.done and now - state.done_at > long]
        waiting = [id for id, state in members.items() if not state.done]
        beats = [members[id].beat for id in waiting]
        if finished and waiting and all(beat.exchanging and beat.lasting > long for beat in beats):
            there, where = members[finished[0]].whereabouts(now), members[waiting[0]].whereabouts(now)
            self.note(finished[0], Deserted(there, waiting[0], where, beats[0].lasting), now)

    def _nobody_came(self, now: float) -> None:
        missing = [id for id, state in self._members.items() if state.member is None and state.counts]
        came = len(self._members) - len(missing)
        for id in missing:
            self.note(id, Absent(self._deadlines.start, came, len(self._members)), now)

    def note(self, id: str, trouble: Trouble, now: float) -> None:
        """Note it. What a worker said itself outweighs how it died, and that outweighs that it is gone."""
        state = self._members[id]
        match state.trouble, trouble:
            case (None, _) | (Vanished() | Silent(), Died()) | (Vanished() | Died(), ScriptRaised()):
                state.trouble = trouble
                self._noticed.setdefault(id, now)

    def is_fresh(self, id: str, now: float) -> bool:
        """Whether more may be known about its trouble in a moment."""
        return now - self._noticed[id] < DETAILS

    def may_explain(self, now: float) -> bool:
        """Whether it is about to be known how the process of one that is gone has ended."""
        troubles = self.troubles()
        return any(isinstance(troubles[id], Vanished) and self.is_fresh(id, now) for id in troubles)

    def troubles(self) -> dict[str, Trouble]:
        """All that is known, in the order in which it was noticed."""
        if not self._noticed:
            return {}
        troubles = {id: self._members[id].trouble for id in self._noticed}
        return {id: trouble for id, trouble in troubles.items() if trouble is not None}

    def complain(self, view: View, by: str, complaint: Complaint, now: float) -> bool:
        """A member can't reach others in this view. Whether a fresh view may help: nobody was found to be overdue."""
        about = complaint.about
        if complaint.late and self.lose_overdue(view, by, about, now):
            return False
        recent = now - COMPLAINED_WITHIN - COMPLAINTS * self._deadlines.stall  # a complaint may take a whole stall
        blamed = {id: self._members[id] for id in about if id in self._members and self._members[id].counts}
        for state in (self._members[by], *blamed.values()):
            state.complaints = {which: at for which, at in state.complaints.items() if at > recent}
        for state in blamed.values():
            state.complaints[view.number, by] = now
        # Who is cut off from one complains about all who wait for it: it is the one that most complain about who goes.
        worst = max(blamed, key=lambda id: len(blamed[id].complaints), default=by)
        complaints = self._members[worst].complaints
        often = len({view for view, _ in complaints}) >= COMPLAINTS
        if often and worst != by and len(complaints) >= len(self._members[by].complaints):
            self.note(worst, Unreachable(self._members[worst].whereabouts(now), by, complaint.why), now)
        return True

    def lose_overdue(self, view: View | None, by: str, about: tuple[str, ...], now: float) -> bool:
        """Of those whom one has waited for in vain, some are elsewhere: they are lost. Whether there are any.

        The others wait as well. One that is further than who waits for it had come, and they can't hear each other.
        """
        if view is None:
            return False
        waiting = self._members[by]
        missed = {id: self._members[id] for id in about if view.has(id)}
        elsewhere = {id: state for id, state in missed.items() if state.counts and not state.done and not state.waits}
        late = [id for id, state in elsewhere.items() if state.beat.step <= waiting.beat.step]
        for id in late:
            where = elsewhere[id].whereabouts(now)
            self.note(id, Overdue(where, self._deadlines.stall, by, waiting.whereabouts(now)), now)
        return bool(late)


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

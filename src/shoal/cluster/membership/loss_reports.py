"""What the user is told of losses: once each, and not before all that is about to be known of it is known. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.cluster.events import Decision, Fence, HangUp, ReportTrouble
from shoal.cluster.membership.losses import LossJudge
from shoal.cluster.membership.requests import counted
from shoal.cluster.membership.roster import Roster
from shoal.cluster.trouble import Overdue, Silent, Trouble, Unreachable, Vanished, is_own_accord
from shoal.cluster.view import role_of


class LossReports:
    """Who was reported; and what the user has yet to hear if this coordinator dies."""

    def __init__(self, roster: Roster, judge: LossJudge, owed: tuple[str, ...] = (), losses_before: int = 0) -> None:
        """`owed`: reports that another coordinator did not come to. `losses_before`: that it saw."""
        self._roster = roster
        self._judge = judge
        self._reported: set[str] = set()
        self._owed = owed
        self._losses_before = losses_before
        self._telling: tuple[str, ...] = ()  # reports of the last event: told when the next one comes

    @property
    def losses(self) -> int:
        """In the whole run."""
        return self._losses_before + len(self._judge.troubles())

    def decided(self, decisions: Iterable[Decision]) -> None:
        """What the last event led to, and is about to be done."""
        self._telling = tuple(decision.text for decision in decisions if isinstance(decision, ReportTrouble))

    def unheard(self) -> tuple[str, ...]:
        """What another coordinator would have to tell the user."""
        news = (trouble.sentence(id) for id, trouble in self.news().items())
        return (*self._owed, *self._telling, *news)

    def overdue(self) -> list[Decision]:
        """What the user should have heard from another coordinator. Once."""
        owed, self._owed = self._owed, ()
        return [ReportTrouble(text) for text in owed]

    def news(self) -> dict[str, Trouble]:
        """Troubles that were not reported."""
        return {id: trouble for id, trouble in self._judge.troubles().items() if id not in self._reported}

    def withdraw(self, id: str) -> None:
        """Its trouble is over: should it come again, that is news."""
        self._reported.discard(id)

    def report(self, remaining: int, now: float) -> list[Decision]:
        """Say who is gone and why, once; make sure that it does no more harm."""
        decisions: list[Decision] = []
        for id, trouble in self.news().items():
            state = self._roster.members[id]
            more = isinstance(trouble, Vanished) or is_own_accord(trouble)
            if more and self._judge.is_fresh(id, now):
                continue  # how its process ended, or that the others did the same, is about to be known
            self._reported.add(id)
            servers = len(self._roster.servers())
            with_whom = counted(servers, "server") if role_of(id) == "server" else counted(remaining, "worker")
            decisions.append(ReportTrouble(f"{trouble.sentence(id)}; going on with {with_whom}"))
            if state.member is not None and isinstance(trouble, Silent | Unreachable | Overdue):
                decisions.append(Fence(state.member))
                decisions += [HangUp(state.link)] if state.link is not None else []
        return decisions

"""The script's calls that are over: whose results are kept, and who must be told. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.events import Decision, KeepResult, Tell, TellResults
from shoal.cluster.membership.roster import Roster
from shoal.cluster.messages import Finished
from shoal.cluster.view import View


class FinishedCalls:
    """Which they are, in order. What they returned is in a file: only the shell reads it."""

    def __init__(self, roster: Roster, finished: Sequence[int] = ()) -> None:
        self._roster = roster
        self._finished: dict[int, None] = dict.fromkeys(finished)

    def __contains__(self, call: int) -> bool:
        return call in self._finished

    def finish(self, finished: Finished, view: View | None) -> list[Decision]:
        """A call has returned: those who are not in the view have no other way to know."""
        if finished.call in self._finished:
            return []
        self._finished[finished.call] = None
        for state in self._roster.members.values():
            state.ready = None if state.ready == finished.call else state.ready  # it need not be let in any more
        return [KeepResult(finished.call, finished.result), Tell(self._roster.links_outside(view), finished)]

    def leave(self, call: int, outcome: bytes) -> list[Decision]:
        """A call has raised: all hear of it, and of what it returned if that came first."""
        links = self._roster.links()
        if call in self._finished:
            return [TellResults(links, (call,))]
        self._finished[call] = None
        return [KeepResult(call, outcome), Tell(links, Finished(call, outcome))]

    def tell(self, *links: int) -> list[Decision]:
        """What every call has returned that is over."""
        return [TellResults(links, tuple(self._finished))] if links and self._finished else []

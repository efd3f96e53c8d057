"""What a member has heard from the coordinator, and what it means for it. Pure; the link guards it with its lock."""

from __future__ import annotations

from shoal.cluster.messages import (
    Candidate,
    Candidates,
    CoordinatorEpoch,
    Drain,
    End,
    Finished,
    Post,
    RefusalReason,
    Refuse,
    SaveNow,
)
from shoal.cluster.view import View
from shoal.errors import CutOff, Refused, RunEnded, UsageError
from shoal.wire.messages import Message


class HeardSoFar:
    """All that counts of what was said so far. Grows with the script's calls, until `forget_results`."""

    def __init__(self) -> None:
        self.newest: View | None = None
        self.epoch = 0  # of the coordinator; 0: nobody can be elected in its place
        self.posts: dict[str, bytes] = {}
        self.results: dict[int, bytes] = {}
        self.candidates: tuple[Candidate, ...] = ()
        self.drain: str | None = None
        self.save_now = False
        self.end: End | None = None  # a good one
        self.over: BaseException | None = None  # why this member no longer counts
        self._posted_before: tuple[str, ...] = ()
        self._results_from = 0  # the first call whose result may still be asked for

    @property
    def view(self) -> View:
        """The newest view. UsageError before the first."""
        if self.newest is None:
            raise UsageError("this member has not joined a run yet")
        return self.newest

    @property
    def is_over(self) -> bool:
        """Nothing more is heard of the coordinator."""
        return self.end is not None or self.over is not None

    def why_over(self) -> BaseException | None:
        """Why that is so, if it is."""
        return self.over or (RunEnded(self.end.reason) if self.end is not None else None)

    def is_newer(self, view: View) -> bool:
        """Or it is told again, by a coordinator that has just come."""
        return self.newest is None or view.number > self.newest.number

    def take_view(self, view: View, me: str) -> None:
        """A newer one. Who comes into it late must know what was posted before."""
        if self.newest is not None and view.has(me) and not self.newest.has(me):
            self._posted_before = tuple(self.posts)
        self.newest = view

    def take(self, message: Message) -> None:
        """All but views."""
        match message:
            case CoordinatorEpoch(epoch):
                self.epoch = epoch
            case Candidates(who):
                self.candidates = who
            case Finished(call, result) if call >= self._results_from:
                self.results[call] = result
            case Drain(why):
                self.drain = why
            case SaveNow():
                self.save_now = True
            case Post(name, value):
                self.posts[name] = value
            case End(ok=True):
                self.end = message
            case _:
                pass

    def posted_before(self) -> tuple[str, ...]:
        """The names under which something had been posted when this worker, which came late, was let in. Told once."""
        names, self._posted_before = self._posted_before, ()
        return names

    def forget_results(self, before: int) -> None:
        """Nobody asks any more for what calls before this one returned."""
        self._results_from = max(before, self._results_from)
        self.results = {call: result for call, result in self.results.items() if call >= self._results_from}


def why_lost(message: Message) -> BaseException | None:
    """Why this member no longer counts, if that is what the message says."""
    match message:
        case End(ok=False, reason=reason):
            return RunEnded(reason)
        case Refuse(RefusalReason.OVER, text):
            return RunEnded(text)
        case Refuse(RefusalReason.OUTSIDE, text):
            return CutOff(f"the run went on without this worker: {text}")
        case Refuse(reason, text):
            return Refused(reason.value, text)
        case _:
            return None

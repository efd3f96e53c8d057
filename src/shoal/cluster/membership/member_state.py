"""What is known about one member of a run. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.cluster.events import Evidence
from shoal.cluster.messages import Beat, WorkDone
from shoal.cluster.trouble import Absent, Died, ScriptRaised, Trouble, Unlike, Whereabouts
from shoal.cluster.view import Member


@dataclass(slots=True)
class MemberState:
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
    work: WorkDone = field(default_factory=WorkDone)  # once it is done
    left: bool = False  # of its own accord, between two steps
    code: int | None = None  # with which its process ended, while its last words were still on their way
    trouble: Trouble | None = None

    @property
    def waits(self) -> bool:
        """Whether it can't go on unless all others come."""
        return self.beat.exchanging

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
        return self.done or self.left or died or isinstance(self.trouble, ScriptRaised | Unlike | Absent)

"""A host's part in the election of the next coordinator: events and the time in, actions out. Pure.

    follows ── its coordinator's link is closed for a moment, or silent for longer ──▶ tries: "would you?"
       ▲                                                                                  │ enough would
       │  somebody else is elected, or the coordinator is heard again                     ▼
       └───────────────────────────────────────────────────────────────────────────── stands, in the next epoch
                                                                                          │ enough have voted for it
                                                                                          ▼
                                                                                    has the coordinator

A host votes once in an epoch, and only for a candidate whose copy of the record goes as far as its own. What has
counted is in the copies of hosts that are enough; those who elect are enough, too; so at least one of them has it, and
whoever is elected has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from shoal.cluster.succession.electorate import Electorate, RecordPosition
from shoal.cluster.succession.succession_messages import CoordinatorAt, Heeded, RecordEntry, Vote, VoteRequest

CLOSED = 1.0  # seconds from the end of the coordinator's link until somebody stands: its own host comes first
STARTS = 8.0  # seconds that somebody who was voted for has to start a coordinator
AGAIN = 1.0  # seconds from one attempt to the next, and up to as many more


@dataclass(frozen=True, slots=True)
class AskForVotes:
    """Of these hosts."""

    request: VoteRequest
    of: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartCoordinator:
    """This host was elected: start one that goes on from its copy of the record."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StopCoordinator:
    """The one of this host is none any more. Nothing that it has not done yet may happen."""

    why: str


@dataclass(frozen=True, slots=True)
class FollowCoordinator:
    """The coordinator of this epoch is there. Should this host have one, it is none any more."""

    epoch: int
    host: str
    address: str


@dataclass(frozen=True, slots=True)
class AskWhetherDead:
    """This half could go on if these hosts were dead: the user's command may know, and answers with `fence`."""

    hosts: tuple[str, ...]


ElectionAct = AskForVotes | StartCoordinator | StopCoordinator | FollowCoordinator | AskWhetherDead


class Voter:
    """One host's. `first`: the host that has the coordinator when this begins, in this epoch."""

    def __init__(
        self, me: str, electorate: Electorate, first: str, silence: float, now: float, random: Random, epoch: int = 1
    ) -> None:
        self.me = me
        self.electorate = electorate
        self.epoch = epoch
        self.position = RecordPosition(0, 0)
        self.coordinator: str | None = first  # the host that has it, as far as is known
        self._voted: str | None = first
        self._silence = silence
        self._random = random
        self._heard = now  # when the coordinator last said anything
        self._is_linked = False
        self._stand_at = now + STARTS
        self._votes: set[str] = set()
        self._trial: int | None = None  # the epoch that was asked for on trial
        self._is_candidate = False
        self._fenced: set[str] = set()

    @property
    def fenced(self) -> tuple[str, ...]:
        """Voters that the user's command says are dead."""
        return tuple(self._fenced)

    @property
    def has_coordinator(self) -> bool:
        """Whether it is on this host."""
        return self.coordinator == self.me

    def hears(self, now: float) -> bool:
        """Whether the coordinator is there, as far as this host can tell."""
        return self._is_linked and now - self._heard < self._silence

    # What is heard of the coordinator -----------------------------------------------------------------

    def hear(self, epoch: int, now: float) -> bool:
        """The coordinator of this epoch has said something. False: it is none any more, do not heed it."""
        if epoch != self.epoch:
            return False
        self._is_linked, self._heard = True, now
        self._stop_standing()
        return True

    def keep(self, entry: RecordEntry, now: float) -> bool:
        """It has written this; it is to be in this host's copy before it is said to be. False: as above."""
        if not self.hear(entry.epoch, now):
            return False
        if entry.index:
            follows_on = entry.epoch == self.position.epoch and entry.index == self.position.index + 1
            if not follows_on and not (entry.anew or entry.index == 1):
                return False  # something is missing in between
            self.position = RecordPosition(entry.epoch, entry.index)
            self.electorate = entry.electorate
        return True

    def close(self, now: float) -> None:
        """The link to the coordinator is gone. On its own host it is known that it died: that host stands at once."""
        self._is_linked = False
        if not self._is_candidate and self._trial is None:
            wait = 0.0 if self.has_coordinator else CLOSED + self._random.random() * AGAIN
            self._stand_at = min(self._stand_at, now + wait)

    # Voting -------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[ElectionAct]:
        """Time has passed."""
        if self.hears(now) or not self._may_stand():
            return []
        due = self._stand_at if not self._is_linked else self._heard + self._silence
        if now < due:
            return []
        self._is_linked = False
        acts = self._ask_whether_dead()
        self._stand_at = now + AGAIN + self._random.random() * AGAIN
        self._is_candidate = False
        self._trial, self._votes = self.epoch + 1, {self.me}
        return [*acts, self._request(self._trial, True), *self._count(now)]

    def answer(self, request: VoteRequest, now: float) -> tuple[Vote, list[ElectionAct]]:
        """What this host says to a candidate, and does."""
        acts: list[ElectionAct] = []
        behind = request.epoch <= self.epoch if request.is_trial else request.epoch < self.epoch
        # Who hears the coordinator does not help to replace it: the candidate is cut off, not the coordinator dead.
        content = self.hears(now) and request.epoch > self.epoch
        if behind or content or request.position < self.position:
            return self._vote(request, False), acts
        if request.is_trial:
            return self._vote(request, True), acts
        if request.epoch > self.epoch:
            acts = self._enter(request.epoch, None)
        granted = self._voted in (None, request.candidate)
        if granted:
            self._voted = request.candidate
            self._stand_at = now + STARTS + self._random.random() * AGAIN
        return self._vote(request, granted), acts

    def count(self, vote: Vote, now: float) -> list[ElectionAct]:
        """An answer has come."""
        if vote.epoch > self.epoch and not vote.is_trial:
            return self._enter(vote.epoch, None)
        wanted = self._trial if vote.is_trial else self.epoch if self._is_candidate else None
        if not vote.granted or vote.asked != wanted:
            return []
        self._votes.add(vote.voter)
        return self._count(now)

    def fence(self, hosts: tuple[str, ...], now: float) -> list[ElectionAct]:
        """The user's command says that these are dead: they count as if they agreed."""
        self._fenced |= set(hosts)
        return self._count(now) if self._trial is not None or self._is_candidate else []

    def meet(self, announced: CoordinatorAt, now: float) -> tuple[Heeded, list[ElectionAct]]:
        """Somebody says that it has the coordinator."""
        if announced.epoch < self.epoch:
            return Heeded(self.epoch, self.me), []
        acts = self._enter(announced.epoch, announced.host) if announced.epoch > self.epoch else []
        is_news = self.coordinator != announced.host or bool(acts) or not self._is_linked
        self.coordinator = announced.host
        if is_news:
            self._stop_standing()
            self._stand_at = now + STARTS
            acts.append(FollowCoordinator(announced.epoch, announced.host, announced.address))
        return Heeded(self.epoch, self.me), acts

    def learn(self, epoch: int) -> list[ElectionAct]:
        """Somebody knows of this epoch."""
        return self._enter(epoch, None) if epoch > self.epoch else []

    # ---------------------------------------------------------------------------------------------------

    def _known(self) -> tuple[str, ...]:
        return self.electorate.everyone()

    def _may_stand(self) -> bool:
        """A run whose first view never came has no record to go on from."""
        return self.me in self._known() and self.position.index > 0

    def _request(self, epoch: int, is_trial: bool) -> AskForVotes:
        others = tuple(voter for voter in self._known() if voter != self.me)
        return AskForVotes(VoteRequest(epoch, self.me, self.position, is_trial), others)

    def _vote(self, request: VoteRequest, granted: bool) -> Vote:
        return Vote(self.epoch, self.me, granted, request.epoch, request.is_trial)

    def _count(self, now: float) -> list[ElectionAct]:
        if not self.electorate.is_enough(self._votes | self._fenced):
            return []
        if self._trial is not None:
            epoch, self._trial = self._trial, None
            if epoch <= self.epoch:
                return []  # there was another meanwhile
            self._enter(epoch, None)  # one of this host that died, or says nothing, is replaced if it is elected again
            self._voted, self._votes, self._is_candidate = self.me, {self.me}, True
            return [self._request(epoch, False), *self._count(now)]
        if not self._is_candidate:
            return []
        self._stop_standing()
        self.coordinator = self.me
        self._stand_at = now + STARTS
        return [StartCoordinator(self.epoch)]

    def _ask_whether_dead(self) -> list[ElectionAct]:
        """Of those who did not answer the last time, if they are all that is missing."""
        agreed = self._votes | {self.me}
        silent = tuple(voter for voter in self._known() if voter not in agreed | self._fenced)
        tried = self._trial is not None or self._is_candidate
        is_half = self.electorate.is_half(agreed) and not self.electorate.is_enough(agreed | self._fenced)
        return [AskWhetherDead(silent)] if tried and silent and is_half else []

    def _stop_standing(self) -> None:
        self._trial, self._is_candidate, self._votes = None, False, set()

    def _enter(self, epoch: int, coordinator: str | None) -> list[ElectionAct]:
        """A later epoch: whatever this host was in the one before, it is not any more."""
        acts: list[ElectionAct] = []
        if self.has_coordinator:
            acts.append(StopCoordinator(f"another coordinator was elected (epoch {epoch})"))
        self.epoch, self._voted, self.coordinator = epoch, coordinator, coordinator
        self._is_linked = False
        self._stop_standing()
        return acts

"""Deliberate bugs of election and succession, one at a time: the simulator must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shoal.cluster.succession.election import ElectionAct, Voter
from shoal.cluster.succession.electorate import Electorate, RecordPosition
from shoal.cluster.succession.record_copies import RecordCopies
from shoal.cluster.succession.succession_messages import RecordEntry, Vote, VoteRequest

from .hosts import HostPlan, HostSimulation, Wrong
from .test_hosts_lost import chaos, cuts, one_at_a_time, silent, splits

RUNS = 60  # of each plan, within which a mutant must be found
Patch = pytest.MonkeyPatch
Plans = Callable[[int], HostPlan]
MUTANTS: dict[str, tuple[Callable[[Patch], None], tuple[Plans, ...], int]] = {}


def shows(*plans: Plans, seed: int = 0) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """A decorator of a bug that shows under these plans. `seed`: the first that is tried, since looking takes time."""

    def add(change: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS[change.__name__] = (change, plans, seed)
        return change

    return add


@shows(cuts, splits)
def half_is_enough(patch: Patch) -> None:
    patch.setattr(Electorate, "is_enough", Electorate.is_half)


@shows(cuts, chaos)
def one_is_enough_to_count(patch: Patch) -> None:
    patch.setattr(RecordCopies, "_is_enough", lambda self, voters: bool(voters))


@shows(cuts, chaos)
def what_was_written_counts_at_once(patch: Patch) -> None:
    patch.setattr(RecordCopies, "committed", property(lambda self: self.index))


@shows(cuts, chaos)
def a_voter_does_not_look_at_the_candidates_record(patch: Patch) -> None:
    true = Voter.answer

    def answer(self: Voter, request: VoteRequest, now: float) -> Any:
        return true(self, msgspec.structs.replace(request, position=RecordPosition(10**6, 0)), now)

    patch.setattr(Voter, "answer", answer)


@shows(cuts, chaos, seed=15)
def records_are_compared_by_their_length_alone(patch: Patch) -> None:
    patch.setattr(RecordPosition, "__lt__", lambda self, other: self.index < other.index)


@shows(cuts, chaos)
def a_voter_votes_for_all_who_ask(patch: Patch) -> None:
    true = Voter.answer

    def answer(self: Voter, request: VoteRequest, now: float) -> Any:
        if request.epoch == self.epoch:
            self._voted = None
        return true(self, request, now)

    patch.setattr(Voter, "answer", answer)


@shows(cuts, chaos)
def a_vote_of_another_epoch_counts(patch: Patch) -> None:
    true = Voter.count

    def count(self: Voter, vote: Vote, now: float) -> list[ElectionAct]:
        return true(self, msgspec.structs.replace(vote, asked=self._trial or self.epoch, granted=True), now)

    patch.setattr(Voter, "count", count)


@shows(cuts, chaos, seed=175)
def a_voter_keeps_what_a_coordinator_of_an_earlier_epoch_writes(patch: Patch) -> None:
    true = Voter.keep

    def keep(self: Voter, entry: RecordEntry, now: float) -> bool:
        if entry.epoch < self.epoch:
            self.position = RecordPosition(entry.epoch, entry.index)
            return True
        return true(self, entry, now)

    patch.setattr(Voter, "keep", keep)


@shows(cuts, chaos, seed=90)
def what_a_voter_kept_in_another_epoch_counts_in_this_one(patch: Patch) -> None:
    true = RecordCopies.keep
    patch.setattr(RecordCopies, "keep", lambda self, voter, _, index, now: true(self, voter, self.epoch, index, now))
    follow = RecordCopies.follow

    def follows(self: RecordCopies, voter: str, position: RecordPosition, now: float) -> bool:
        return follow(self, voter, RecordPosition(self.epoch, position.index), now)

    patch.setattr(RecordCopies, "follow", follows)


@shows(cuts, chaos, splits, seed=15)
def the_electorate_changes_without_the_old_one(patch: Patch) -> None:
    patch.setattr(Electorate, "changed", lambda self, voters: Electorate(voters, (), self.first_decides))


@shows(cuts, chaos, splits, seed=15)
def a_change_of_the_electorate_is_over_before_it_counts(patch: Patch) -> None:
    true = RecordCopies.change
    patch.setattr(RecordCopies, "change", lambda self, electorate: true(self, electorate.settled()))


@shows(one_at_a_time)
def the_electorate_never_changes(patch: Patch) -> None:
    patch.setattr(RecordCopies, "next_electorate", lambda self, now: None)


@shows(silent)
def whose_link_is_open_stays_in_the_electorate(patch: Patch) -> None:
    true = RecordCopies.next_electorate

    def next_electorate(self: RecordCopies, now: float) -> Electorate | None:
        for copy in self._copies.values():
            copy.heard = now if copy.is_linked else copy.heard
        return true(self, now)

    patch.setattr(RecordCopies, "next_electorate", next_electorate)


@shows(one_at_a_time)
def nobody_stands(patch: Patch) -> None:
    patch.setattr(Voter, "_may_stand", lambda self: False)


@shows(one_at_a_time)
def silence_is_not_noticed(patch: Patch) -> None:
    patch.setattr(Voter, "hears", lambda self, now: self._is_linked)


@shows(cuts, chaos)
def a_gap_in_the_record_is_not_noticed(patch: Patch) -> None:
    true = RecordCopies.follow

    def follow(self: RecordCopies, voter: str, position: RecordPosition, now: float) -> bool:
        needs_all = true(self, voter, position, now)
        self._copies[voter].sent = self.index
        return needs_all

    patch.setattr(RecordCopies, "follow", follow)
    keep = Voter.keep
    patch.setattr(
        Voter,
        "keep",
        lambda self, entry, now: keep(self, msgspec.structs.replace(entry, anew=True), now),
    )


def found(name: str) -> tuple[str, int, Wrong] | None:
    change, plans, first = MUTANTS[name]
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        for seed in range(first, first + RUNS):
            for plan in plans:
                try:
                    HostSimulation(plan(seed)).play()
                except Wrong as wrong:
                    return plan.__name__, seed, wrong
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_finds_every_mutant(name: str) -> None:
    assert found(name) is not None

"""From the same notes every member draws the same conclusions."""

from __future__ import annotations

import pytest

from shoal.errors import Diverged, UsageError
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.notes import Note, check_agreement, decode, encode, stopped

MEMBERS = ("worker-0", "worker-1", "worker-2")


def test_a_note_travels() -> None:
    note = Note(7, stop=True, seconds=0.25, weights=-3)
    assert decode([encode(note)]) == [note]


def test_one_worker_that_stopped_stops_all() -> None:
    assert stopped([Note(3), Note(3, stop=True)])
    assert not stopped([Note(3), Note(3)])


def test_the_odd_one_out_is_named() -> None:
    check_agreement(MEMBERS, [Note(4, weights=1)] * 3)
    with pytest.raises(Diverged, match=r"weights of worker-1 differ .* before step 4: 2 of 3"):
        check_agreement(MEMBERS, [Note(4, weights=1), Note(4, weights=2), Note(4, weights=1)])


def test_without_a_majority_the_chief_is_right() -> None:
    with pytest.raises(Diverged, match=r"weights of worker-1, worker-2 differ"):
        check_agreement(MEMBERS, [Note(4, weights=1), Note(4, weights=2), Note(4, weights=3)])


def test_weights_are_compared_only_when_all_gave_them() -> None:
    check_agreement(MEMBERS[:2], [Note(4, weights=1), Note(4)])


def test_workers_at_different_steps_are_named() -> None:
    with pytest.raises(Diverged, match="worker-0 at 3, worker-1 at 4"):
        check_agreement(MEMBERS[:2], [Note(3), Note(4)])


def test_pieces_come_from_the_script_then_the_command_line_then_the_workers() -> None:
    assert AllReduce(pieces=8).pieces_for(4, 2) == 8
    assert AllReduce().pieces_for(4, 2) == 4
    assert AllReduce().pieces_for(None, 2) == 2
    with pytest.raises(UsageError, match="3 workers: 1 of them would have nothing to do"):
        AllReduce(pieces=2).pieces_for(None, 3)

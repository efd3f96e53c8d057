"""What becomes of an operation on a file, given what the chief has done: without any file."""

from __future__ import annotations

import pytest

from shoal.files.following import Deeds, FileOutcome, Key, Turn, follow
from shoal.files.journal import Doing, JournalPlace, JournalRecord

HERE = JournalPlace(calls=2)
MKDIR = Key("mkdir", "/data/out")
FIRST = Turn(MKDIR, 1, 1)


def deeds(*records: tuple[str, str, int]) -> Deeds:
    found = Deeds()
    found.add(JournalRecord(*record) for record in records)
    return found


def test_a_worker_waits_for_what_the_chief_has_not_done_yet() -> None:
    assert follow(FIRST, deeds(), HERE, calls=2) is None
    assert follow(FIRST, deeds(("mkdir", "/data/other", 0), ("open", "/data/out", 0)), HERE, calls=2) is None


@pytest.mark.parametrize("error", [0, 17])
def test_it_gets_what_the_chief_got(error: int) -> None:
    assert follow(FIRST, deeds(("mkdir", "/data/out", error)), HERE, calls=2) == FileOutcome(True, error)


def test_the_second_time_is_another_than_the_first() -> None:
    once = deeds(("mkdir", "/data/out", 0))
    assert follow(Turn(MKDIR, 2, 2), once, HERE, calls=2) is None
    once.add([JournalRecord("mkdir", "/data/out", 17)])
    assert follow(Turn(MKDIR, 2, 2), once, HERE, calls=2) == FileOutcome(True, 17)


@pytest.mark.parametrize("chief", [JournalPlace(3), JournalPlace(2, Doing.MEETING), JournalPlace(2, Doing.OVER)])
def test_a_chief_that_has_gone_on_or_waits_for_all_is_not_waited_for(chief: JournalPlace) -> None:
    assert follow(FIRST, deeds(), chief, calls=2) == FileOutcome(False)


def test_what_the_chief_did_before_it_went_on_still_counts() -> None:
    assert follow(FIRST, deeds(("mkdir", "/data/out", 17)), JournalPlace(3), calls=2) == FileOutcome(True, 17)


def test_a_path_with_another_time_in_it_does_not_keep_a_worker() -> None:
    own = Key("mkdir", "/runs/20260102-030405")
    theirs = deeds(("mkdir", "/runs/20260102-030404", 0))
    assert follow(Turn(own, 1, 1), theirs, HERE, calls=2) == FileOutcome(False, instead="/runs/20260102-030404")
    assert follow(Turn(own, 1, 2), theirs, HERE, calls=2) is None  # it is the second of this kind here


def test_numbered_files_are_told_apart() -> None:
    third = Key("open", "/out/picture_3.png")
    written = deeds(*(("open", f"/out/picture_{n}.png", 0) for n in (1, 2)))
    assert follow(Turn(third, 1, 3), written, HERE, calls=2) is None
    written.add([JournalRecord("open", "/out/picture_3.png", 0)])
    assert follow(Turn(third, 1, 3), written, HERE, calls=2) == FileOutcome(True)

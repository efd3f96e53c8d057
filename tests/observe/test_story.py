"""The story of a run: written by several, bounded, readable whatever became of its writers."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.observe.story import LIMIT, OLDER, STORY, Story, StoryKind, read


def test_what_was_written_is_read_in_its_order(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.write(StoryKind.VIEW, "view 1: 2 workers")
    story.write(StoryKind.REDONE, "computed anew", "worker-0", 7)
    first, second = read(tmp_path)
    assert (first.kind, first.text, first.member, first.step) == (StoryKind.VIEW, "view 1: 2 workers", "", None)
    assert (second.kind, second.member, second.step) == (StoryKind.REDONE, "worker-0", 7)
    assert first.at <= second.at


def test_an_hours_worth_of_events_stays_within_its_bounds_and_the_last_are_there(tmp_path: Path) -> None:
    story = Story(tmp_path, limit=20_000)
    for number in range(3600):
        story.write(StoryKind.TROUBLE, f"trouble {number}, which takes about as many words as troubles do")
    assert sum((tmp_path / name).stat().st_size for name in (STORY, OLDER)) < 41_000
    texts = [event.text for event in read(tmp_path)]
    assert texts[-1].startswith("trouble 3599,")
    assert len(texts) > 100
    numbers = [int(text.split()[1].rstrip(",")) for text in texts]
    assert numbers == list(range(numbers[0], 3600))


def test_the_products_own_limit_holds_for_an_hour_of_ten_long_events_a_second(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for number in range(36_000):
        story.write(StoryKind.STACK, f"{number} {'x' * 400}")
    # A line is at most 2,000 characters and what is around them.
    assert sum((tmp_path / name).stat().st_size for name in (STORY, OLDER)) < 2 * (LIMIT + 8_000)
    numbers = [int(event.text.split()[0]) for event in read(tmp_path)]
    assert numbers == list(range(numbers[0], 36_000))
    assert len(numbers) > 3_600, "the last minutes are there"


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        for number in range(200):
            Story(tmp_path).write(StoryKind.CALL, f"{writer} {number} {'x' * 300}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert sorted(event.text.split()[0] for event in read(tmp_path)) == [str(w) for w in range(4) for _ in range(200)]


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    Story(tmp_path).write(StoryKind.END, "the end")
    with (tmp_path / STORY).open("ab") as file:
        file.write(b'{"at": 1.0, "kind": "no such kind", "text": ""}\n[]\n\xff\n{"at": 2.0, "ki')
    assert [event.text for event in read(tmp_path)] == ["the end"]


def test_nobody_fails_where_nothing_can_be_written_or_read(tmp_path: Path) -> None:
    Story(tmp_path / "gone").write(StoryKind.END, "nobody hears it")
    assert list(read(tmp_path / "gone")) == []


def test_of_two_writers_that_find_it_full_only_one_makes_it_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, fstat, slow = Story(tmp_path, limit=10), os.fstat, [True]
    story.write(StoryKind.CALL, "first")

    def others_are_faster(fd: int) -> os.stat_result:
        found = fstat(fd)
        if slow and slow.pop():
            story.write(StoryKind.CALL, "second")  # makes the file the older one
            story.write(StoryKind.CALL, "third")
        return found

    monkeypatch.setattr(os, "fstat", others_are_faster)
    story.write(StoryKind.CALL, "slow")
    assert sorted(event.text for event in read(tmp_path)) == ["first", "second", "slow", "third"]

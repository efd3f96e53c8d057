"""What becomes of an operation on a file, on a worker that is not the chief. Pure.

The chief's script is the same, so the chief comes to the same operation. A worker lets it go first: it learns from the
chief's journal what came of the operation, and goes on. If the chief has gone past the place without having done it
(its path has another time in it, this worker came late), the worker does it for itself alone.

What others write must not be read half-written. A file that has changed since this worker last met the chief is read
when the chief is at its next call of fit and its kin, where it waits for everybody: then nothing changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.files.journal import Doing, JournalPlace, JournalRecord

REMOVALS = ("remove", "rmtree", "leave")  # leave: what is renamed leaves its old path
BEGUN = "begun:"  # before the name of an operation that takes its time
_NUMBER = re.compile(r"\d+")


class Key(NamedTuple):
    """What is done to which path."""

    operation: str
    path: str

    @property
    def like(self) -> Key:
        """The same for paths that differ in numbers only, such as the time of day."""
        return Key(self.operation, _NUMBER.sub("#", self.path))


class FileOutcome(NamedTuple):
    """What became of an operation on the chief: done, with this errno; or the chief is past it and has not done it."""

    done: bool
    error: int = 0
    instead: str | None = None  # the path to which the chief has done it


@dataclass(slots=True)
class Deeds:
    """What somebody has done since the last call."""

    done: dict[Key, list[JournalRecord]] = field(default_factory=dict)
    alike: dict[Key, list[JournalRecord]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)  # of what was removed last

    def add(self, records: Iterable[JournalRecord]) -> None:
        for record in records:
            key = Key(record.operation, record.path)
            self.done.setdefault(key, []).append(record)
            self.alike.setdefault(key.like, []).append(record)
            if key.operation in REMOVALS and record.error == 0:
                self.held[key.path] = record.held

    def of(self, key: Key, count: int) -> int | None:
        """What came of it the `count`-th time, if it was done as often."""
        found = self.done.get(key, ())
        return found[count - 1].error if len(found) >= count else None

    def removed(self, path: str, mine: Mapping[Key, int]) -> int | None:
        """The descriptor under which something is held that was removed, if who has done `mine` is not there yet."""
        if path in self.held:
            for operation in REMOVALS:
                key = Key(operation, path)
                if len(self.done.get(key, ())) > mine.get(key, 0):
                    return self.held[path]
        return None

    def unfinished(self, mine: Mapping[Key, int]) -> list[str]:
        """New files that are half-written, of one who died: who has done `mine` has not come to them yet."""
        found = []
        for key, records in self.done.items():
            ahead = records[mine.get(key, 0) :]
            is_open = key.operation == "open" and self.is_open(key.path)
            name = key.operation.removeprefix(BEGUN)
            if is_open or (name != key.operation and len(records) > self._times(name, key.path)):
                found += [record.path for record in ahead[:1] if record.is_new and not record.error]
        return found

    def is_open(self, path: str) -> bool:
        """Whether it was opened more often than closed."""
        opened = sum(not record.error for name in ("open", "append") for record in self.done.get(Key(name, path), ()))
        return opened > self._times("close", path)

    def _times(self, operation: str, path: str) -> int:
        return len(self.done.get(Key(operation, path), ()))


class Turn(NamedTuple):
    """An operation that a worker has come to: as which of its kind since the last call."""

    key: Key
    nth: int
    nth_like: int  # as which of those whose paths differ in numbers only


def follow(turn: Turn, deeds: Deeds, chief: JournalPlace, calls: int) -> FileOutcome | None:
    """What to do about it, after `calls` calls. None: wait and look again.

    `deeds` must not be older than `chief`.
    """
    outcome = deeds.of(turn.key, turn.nth)
    if outcome is not None:
        return FileOutcome(True, outcome)
    alike = deeds.alike.get(turn.key.like, ())
    if turn.key not in deeds.done and len(alike) >= turn.nth_like:
        return FileOutcome(False, instead=alike[turn.nth_like - 1].path)
    return FileOutcome(False) if has_come(chief, calls) else None


def has_come(chief: JournalPlace, calls: int) -> bool:
    """Whether the chief has done all that lies before the next call; with it, or waits for everybody."""
    return chief.calls > calls or chief.doing is not Doing.RUNNING

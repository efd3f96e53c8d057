"""What the chief has done to files since the last call, and how far this worker has come on the same way."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

from shoal.files.following import Deeds, FileOutcome, Key, Turn, follow, has_come
from shoal.files.journal import JournalPlace, JournalReader, members


class Trail:
    """One worker's view of it. All threads share it."""

    def __init__(self, folder: Path, me: str) -> None:
        self._folder = folder
        self._me = me
        self._lock = threading.RLock()
        self._reader: JournalReader | None = None
        self._read_of = ""
        self.phase = 0
        self.begin(0)

    def begin(self, phase: int) -> None:
        """This worker has come to its `phase`-th call."""
        with self._lock:
            self.close()
            self.phase = phase
            self._deeds = Deeds()
            self._counts: Counter[Key] = Counter()  # of this worker's operations
            self._followed: set[str] = set()

    def close(self) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader = None

    def turn(self, key: Key) -> Turn:
        """This worker comes to an operation: as which of its kind."""
        with self._lock:
            self._counts[key] += 1
            if key.like != key:
                self._counts[key.like] += 1
            return Turn(key, self._counts[key], self._counts[key.like])

    def follow(self, chief: str, turn: Turn) -> FileOutcome | None:
        """What came of it there; None: it is not known yet."""
        with self._lock:
            place = self._read(chief)
            return follow(turn, self._deeds, place, self.phase)

    def has_come(self, chief: str) -> bool:
        """Whether it has done all that lies before its next call."""
        with self._lock:
            return has_come(self._read(chief), self.phase)

    def is_open(self, path: str) -> bool:
        """Whether the chief is writing it, as far as was read."""
        with self._lock:
            return self._deeds.is_open(path)

    def keep_up(self, path: str, leaves: str | None) -> None:
        """The chief has done what this worker has come to as well."""
        with self._lock:
            self._followed.add(path)
            if leaves is not None and leaves != path:
                self._followed.add(leaves)
                self._counts[Key("leave", leaves)] += 1

    def was_followed(self, path: str) -> bool:
        return path in self._followed

    def removed(self, chief: str, path: str) -> int | None:
        """What the chief has removed already, and this worker not yet: the descriptor under which it is held."""
        with self._lock:
            self._read(chief)
            return self._deeds.removed(path, self._counts)

    def is_in_removed(self, chief: str, path: str) -> bool:
        """Whether the chief has removed a folder in which this lay."""
        return any(self.removed(chief, str(folder)) is not None for folder in Path(path).parents)

    def of_the_dead(self) -> tuple[Deeds, list[str]]:
        """For the next chief: what the one before has done in this phase; and what others left half-written."""
        with self._lock:
            found = [self._deeds_of(member) for member in members(self._folder) if member != self._me]
            unfinished = [path for deeds in found for path in deeds.unfinished(self._counts)]
            # Of several the one that came furthest: the others were followers, or died in its place soon after.
            return max(found, key=lambda deeds: len(deeds.done), default=Deeds()), unfinished

    def _read(self, chief: str) -> JournalPlace:
        if self._reader is None or self._read_of != chief:
            self.close()
            self._deeds, self._reader, self._read_of = Deeds(), JournalReader(self._folder, chief, self.phase), chief
        place = self._reader.place()  # first: what it did before it came there is known then
        self._deeds.add(self._reader.news())
        return place

    def _deeds_of(self, member: str) -> Deeds:
        deeds, reader = Deeds(), JournalReader(self._folder, member, self.phase)
        deeds.add(reader.news())
        reader.close()
        return deeds

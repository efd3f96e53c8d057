"""Checkpoints without files: what `checkpoint.writer.Writer` does, in the memory of a simulated run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.checkpoint.drafts import Draft
from shoal.checkpoint.manifest import CheckpointPart, part_name
from shoal.checkpoint.publish import NotWritten, PublishedCheckpoint
from shoal.checkpoint.writer import Outcome, Written
from shoal.strategies.schema import Array
from shoal.training import saving, served_saving

from .machine import Process, World, current

WRITES = 0.02  # seconds, at most, that a part takes to get to disk


class Checkpoints:
    """What is on the disk of a run."""

    def __init__(self) -> None:
        self.drafts: dict[str, dict[str, dict[str, Array]]] = {}  # draft -> part -> arrays, by name
        self.published: dict[str, dict[str, Array]] = {}


class ToyWriter:
    """A `Writer`."""

    def __init__(self) -> None:
        self._process: Process = current().process
        self._world: World = self._process.world
        self._disk: Checkpoints = self._world.disk
        self._busy_until = 0.0
        self._outcome: Outcome | None = None

    @property
    def busy(self) -> bool:
        return self._world.time < self._busy_until

    def begin(self, draft: Draft, place: int, arrays: Mapping[str, Array]) -> None:
        assert not self.busy, "one thing at a time"
        copied = {name: np.array(array) for name, array in arrays.items()}
        part = CheckpointPart(part_name(place), sum(array.nbytes for array in copied.values()), "0" * 64)
        self._disk.drafts.setdefault(draft.path.name, {})[part.name] = copied
        self._take(Written(draft, part))

    def publish(
        self, draft: Draft, parts: Sequence[CheckpointPart], header: Mapping[str, Any], keep: int, *_: object
    ) -> None:
        assert not self.busy, "one thing at a time"
        written = self._disk.drafts.get(draft.path.name, {})
        missing = [part.name for part in parts if part.name not in written]
        if missing:
            self._take(NotWritten(draft.step, f"{missing} were never written"))
            return
        arrays: dict[str, Array] = {}
        for part in parts:
            arrays |= written[part.name]
        self._disk.published[draft.final.name] = arrays
        if self._world.history is not None:
            self._world.history.published(header, arrays)
        self._take(PublishedCheckpoint(draft.final, ""))

    def discard(self, draft: Draft) -> None:
        self._disk.drafts.pop(draft.path.name, None)

    def poll(self) -> Outcome | None:
        return None if self.busy else self._outcome

    def wait(self, seconds: float) -> None:
        current().block(lambda: not self.busy, min(self._busy_until, self._world.time + seconds))

    def close(self) -> None:
        """It leaves nothing behind."""

    def _take(self, outcome: Outcome) -> None:
        self._busy_until = self._world.time + self._world.random.uniform(0.0, WRITES)
        self._outcome = outcome
        self._world.at(self._busy_until, self._process.poke)


WRITERS = (
    (saving, "Writer", ToyWriter),
    (served_saving, "Writer", ToyWriter),
    (saving, "print", lambda *_, **__: None),
)

"""Checkpoints of a fit: all workers write their part while training goes on, the chief makes them one.

    step k      the chief's note says that a checkpoint is due; all copy their tensors before step k + 1
    k + 1, …    each note brings what became of its worker's part; who is chief publishes when all have come
    a writer is lost before its part was told: the draft is given up; the next checkpoint comes when it is due

All hear the same notes, so whoever becomes the chief knows which parts there are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import msgspec

from shoal.checkpoint.divide import divide
from shoal.checkpoint.drafts import Draft
from shoal.checkpoint.manifest import Part
from shoal.checkpoint.publish import Failed, Published
from shoal.checkpoint.read import load
from shoal.checkpoint.resumed import to_bytes, to_text
from shoal.checkpoint.schedule import parse
from shoal.checkpoint.writer import Writer, Written
from shoal.collectives.group import AbstractGroup, Company, Result
from shoal.config import Saving
from shoal.errors import Diverged, UsageError
from shoal.hook.engine import AbstractEngine
from shoal.strategies.notes import Note
from shoal.strategies.notes import Part as NotedPart
from shoal.strategies.schema import Array

_FINISH_WITHIN = 300.0  # seconds that the last parts of a fit may take to get to disk


class _Draft(NamedTuple):
    """A checkpoint that is being written."""

    draft: Draft
    writers: tuple[str, ...]
    header: dict[str, Any]
    parts: dict[str, Part]


class Saver:
    """One worker's hand in the checkpoints of a fit."""

    def __init__(self, saving: Saving, me: str, model: Any, engine: AbstractEngine, trained: int) -> None:
        self._folder = Path(saving.folder)
        self._schedule = parse(saving.every)
        self._keep = saving.keep
        self._run = saving.run
        self._me = me
        self._config = _config_of(model)
        self._engine = engine
        self._writer = Writer()
        self._open: _Draft | None = None
        self._last_step = trained  # steps of the run, when the last checkpoint was taken
        self._last_time = time.monotonic()
        self._publishing = False

    def is_due(self, step: int) -> bool:
        """For the chief's note."""
        idle = self._open is None and not self._writer.busy
        return idle and self._schedule.due(step, self._last_step, time.monotonic() - self._last_time)

    def word(self) -> NotedPart | None:
        """For the next note: what became of this worker's part, once that is known."""
        self._look()
        if self._open is None or self._me in self._open.parts:
            return None
        match self._writer.poll():
            case Written(draft, part) if draft == self._open.draft:
                return NotedPart(draft.step, part.name, part.nbytes, part.digest)
            case Failed(step, why) if step == self._open.draft.step:
                return NotedPart(step, why=why)
        return None

    def begin(
        self,
        step: int,
        view: int,
        members: tuple[str, ...],
        given: Result,
        call: int,
        returned: Mapping[int, bytes],
    ) -> None:
        """Copies this worker's share of `given`, a fit's whole state; the rest happens in the background."""
        self._last_step, self._last_time = step, time.monotonic()
        if self._writer.busy:
            return
        tensors = self._named(given.arrays)
        header = {
            "call": call,
            "position": to_text(given.values[0]),
            "callbacks": to_text(given.values[1]),
            "returned": {str(call): to_text(result) for call, result in returned.items()},
            "tensors": list(tensors),
            "model": self._config,
            "backend": keras.backend.backend(),
            "keras": keras.__version__,
        }
        draft = Draft(self._folder, self._run, step, view)
        self._open = _Draft(draft, members, header, {})
        shares = divide({name: array.nbytes for name, array in tensors.items()}, len(members))
        rank = members.index(self._me)
        self._writer.begin(draft, rank, {name: tensors[name] for name in shares[rank]})

    def hear(self, members: tuple[str, ...], notes: Sequence[Note], is_chief: bool) -> None:
        """After a step: what everyone told of their parts."""
        if self._open is None:
            return
        for member, note in zip(members, notes, strict=True):
            if note.part is None or note.part.step != self._open.draft.step:
                continue
            if note.part.why:
                self._give_up(f"{member}: {note.part.why}", is_chief)
                return
            self._open.parts[member] = Part(note.part.name, note.part.nbytes, note.part.digest)
        missing = set(self._open.writers) - self._open.parts.keys()
        if missing - set(members):
            self._give_up(f"{', '.join(sorted(missing))} was lost while it wrote", is_chief)
        elif not missing:
            self._complete(is_chief)

    def finish(self, company: Company, is_chief: bool) -> None:
        """Gets what is being written to disk. Collective, also for who has no part in it."""
        self._writer.wait(_FINISH_WITHIN)
        word = self.word()
        told = company.gather("fit: the last checkpoint", msgspec.msgpack.encode(word))
        notes = [Note(0, part=msgspec.msgpack.decode(value, type=NotedPart | None)) for value in told.values]
        self.hear(told.members, notes, is_chief)
        self._writer.wait(_FINISH_WITHIN)
        self._look()

    def close(self) -> None:
        self._writer.close()

    def _complete(self, is_chief: bool) -> None:
        assert self._open is not None
        opened, self._open = self._open, None
        if is_chief:
            parts = [opened.parts[writer] for writer in opened.writers]
            self._writer.wait(_FINISH_WITHIN)
            self._writer.publish(opened.draft, parts, opened.header, self._keep)
            self._publishing = True

    def _give_up(self, why: str, is_chief: bool) -> None:
        assert self._open is not None
        opened, self._open = self._open, None
        if is_chief:
            _warn(f"no checkpoint of step {opened.draft.step}: {why}")
            if not self._writer.busy:
                self._writer.discard(opened.draft)

    def _look(self) -> None:
        """Whether the chief's last checkpoint has come to its place."""
        if not self._publishing:
            return
        match self._writer.poll():
            case Published(_, warning):
                self._publishing = False
                if warning:
                    _warn(warning)
            case Failed(_, why):
                self._publishing = False
                _warn(why)

    def _named(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """A fit's arrays, as `Training.give` orders them, by name."""
        variables = self._engine.variables
        names = [
            f"{kind}/{i}/{variable.path}"
            for kind, listed in (
                ("trainable", variables.trainable),
                ("state", variables.states),
                ("optimizer", variables.optimizer),
            )
            for i, variable in enumerate(listed)
        ]
        names += [f"metric/{i}/{variable.path}" for i, variable in enumerate(variables.metrics)]
        names.append("seeds")
        names += [f"callback/{i}" for i in range(len(arrays) - len(names))]
        return dict(zip(names, arrays, strict=True))


def resume(company: Company, path: Path) -> Result:
    """The state in a checkpoint, for `Training.take`. The chief reads it and passes it on. Collective."""

    def act(group: AbstractGroup) -> Result:
        given = _read(path) if group.rank == 0 else None
        taken = group.pass_on("the checkpoint", 0, set(range(1, group.size)), given)
        found = given or taken
        assert found is not None
        return found

    return company.commit(act)


def _read(path: Path) -> Result:
    checkpoint = load(path)
    header = checkpoint.header
    arrays = [checkpoint.arrays[name] for name in header["tensors"]]
    return Result([to_bytes(header["position"]), to_bytes(header["callbacks"])], arrays)


def cannot_resume(path: Path, error: Diverged) -> UsageError:
    return UsageError(
        f"can't resume from {path}: {error}. Resume with the script, and the arguments, that it comes from."
    )


def _config_of(model: Any) -> Any:
    """How the model is built, if Keras can tell in plain data; for `shoal checkpoint export`."""
    try:
        config = keras.saving.serialize_keras_object(model)
        return msgspec.json.decode(msgspec.json.encode(config))
    except Exception:  # a model's own code; without it there is no export, and nothing else is missing
        return None


def _warn(text: str) -> None:
    print(f"\nshoal: {text}", file=sys.stderr, flush=True)

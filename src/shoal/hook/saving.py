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
from shoal.checkpoint.drafts import Draft, step_of
from shoal.checkpoint.manifest import Part
from shoal.checkpoint.publish import Failed, Published
from shoal.checkpoint.resumed import to_text
from shoal.checkpoint.schedule import parse
from shoal.checkpoint.writer import Writer, Written
from shoal.collectives.group import Company, Result
from shoal.config import Saving
from shoal.hook.engine import AbstractEngine, is_window
from shoal.hook.served_saving import ServersParts
from shoal.hook.whole_optimizer import known_to_workers, rates_of
from shoal.store.client import Rest
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
    servers: list[Part]


class Saver:
    """One worker's hand in the checkpoints of a fit."""

    def __init__(
        self,
        saving: Saving,
        me: str,
        model: Any,
        engine: AbstractEngine,
        trained: int,
        servers: ServersParts | None = None,
    ) -> None:
        """`servers`: those that hold the optimizer's state write it."""
        self._folder = Path(saving.folder)
        self._schedule = parse(saving.every)
        self._keep = saving.keep
        self._run = saving.run
        self._me = me
        self._config = _config_of(model)
        self._engine = engine
        self._writer = Writer()
        self._servers = servers
        self._asks = False  # whether it is this worker that has asked the servers
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
                told = self._servers.poll() if self._servers is not None and self._asks else []
                if told is None:
                    return None
                if isinstance(told, str):
                    return NotedPart(draft.step, why=told)
                servers = tuple((one.name, one.nbytes, one.digest) for one in told)
                return NotedPart(draft.step, part.name, part.nbytes, part.digest, servers=servers)
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
        is_chief: bool,
        rest: Rest | None = None,
    ) -> None:
        """Copies this worker's share of `given`, a fit's whole state; the rest happens in the background.

        The chief has the servers copy what they have, too; in asynchronous training, in a pause that it asked for.
        """
        self._last_step, self._last_time = step, time.monotonic()
        if self._writer.busy:
            return
        tensors = self._named(given.arrays)
        header = {
            "call": call,
            "position": to_text(given.values[0]),
            "callbacks": to_text(given.values[1]),
            "returned": {str(call): to_text(result) for call, result in returned.items()},
            "model": self._config,
            "backend": keras.backend.backend(),
            "keras": keras.__version__,
        }
        draft = Draft(self._folder, self._run, step, view)
        self._open = _Draft(draft, members, header, {}, [])
        shares = divide({name: array.nbytes for name, array in tensors.items()}, len(members))
        rank = members.index(self._me)
        self._writer.begin(draft, rank, {name: tensors[name] for name in shares[rank]})
        self._asks = is_chief
        if self._servers is not None and is_chief:
            self._servers.begin(draft, len(members), rest)

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
            self._open.servers.extend(Part(*part) for part in note.part.servers)
        missing = set(self._open.writers) - self._open.parts.keys()
        if missing - set(members):
            self._give_up(f"{', '.join(sorted(missing))} was lost while it wrote", is_chief)
        elif not missing:
            self._complete(is_chief)

    def finish(self, company: Company, is_chief: bool) -> None:
        """Gets what is being written to disk. Collective, also for who has no part in it."""
        self._wait()
        word = self.word()
        told = company.gather("fit: the last checkpoint", msgspec.msgpack.encode(word))
        notes = [Note(0, part=msgspec.msgpack.decode(value, type=NotedPart | None)) for value in told.values]
        self.hear(told.members, notes, is_chief)
        self._writer.wait(_FINISH_WITHIN)
        self._look()

    def go_on_alone(self) -> None:
        """Where nobody else writes but servers: publishes what is on disk by now. Between two steps; never waits."""
        self._look()
        if self._open is not None:
            self.hear((self._me,), [Note(0, part=self.word())], is_chief=True)

    def finish_alone(self) -> None:
        """The same, but waits until it is all on disk."""
        self._wait()
        self.go_on_alone()
        self._writer.wait(_FINISH_WITHIN)
        self._look()

    def resumed(self, step: int) -> None:
        """The fit goes on from a checkpoint of this step."""
        self._last_step = step

    def _wait(self) -> None:
        self._writer.wait(_FINISH_WITHIN)
        if self._servers is not None and self._asks and self._open is not None:
            self._servers.poll(_FINISH_WITHIN)

    def close(self) -> None:
        self._writer.close()

    def _complete(self, is_chief: bool) -> None:
        assert self._open is not None
        opened, self._open = self._open, None
        if is_chief:
            parts = [*(opened.parts[writer] for writer in opened.writers), *opened.servers]
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
            case Published(path, warning):
                self._publishing = False
                if self._servers is not None:
                    self._servers.kept(step_of(path) or 0)
                if warning:
                    _warn(warning)
            case Failed(_, why):
                self._publishing = False
                _warn(why)

    def _named(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """A fit's arrays, as `Training.give` orders them, by name."""
        variables = self._engine.variables
        kinds = {
            "trainable": variables.trainable,
            "state": [variable for variable in variables.states if not is_window(variable)],
        }
        names = [
            f"{kind}/{i}/{variable.path}"
            for kind, listed in kinds.items()
            for i, variable in enumerate(listed)
            if not is_window(variable)  # a table's place among the trainable stays free: servers write its rows
        ]
        optimizer = known_to_workers(self._engine.model.optimizer)
        names += [f"optimizer/{i}/{variable.path}" for i, variable in optimizer.items()]
        names += [f"metric/{i}/{variable.path}" for i, variable in enumerate(variables.metrics)]
        names.append("seeds")
        names += [f"callback/{i}" for i in range(len(arrays) - len(names))]
        named = dict(zip(names, arrays, strict=True))
        if self._servers is not None:
            mine = {id(variable) for variable in rates_of(self._engine.model.optimizer)}
            for i, variable in optimizer.items():
                if id(variable) not in mine:
                    del named[f"optimizer/{i}/{variable.path}"]
        return named


def _config_of(model: Any) -> Any:
    """How the model is built, if Keras can tell in plain data; for `shoal checkpoint export`."""
    try:
        config = keras.saving.serialize_keras_object(model)
        return msgspec.json.decode(msgspec.json.encode(config))
    except Exception:  # a model's own code; without it there is no export, and nothing else is missing
        return None


def _warn(text: str) -> None:
    print(f"\nshoal: {text}", file=sys.stderr, flush=True)

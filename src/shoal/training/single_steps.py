"""Steps that a script takes one by one: `train_on_batch`, and loops of its own.

All workers give the same batch, and each computes its share of it. Where they turn out to give different ones, and the
script knows nothing of ranks, the chief's counts from then on: it hands everybody its rows. In a loop over
`shoal.batches` each worker reads its own rows only, newcomers are let in between two steps, and checkpoints are taken.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np

from shoal.codecs.codec import AbstractCodec
from shoal.collectives.group import AbstractGroup, StateKeeper
from shoal.data.columns import Rows, spec_of
from shoal.data.sources import Spec, Split, Taken, digest_of, hand_out, share
from shoal.errors import Diverged
from shoal.observe.phases import Phase
from shoal.strategies.allreduce import Division, Exchanged, Reduction
from shoal.strategies.notes import Note
from shoal.strategies.schema import Array
from shoal.training.counted import counted_piece
from shoal.training.engine import Engine, StepShape, to_float
from shoal.training.logs import Logs
from shoal.training.model_state import fingerprint
from shoal.training.run import Run

_COMPARED = 16  # rows of a batch


class Feed(Protocol):
    """A batch, from wherever."""

    @property
    def spec(self) -> Spec: ...

    def take(self, split: Split, group: AbstractGroup) -> Taken | None:
        """This worker's rows of it; None if there are none left."""

    @property
    def digest(self) -> bytes:
        """Differs when workers give different batches."""


class Around(Protocol):
    """The loop around the steps, if it is one over `shoal.batches`."""

    @property
    def keeper(self) -> StateKeeper: ...

    @property
    def newcomers(self) -> tuple[str, ...]: ...

    @property
    def leavers(self) -> tuple[str, ...]: ...

    def note(self, note: Note) -> Note:
        """With what is to be done after the step."""

    def hear(self, exchanged: Exchanged) -> None:
        """What everyone said with the last exchange of a step."""


class GivenBatch:
    """A batch that the script gave as arrays, on every worker."""

    def __init__(self, rows: Rows, spec: Spec) -> None:
        self._rows = rows
        self.spec = spec
        self.digest = _digest(rows)

    def take(self, split: Split, group: AbstractGroup) -> Taken:
        return share(self._rows, split, group.rank)


class ChiefsBatch:
    """The chief's batch: it hands everyone their rows."""

    digest = b""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.spec = feed.spec

    def take(self, split: Split, group: AbstractGroup) -> Taken:
        whole = self._feed.take(lambda size: [range(size)] * group.size, group) if group.rank == 0 else None
        taken = hand_out("the chief's batch", whole.rows if whole is not None else None, self.spec, split, group)
        assert taken is not None, "the chief gave a batch"
        return taken


class SingleSteps:
    """The steps of one model, taken one by one by all workers together."""

    def __init__(
        self, run: Run, engine: Engine, shape: StepShape, pieces: int, what: str, codec: AbstractCodec
    ) -> None:
        """`codec`: in whose form gradients travel."""
        self._run = run
        self.engine = engine
        self.shape = shape
        self._what = what
        self._division = Division(pieces)
        self._reductions = [
            Reduction(run.worker_group, part.schema, self._division, f"{what} part {number}", engine.release, codec)
            for number, part in enumerate(shape.parts)
        ]
        self.count = 0  # of the steps that were taken, by others too
        self._chiefs = False  # whether the chief hands the rows out

    def close(self) -> None:
        self.engine.release()
        for reduction in self._reductions:
            reduction.close()

    def take(self, feed: Feed, around: Around | None = None) -> Logs | None:
        """One step on a batch: the logs, the same on every worker. None if there is no batch."""
        name = f"{self._what} {self.count}"
        while True:
            task = _SingleTask(self._run, self.engine, ChiefsBatch(feed) if self._chiefs else feed, self._note(around))
            chiefs = self._chiefs
            found = self._try(name, task, around)
            if found is not None or self._chiefs == chiefs:
                self.count += found is not None
                return found
            name += " again"  # the workers gave different batches

    @property
    def reductions(self) -> list[Reduction]:
        """The exchanges of each part of a step."""
        return self._reductions

    @property
    def pieces(self) -> Division:
        return self._division

    def prepare(self) -> None:
        """For a newcomer, before it is let in."""
        for reduction in self._reductions:
            reduction.prepare()

    def _try(self, name: str, task: _SingleTask, around: Around | None) -> Logs | None:
        engine, run, last = self.engine, self._run, len(self.shape.parts) - 1
        extras: Logs = {}
        exchanges: list[Exchanged] = []
        for number, part in enumerate(self.shape.parts):
            task.part = number
            exchanged = self._exchange(number, f"{name} part {number}", task, around)
            if exchanged is None:
                return None
            exchanges.append(exchanged)
            gradients, states, metrics, found = part.split(exchanged.totals)
            extras |= {log: to_float(value) for log, value in found.items()}
            engine.add_metrics(metrics, part.metrics)
            if number == last:
                logs = engine.metric_results() | extras
            run.record(Phase.APPLYING, step=run.trained)
            engine.apply(number, gradients, states)
        engine.seeds.advance()
        if engine.dirties_seeds:
            engine.put_seeds_back()
        size = exchanges[0].shared.size
        run.trained, run.seen = run.trained + 1, run.seen + size
        run.record(Phase.LOOP, step=run.trained)
        run.count(size)
        self._division.learn(exchanges)
        return {log: to_float(logs[log]) for log in self.shape.logs}

    def _exchange(self, number: int, what: str, task: _SingleTask, around: Around | None) -> Exchanged | None:
        reduction = self._reductions[number]
        if number > 0 or around is None:
            exchanged = reduction.step(what, task)
        else:
            exchanged = reduction.step(what, task, keeper=around.keeper, admit=around.newcomers, leavers=around.leavers)
        if exchanged is None or (number == 0 and not self._alike(exchanged)):
            return None
        if around is not None and number == len(self.shape.parts) - 1:
            around.hear(exchanged)
        return exchanged

    def _note(self, around: Around | None) -> Callable[[float, int, bytes], Note]:
        def note(seconds: float, part: int, digest: bytes) -> Note:
            due = part == 0 and self.count % self._run.check_every == 0
            said = Note(self.count, seconds=seconds, weights=fingerprint(self.engine) if due else None)
            if part == 0:
                said = msgspec.structs.replace(said, data=digest, ranked=self._run.rank_was_asked)
            return around.note(said) if around is not None and part == len(self.shape.parts) - 1 else said

        return note

    def _alike(self, exchanged: Exchanged) -> bool:
        """Whether all gave the same batch. If not, the chief's is taken from now on."""
        members, notes = exchanged.shared.members, exchanged.notes
        odd = [member for member, note in zip(members, notes, strict=True) if note.data != notes[0].data]
        if not odd:
            return True
        if any(note.ranked for note in notes):
            raise Diverged(
                f"{self._what}: the batch of {', '.join(odd)} differs from the chief's. Give every worker the whole "
                "batch, the same on all: Shoal divides it."
            )
        self._chiefs = True
        self._run.tell(
            f"{self._what}: the batch of {', '.join(odd)} differs from the chief's, which is taken from now on. "
            "Seed what makes it, if all are to have the same."
        )
        return False


class _SingleTask:
    """One worker's part of such a step."""

    def __init__(self, run: Run, engine: Engine, feed: Feed, note: Callable[[float, int, bytes], Note]) -> None:
        self._run = run
        self._engine = engine
        self._feed = feed
        self._note = note
        self.part = 0
        self._taken: Taken | None = None
        self._taken_in: AbstractGroup | None = None
        self._started = 0.0

    def take(self, split: Split, group: AbstractGroup) -> int | None:
        if self.part == 0 or group is not self._taken_in:  # in another view everyone's rows are others
            self._run.record(Phase.READING, step=self._run.trained)
            self._taken, self._taken_in = self._feed.take(split, group), group
        self._started = time.perf_counter()
        return self._taken.size if self._taken is not None else None

    def compute(self, piece: int, low: int, high: int) -> Sequence[Array]:
        taken = self._taken
        assert taken is not None, "take() first"
        self._run.record(Phase.COMPUTING, f"piece {piece}: rows {low} to {high - 1} of the batch", self._run.trained)
        batch = self._engine.batch(self._feed.spec, taken.part(low, high))
        weight = (high - low) / taken.size
        return counted_piece(self._run, self._engine, self.part, batch, piece, weight, high - low)

    def note(self) -> Note:
        self._engine.settle()
        self._run.record(Phase.EXCHANGING, step=self._run.trained)
        return self._note(time.perf_counter() - self._started, self.part, self._feed.digest)


def _digest(rows: Rows) -> bytes:
    """Differs, most likely, when batches do."""
    about = str([(len(row), spec_of(row)) for row in rows]).encode()
    places = [(row, np.linspace(0, max(0, len(row) - 1), min(len(row), _COMPARED)).astype(int)) for row in rows]
    return hashlib.blake2b(about + digest_of([row[chosen] for row, chosen in places], 0), digest_size=8).digest()

"""Checkpoints of a fit: all workers write their part while training goes on, the chief makes them one.

    step k      the chief's note says that a checkpoint is due; all copy their tensors before step k + 1
    k + 1, …    each note brings what became of its worker's part; who is chief publishes when all have come
    a writer is lost before its part was told: the draft is given up; the next checkpoint comes when it is due

All hear the same notes, so whoever becomes the chief knows which parts there are.

Where hosts have folders of their own (checkpoint/host_folders.py), each gets a copy, when all parts of all copies are
on disk; the first worker of each folder does there what is said here of the chief.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shoal.checkpoint.addresses import place_of
from shoal.checkpoint.divide import divide
from shoal.checkpoint.drafts import Draft, step_of
from shoal.checkpoint.host_folders import FolderWriters
from shoal.checkpoint.manifest import CheckpointPart
from shoal.checkpoint.publish import NotWritten, PublishedCheckpoint
from shoal.checkpoint.resumed import to_text
from shoal.checkpoint.schedule import parse
from shoal.checkpoint.tensor_names import CALLBACK, METRIC, OPTIMIZER, SEEDS, STATE, TRAINABLE, TensorName
from shoal.checkpoint.writer import Writer, Written
from shoal.collectives.group import Result, WorkerGroup
from shoal.config import Saving
from shoal.errors import UsageError
from shoal.observe.story import StoryKind
from shoal.store.decisions.worker_state import Rest
from shoal.strategies.notes import Note
from shoal.strategies.notes import WrittenPart as NotedPart
from shoal.strategies.schema import Array
from shoal.training.engine import Engine, is_window
from shoal.training.kept_outcomes import KeptOutcomes
from shoal.training.optimizer import TrainedOptimizer
from shoal.training.prepared import Description
from shoal.training.resuming import tensors_of
from shoal.training.run import Run
from shoal.training.served_saving import ServersParts

_FINISH_WITHIN = 300.0  # seconds that the last parts of a fit may take to get to disk


class ReplicaTensors(NamedTuple):
    """What a training with replicas has besides what every training has, by name."""

    alike: dict[str, Array]  # on all workers
    own: dict[str, Array]  # of the replicas that this worker hosts: their optimizers
    needed: Mapping[str, int]  # of all replicas: how many tensors of each kind


class _OpenDraft(NamedTuple):
    """A checkpoint that is being written."""

    draft: Draft
    writers: tuple[str, ...]
    header: dict[str, Any]
    parts: dict[str, CheckpointPart]
    servers: list[CheckpointPart]
    folders: FolderWriters | None  # None: there is one for all
    needed: Mapping[str, int]  # how many tensors of each kind it must have


class Saver:
    """One worker's hand in the checkpoints of a fit."""

    def __init__(
        self,
        run: Run,
        saving: Saving,
        described: Description,
        engine: Engine,
        optimizer: TrainedOptimizer,
        servers: ServersParts | None = None,
    ) -> None:
        """`servers`: those that hold the optimizer's state write it."""
        self._asked = run
        self._happened = run.happened
        self._counters = run.counters
        self._folder = place_of(saving.folder)
        self._schedule = parse(saving.every)
        self._keep = saving.keep
        self._run = saving.run
        self._training = saving.training
        self._me = run.me
        self._described = described
        self._engine = engine
        self._optimizer = optimizer
        self._writer = Writer()
        self._servers = servers
        self._whole: Mapping[str, int] | None = None  # how many tensors of each kind the model has
        self._asks = False  # whether it is this worker that has asked the servers
        self._open: _OpenDraft | None = None
        self._last_step = run.trained  # steps of the run, when the last checkpoint was taken
        self._last_time = time.monotonic()
        self._publishing = False

    def is_due(self, step: int) -> bool:
        """For the chief's note."""
        idle = self._open is None and not self._writer.busy
        return idle and (self._asked.save_now or self._schedule.due(step, self._last_step, self._seconds))

    @property
    def _seconds(self) -> float:
        """Since the last checkpoint was taken."""
        return time.monotonic() - self._last_time

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
            case NotWritten(step, why) if step == self._open.draft.step:
                return NotedPart(step, why=why)
        return None

    def begin(
        self,
        step: int,
        view: int,
        members: tuple[str, ...],
        given: Result,
        call: int,
        returned: KeptOutcomes,
        is_chief: bool,
        rest: Rest | None = None,
        replicas: ReplicaTensors | None = None,
        left_out: Mapping[str, Array] | None = None,
    ) -> None:
        """Copies this worker's share of `given`, a fit's whole state; the rest happens in the background. `replicas`:
        theirs is the optimizers' state that is written, by who hosts them. `left_out`: by codecs, for this worker to
        write.

        The chief has the servers copy what they have, too; in asynchronous training, in a pause that it asked for.
        """
        is_begun, folders = self._is_begun(step), None
        if self._asked.own_folder is not None:
            if replicas is not None or left_out:
                raise needs_one_folder("what a codec has left out" if left_out else "the replicas' state")
            folders = self._folders(is_begun)
            is_begun = folders is not None
        if not is_begun:
            return
        tensors = self._named(given.arrays)
        if replicas is not None:
            tensors = {name: tensors[name] for name in tensors if name not in self._of_optimizers()} | replicas.alike
        sizes = {name: array.nbytes for name, array in tensors.items()}
        if folders is None:
            share = divide(sizes, len(members))[members.index(self._me)]
        else:
            share = folders.share(self._me, sizes)
        mine = {name: tensors[name] for name in share}
        mine |= replicas.own if replicas is not None else {}
        mine |= left_out or {}
        needed = self._needed(served=self._servers is not None)
        needed = {**needed, **replicas.needed} if replicas is not None else needed
        draft = self._draft(step, view, members, given.values, call, returned, mine, needed, folders)
        self._asks = is_chief
        if self._servers is not None and is_chief:
            self._servers.begin(draft, len(members), rest)

    def begin_apart(
        self,
        step: int,
        view: int,
        members: tuple[str, ...],
        values: Sequence[bytes],
        tensors: Callable[[], Mapping[str, Array]],
        call: int,
        returned: KeptOutcomes,
    ) -> None:
        """The same where workers hold different tensors: `tensors` are this one's to write, by name. `values` are those
        of `give`.
        """
        if self._is_begun(step):
            self._draft(step, view, members, values, call, returned, tensors(), self._needed(served=True))

    def _folders(self, is_idle: bool) -> FolderWriters | None:
        """Who writes to whose folder; None if somebody still writes the checkpoint before: then there is none now.
        Collective.
        """
        told = self._asked.worker_group.gather(
            "the folders of checkpoints", msgspec.msgpack.encode((self._asked.own_folder or "", is_idle))
        )
        answers = [msgspec.msgpack.decode(value, type=tuple[str, bool]) for value in told.values]
        if not all(idle for _, idle in answers):
            return None
        return FolderWriters(dict(zip(told.members, (folder for folder, _ in answers), strict=True)))

    def small(self, metrics: Sequence[Array], seeds: Array, callbacks: Sequence[Array]) -> dict[str, Array]:
        """What is no part of the model, by name."""
        listed = zip(enumerate(self._engine.variables.metrics), metrics, strict=True)
        named = {str(TensorName(METRIC, number, variable.path)): array for (number, variable), array in listed}
        named[SEEDS] = seeds
        return named | {str(TensorName(CALLBACK, number)): array for number, array in enumerate(callbacks)}

    def _is_begun(self, step: int) -> bool:
        self._last_step, self._last_time = step, time.monotonic()
        self._asked.save_now = False
        return not self._writer.busy

    def _draft(
        self,
        step: int,
        view: int,
        members: tuple[str, ...],
        values: Sequence[bytes],
        call: int,
        returned: KeptOutcomes,
        mine: Mapping[str, Array],
        needed: Mapping[str, int],
        folders: FolderWriters | None = None,
    ) -> Draft:
        """Begins to write this worker's part."""
        header = {
            "call": call,
            "position": to_text(values[0]),
            "callbacks": to_text(values[1]),
            "returned": {str(call): to_text(result) for call, result in returned.items()},
            "forgotten": returned.before,
            **self._described.header(),
        }
        if returned.before:
            self._asked.tell(
                "this script has made so many calls of fit, evaluate and predict that checkpoints do not keep any more "
                "what the first of them returned: only a script that begins after them can go on from a checkpoint"
            )
        draft = Draft(self._folder, self._run, step, view, self._training)
        self._open = _OpenDraft(draft, members if folders is None else folders.writers, header, {}, [], folders, needed)
        if self._me in self._open.writers:
            self._writer.begin(draft, members.index(self._me), mine)
        return draft

    def hear(self, members: tuple[str, ...], notes: Sequence[Note], is_chief: bool) -> None:
        """After a step: what everyone told of their parts."""
        if self._open is None:
            return
        if self._open.folders is not None:
            is_chief = self._open.folders.leads(self._me, members)
        for member, note in zip(members, notes, strict=True):
            if note.part is None or note.part.step != self._open.draft.step:
                continue
            if note.part.why:
                self._give_up(f"{member}: {note.part.why}", is_chief)
                return
            self._open.parts[member] = CheckpointPart(note.part.name, note.part.nbytes, note.part.digest)
            self._open.servers.extend(CheckpointPart(*part) for part in note.part.servers)
        missing = set(self._open.writers) - self._open.parts.keys()
        if missing - set(members):
            self._give_up(f"{', '.join(sorted(missing))} was lost while it wrote", is_chief)
        elif not missing:
            self._complete(is_chief)

    def finish(self, worker_group: WorkerGroup, is_chief: bool) -> None:
        """Gets what is being written to disk. Collective, also for who has no part in it."""
        self._wait()
        word = self.word()
        told = worker_group.gather("fit: the last checkpoint", msgspec.msgpack.encode(word))
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

    def give_up(self) -> None:
        """The fit goes back to an earlier checkpoint: what is being written now is of no use."""
        self._writer.wait(_FINISH_WITHIN)
        self._look()
        if self._open is not None:
            folders, here = self._open.folders, self._asked.worker_group.members
            is_chief = self._asked.is_chief if folders is None else folders.leads(self._me, here)
            self._give_up("the run went back to an earlier step", is_chief)

    def _wait(self) -> None:
        self._writer.wait(_FINISH_WITHIN)
        if self._servers is not None and self._asks and self._open is not None:
            self._servers.poll(_FINISH_WITHIN)

    def close(self) -> None:
        self._writer.close()

    def _complete(self, is_chief: bool) -> None:
        assert self._open is not None
        opened, self._open = self._open, None
        if not is_chief:
            self._counters.checkpoint(opened.draft.step)
        else:
            folders = opened.folders
            writers, hosts = opened.writers, tuple[str, ...]()
            if folders is not None:
                writers, hosts = folders.beside(self._me), folders.hosts(self._me)
            parts = [*(opened.parts[writer] for writer in writers), *opened.servers]
            self._writer.wait(_FINISH_WITHIN)
            self._writer.publish(opened.draft, parts, opened.header, self._keep, hosts, opened.needed)
            self._publishing = True

    def _give_up(self, why: str, is_chief: bool) -> None:
        assert self._open is not None
        opened, self._open = self._open, None
        if is_chief:
            self._warn(f"no checkpoint of step {opened.draft.step}: {why}")
            if not self._writer.busy:
                self._writer.discard(opened.draft)

    def _look(self) -> None:
        """Whether the chief's last checkpoint has come to its place."""
        if not self._publishing:
            return
        match self._writer.poll():
            case PublishedCheckpoint(path, warning):
                self._publishing = False
                if self._servers is not None:
                    self._servers.kept(step_of(path) or 0)
                self._counters.checkpoint(step_of(path) or 0)
                self._happened(StoryKind.CHECKPOINT, f"{path.name} is written", step_of(path))
                if warning:
                    self._warn(warning)
            case NotWritten(_, why):
                self._publishing = False
                self._warn(why)

    def _named(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """A fit's arrays, as `give` orders them, by name."""
        variables = self._engine.variables
        kinds = {
            TRAINABLE: dict(enumerate(variables.trainable)),  # the place of a table stays free: servers write its rows
            STATE: dict(enumerate(variable for variable in variables.states if not is_window(variable))),
            OPTIMIZER: self._optimizer.known(variables),
            METRIC: dict(enumerate(variables.metrics)),
        }
        names = [
            str(TensorName(kind, number, variable.path))
            for kind, listed in kinds.items()
            for number, variable in listed.items()
            if not is_window(variable)
        ]
        names.append(SEEDS)
        names += [str(TensorName(CALLBACK, number)) for number in range(len(arrays) - len(names))]
        named = dict(zip(names, arrays, strict=True))
        if self._servers is not None:
            for name in self._of_optimizers():
                del named[name]
        return named

    def _of_optimizers(self) -> list[str]:
        """The names of all their variables but the learning rates, which workers set."""
        mine = {id(variable) for variable in self._optimizer.rates()}
        known = self._optimizer.known(self._engine.variables)
        return [str(TensorName(OPTIMIZER, i, v.path)) for i, v in known.items() if id(v) not in mine]

    def _needed(self, served: bool) -> Mapping[str, int]:
        """How many tensors of each kind a checkpoint must have so that this model can go on from it."""
        if self._whole is None:
            self._whole = tensors_of(self._engine, self._optimizer, served)
        return self._whole

    def _warn(self, text: str) -> None:
        self._happened(StoryKind.CHECKPOINT, text, None)
        print(f"\nshoal: {text}", file=sys.stderr, flush=True)


def needs_one_folder(what: str) -> UsageError:
    """Each host would have but a part of it."""
    return UsageError(
        f"{what} can't be in checkpoints of this run: each host has a folder of its own, and no worker has all of it. "
        "Name a folder that all hosts see, or an address in an object store, with --checkpoint."
    )

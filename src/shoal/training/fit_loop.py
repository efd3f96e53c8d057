"""What all ways to train share: Keras's loop over epochs, with the same callbacks in the same order.

Between two steps a training can tell a newcomer everything (`give`), and go to where another stands (`take`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from shoal.checkpoint.addresses import Place
from shoal.collectives.group import Result
from shoal.errors import Diverged, UsageError
from shoal.observe.phases import Phase
from shoal.observe.story import StoryKind
from shoal.strategies.schema import Array
from shoal.training import position
from shoal.training.data_agreement import DataState, join_data
from shoal.training.logs import Logs
from shoal.training.model_state import share_chiefs_state
from shoal.training.position import Position
from shoal.training.prepared import FitArguments, Prepared
from shoal.training.resuming import Expected, cannot_resume, resume
from shoal.training.run import Run
from shoal.training.saving import Saver, needs_one_folder
from shoal.training.served_saving import ServersParts


class AbstractTraining(ABC):
    """One `fit`: its epochs."""

    holds_apart = ""  # what different workers hold, of which no worker has all
    asynchronous = False  # whether a worker's update waits for no other's

    def __init__(self, run: Run, prepared: Prepared, arguments: FitArguments, call: int) -> None:
        self._run = run
        self._model = prepared.model
        self._engine = prepared.engine
        self._optimizer = prepared.optimizer
        self._prepared = prepared
        self._shape = prepared.shape
        self._source = prepared.source
        self._example = prepared.batch
        self._validation = prepared.validation
        self._arguments = arguments
        self._call = call
        self._at = Position(seed=prepared.seed, trained=run.trained, seen=run.seen)
        self._resumed_at: int | None = None  # steps of the whole run at the checkpoint that it goes on from
        self._remembered: tuple[bytes, list[Array]] | None = None  # what another worker's callbacks remember
        self._callbacks = prepared.callbacks
        self._saver: Saver | None = None
        run.counters.streams = prepared.source.is_read_by_chief
        run.counters.asynchronous = self.asynchronous

    def run(self) -> bytes | None:
        """All epochs. What the fit returned to the others, if they finished it before this worker could be let in."""
        model, arguments = self._model, self._arguments
        model.stop_training = False
        self._callbacks.on_train_begin()
        over = self._begin()
        if over is not None:
            self._callbacks.on_train_end()
            return self._run.calls.unpack(self._call, over)
        began, what = self._at.trained, f"fit, call {self._call} of the script,"
        self._run.happened(StoryKind.CALL, f"{what} begins, epochs {self._at.epoch + 1} to {arguments.epochs}", began)
        self._to_the_end()
        if self._engine.loss_scale is not None:
            self._optimizer.remember_loss_scale(self._engine.loss_scale)
        self._run.trained, self._run.seen = self._at.trained, self._at.seen
        self._callbacks.on_train_end(self._at.logs)
        steps = self._at.trained - began
        why = ""
        if self._at.epoch < arguments.epochs:
            by = self._callbacks.stopped_by or "a callback"
            why = f" in epoch {self._at.epoch} of {arguments.epochs}: {by} set stop_training"
        self._run.happened(StoryKind.CALL, f"{what} is over after {steps} steps{why}", self._at.trained)
        return None

    def _to_the_end(self) -> None:
        while self._at.epoch < self._arguments.epochs and not self._was_stopped:
            self._epoch(self._at.epoch)
            if self._model.stop_training:
                break
        self._restore_callbacks()  # of a checkpoint after which there was no epoch left
        self._end()

    @abstractmethod
    def _begin(self) -> bytes | None:
        """Go to where the first step begins. What the call returned, if it is over for the others already."""

    @abstractmethod
    def _steps(self, epoch: int) -> Logs:
        """The steps of an epoch; returns the epoch's logs."""

    @abstractmethod
    def _end(self) -> None:
        """The last epoch is over."""

    @abstractmethod
    def close(self) -> None: ...

    # What a newcomer is told ------------------------------------------------------------------------

    def give(self) -> Result:
        """Everything that a worker needs to go on from here, between two steps."""
        at = self._at
        at.stop = bool(self._model.stop_training)
        at.call, at.calls = self._call, self._run.calls.number
        at.data = DataState.of(self._source)
        at.stream = self._source.bookmark(at.step)
        if self._validation is not None:
            at.held_out, at.held_out_data = self._validation.bookmark, self._validation.data
        at.loss_scale = self._engine.loss_scale
        self._engine.settle()
        state = self._state()
        remembered, arrays = self._callbacks.remember()
        return Result([position.encode(at, len(state)), remembered], [*state, *arrays])

    def take(self, given: Result) -> None:
        """Go to where another worker stands."""
        self._at, count = position.decode(given.values[0])
        at = self._at
        if self._run.worker_group.is_late:
            self._source = join_data("fit", self._source, at.data)
            if self._validation is not None:
                self._validation.join(at.held_out_data)
        self._source.use_seed(at.seed)
        self._set_state(given.arrays[:count])
        self._engine.loss_scale = at.loss_scale
        self._model.stop_training = at.stop
        self._run.calls.number = at.calls
        self._source.go_to(at.stream)
        if self._validation is not None:
            self._validation.bookmark = at.held_out
        self._remembered = (given.values[1], given.arrays[count:])

    def _state(self) -> list[Array]:
        """What a worker needs of the model, besides where the fit stands."""
        return self._engine.state()

    def _set_state(self, arrays: Sequence[Array]) -> None:
        self._engine.set_state(arrays)

    def _make_saver(self, servers: ServersParts | None) -> Saver | None:
        """Of checkpoints, if the run has any. `servers`: those that hold the optimizer's state write it."""
        run, prepared = self._run, self._prepared
        if run.saving is None:
            return None
        if run.own_folder is not None and self.holds_apart:
            raise needs_one_folder(self.holds_apart)
        return Saver(run, run.saving, prepared.described, self._engine, self._optimizer, servers)

    def _finish_saving(self) -> None:
        """Gets the checkpoint that is being written to disk. Collective."""
        assert self._saver is not None
        with self._run.counters.checkpointing():
            self._saver.finish(self._run.worker_group, self._run.is_chief)

    def _resume(self, served: bool) -> None:
        """Go to where a checkpoint was taken, if it was in this fit. `served`: servers hold the optimizer's state."""
        resumed = self._run.calls.resumes(self._call)
        if resumed is not None:
            self._go_to(resumed, served)

    def _go_to(self, resumed: Place, served: bool) -> None:
        self._run.record(Phase.RESUMING, f"from {resumed}")
        try:
            tables = self._prepared.tables_in_checkpoint()
            expected = Expected(self._engine, self._optimizer, tables, served)
            self.take(self._read(resumed, expected))
        except Diverged as error:
            raise cannot_resume(resumed, error) from error
        self._resumed_at = self._at.trained

    def _read(self, checkpoint: Place, expected: Expected) -> Result:
        """A checkpoint, for `take`. Collective."""
        return resume(self._run.worker_group, checkpoint, expected, self._run.own_folder is not None)

    @property
    def _has_trained(self) -> bool:
        """Whether a step of this fit was done in this run."""
        return self._at.trained != (self._run.trained if self._resumed_at is None else self._resumed_at)

    @property
    def _was_stopped(self) -> bool:
        """Whether a callback had stopped the training before the checkpoint that this run goes on from."""
        return self._resumed_at == self._at.trained and self._at.stop and self._at.step == 0

    def _restore_callbacks(self) -> None:
        """To what another worker's remember, if this one was told."""
        if self._remembered is not None:
            self._callbacks.restore(*self._remembered)
            self._remembered = None

    # Epochs -----------------------------------------------------------------------------------------

    def _epoch(self, epoch: int) -> None:
        if self._engine.is_outdated:
            raise UsageError(
                "a callback has compiled the model anew in the middle of fit, after which plain Keras can't go on "
                "either. End the fit (`self.model.stop_training = True`), compile, and call fit again."
            )
        self._model.reset_metrics()
        if self._at.step == 0:
            self._engine.reset_metrics()
            self._at.logs = {}
        self._callbacks.on_epoch_begin(epoch)
        self._source.begin(epoch, self._at.initial, first=self._at.step)
        self._restore_callbacks()
        logs = self._steps(epoch)
        self._source.end(self._at.step)
        self._engine.put_seeds_back()
        if self._validation is not None and self._arguments.validates_after(epoch):
            found = self._validation.run(epoch)
            logs = logs | {f"val_{name}": value for name, value in found.items()}
        self._run.record(Phase.CALLBACKS)
        self._callbacks.on_epoch_end(epoch, logs)
        self._model.stop_training = self._agree_on_stop(f"fit epoch {epoch}: stop?", bool(self._model.stop_training))
        at = self._at
        at.epoch, at.step, at.logs = epoch + 1, 0, logs

    def _agree_on_start(self) -> None:
        """All start from the chief's state, which a callback (BackupAndRestore) may just have restored."""
        initial_epoch = self._callbacks.first_epoch(self._arguments.initial_epoch)
        self._run.record(Phase.TAKING_WEIGHTS)
        worker_group = self._run.worker_group
        share_chiefs_state(worker_group, self._engine, "fit")
        self._engine.begin(self._at.seed)
        mine = msgspec.msgpack.encode((int(initial_epoch), self._engine.loss_scale))
        chiefs = worker_group.gather("fit: the first epoch, and the loss's scale", mine).chiefs
        first, self._engine.loss_scale = msgspec.msgpack.decode(chiefs, type=tuple[int, float | None])
        self._at.epoch = self._at.initial = first

    def _agree_on_stop(self, what: str, stop: bool) -> bool:
        return any(told == b"\1" for told in self._run.worker_group.gather(what, b"\1" if stop else b"\0").values)

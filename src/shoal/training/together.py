"""What synchronous training, training in stages and local training share: all workers act together.

An act is a step, or a round of them. Newcomers come in, leavers go and checkpoints are begun between two acts. What has
to be done then, the notes of the act before tell everybody.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence

from shoal.checkpoint.addresses import Place
from shoal.observe.phases import Phase
from shoal.strategies.notes import Note, leavers, newcomers
from shoal.training.fit_loop import AbstractTraining
from shoal.training.prepared import FitArguments, Prepared
from shoal.training.run import Run
from shoal.training.served_saving import ServersParts


class AbstractTrainingTogether(AbstractTraining):
    """A `fit` in which all workers act together."""

    def __init__(
        self, run: Run, prepared: Prepared, arguments: FitArguments, call: int, servers: ServersParts | None = None
    ) -> None:
        """`servers`: what they write of a checkpoint, where they hold the optimizer's state."""
        super().__init__(run, prepared, arguments, call)
        self._newcomers: tuple[str, ...] = ()  # to be let in before the next act
        self._leavers: tuple[str, ...] = ()  # gone before the next act
        self._saver = self._make_saver(servers)
        self._save_next = False

    def close(self) -> None:
        self._engine.release()
        if self._saver is not None:
            self._saver.close()

    # Before and after -------------------------------------------------------------------------------

    def _begin(self) -> bytes | None:
        if self._run.worker_group.is_late:
            self._run.record(Phase.JOINING)
            return self._run.worker_group.enter(self, self._call)
        self._agree_on_start()
        self._start()
        return None

    @abstractmethod
    def _start(self) -> None:
        """All have the chief's state: go to where a checkpoint was taken, if there is one, and make ready."""

    def _go_to(self, resumed: Place, served: bool) -> None:
        super()._go_to(resumed, served)
        if self._saver is not None:
            self._saver.resumed(self._at.trained)

    @abstractmethod
    def _begin_checkpoint(self) -> None:
        """This worker's part of one, between two acts."""

    def _save(self) -> None:
        self._save_next = False
        self._run.record(Phase.SAVING, step=self._at.trained)
        with self._run.counters.checkpointing():
            self._begin_checkpoint()

    def _save_last(self) -> None:
        """The fit is over: its end is worth a checkpoint, on disk before the script goes on."""
        if self._saver is not None:
            self._finish_saving()
            if self._is_worth_saving():
                self._save()
            self._finish_saving()

    def _is_worth_saving(self) -> bool:
        return True

    def _leave(self) -> None:
        """Between two acts: leave the run. The last ones to leave write a checkpoint before they go."""
        if set(self._leavers) >= set(self._run.worker_group.members):
            self._save_last()
        self._run.leave()

    # Between two acts -------------------------------------------------------------------------------

    def _do_what_is_due(self) -> None:
        """What the notes of the act before asked for."""
        if self._run.me in self._leavers:
            self._leave()
        if self._save_next:
            self._save()

    def _hear(self, members: tuple[str, ...], notes: Sequence[Note]) -> None:
        """What everyone said with the last exchange of an act."""
        self._newcomers = newcomers(notes)
        self._leavers = leavers(members, notes)
        if self._saver is not None:
            self._saver.hear(members, notes, self._run.is_chief)
            self._save_next = any(note.checkpoint for note in notes)

    def _is_due(self, steps: int = 1) -> bool:
        """For the chief's note: whether a checkpoint is due after these steps."""
        return self._saver is not None and self._run.is_chief and self._saver.is_due(self._at.trained + steps)

    def _warn_if_short(self, step: int, steps: int | None) -> None:
        if steps is not None and step < steps and not self._model.stop_training:
            warnings.warn(
                f"the data ran out after {step} of {steps} steps: this epoch ends early. Give data for "
                "`steps_per_epoch * epochs` batches, for example with `.repeat()`.",
                stacklevel=2,
            )

"""What synchronous training and training in stages share: all workers take every step together."""

from __future__ import annotations

from abc import abstractmethod

from shoal.observe.phases import Phase
from shoal.training.logs import Logs
from shoal.training.together import AbstractTrainingTogether


class AbstractStepwiseTraining(AbstractTrainingTogether):
    """A `fit` in which all workers take every step together."""

    def _steps(self, epoch: int) -> Logs:
        """The steps of an epoch, `steps_per_execution` of them between two calls of the callbacks."""
        model, steps, at = self._model, self._source.steps, self._at
        while steps is None or at.step < steps:
            # Counted from the epoch's start: a worker that comes in the middle calls its callbacks when the others do.
            first = at.step
            last = first - first % model.steps_per_execution + model.steps_per_execution
            last = last if steps is None else min(last, steps)
            self._callbacks.on_train_batch_begin(first)
            while at.step < last and (done := self._train(epoch)) is not None:
                at.logs = done
            if at.step > first:
                self._callbacks.on_train_batch_end(at.step - 1, at.logs)
            if at.step < last:  # the data ran out, or another worker stopped
                self._warn_if_short(at.step, steps)
                break
            if model.stop_training and at.step != steps:
                self._tell_stop(epoch)
                break
        self._after_steps()
        return at.logs

    @abstractmethod
    def _train(self, epoch: int) -> Logs | None:
        """One step; None when there is no data for it, or a worker stopped before it so that it does not count."""

    @abstractmethod
    def _tell_stop(self, epoch: int) -> None:
        """This worker stopped after the last step: the next one, which others may have begun, must not count."""

    @abstractmethod
    def _after_steps(self) -> None:
        """The steps of an epoch are done; next come validation, and the callbacks of the epoch's end."""

    def _step_is_done(self, samples: int, pieces: int) -> None:
        """It has committed, and is applied."""
        engine, at = self._engine, self._at
        engine.seeds.advance()
        if engine.dirties_seeds:
            engine.put_seeds_back()
        at.step += 1
        at.total += 1
        at.trained += 1
        at.seen += samples
        self._run.record(Phase.CALLBACKS, step=at.trained)
        self._run.count(samples, pieces)

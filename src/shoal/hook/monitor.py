"""A callback that hands the figures of the whole run to whatever the user keeps figures with."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from shoal.cluster.figures import named_figures
from shoal.errors import UsageError, WireError
from shoal.observe.event_file import EventFile
from shoal.training.run import Run

_FOLDER = "shoal"

Report = Callable[[dict[str, float], int], object]


class Monitor(keras.callbacks.Callback):  # type: ignore[misc]
    """Every so many seconds of a fit, on the chief: `report(figures, step)`.

    `figures` are numbers by name: `shoal/samples_per_second`, `shoal/workers`, `shoal/losses`, `shoal/bytes_per_step`,
    `shoal/slowest/worker` (-1: none stands out), `shoal/slowest/others_wait`, and the shares of the workers' time,
    `shoal/time/computing` and so on, which add up to 1. They are those of all workers together.

    The report is made by the thread that trains, between two batches, and once at the end of a fit, however short that
    was. The figures are asked for by another thread, so that no batch waits for them. Where there is no run
    (`python train.py`, one worker), there is nothing to report.
    """

    def __init__(self, report: Report, every: float = 10.0) -> None:
        super().__init__()
        if not every > 0:
            raise UsageError(f"Monitor(every={every}): expected seconds, more than 0.")
        self._report = report
        self._every = every
        self._run: Run | None = None
        self._asking: _Asking | None = None

    def watch(self, run: Run) -> None:
        """The run whose figures are meant; told before the fit begins."""
        self._run = run

    def on_train_begin(self, logs: Any = None) -> None:
        if self._run is not None and self._asking is None:
            self._asking = _Asking(self._run, self._every)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._asking is not None and self._asking.found is not None:
            found, self._asking.found = self._asking.found, None
            self._report(*found)

    def on_train_end(self, logs: Any = None) -> None:
        if self._asking is not None:
            self._asking.close()
            self._asking.found = self._asking.ask() or self._asking.found
            self.on_train_batch_end(-1)
            self._asking = None


class TensorBoardScalars:
    """`Monitor(TensorBoardScalars("logs"))`: the figures of the run for `tensorboard --logdir logs`.

    They go to a folder `shoal` in the one that is named, beside those of `keras.callbacks.TensorBoard("logs")`. Nothing
    needs to be installed for it, and TensorFlow is not imported.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._folder = Path(log_dir) / _FOLDER
        self._file: EventFile | None = None

    def __call__(self, figures: dict[str, float], step: int) -> None:
        if self._file is None:  # only where something is reported: on the chief
            self._file = EventFile(self._folder)
        self._file.add(figures, step)


class _Asking:
    """A thread that asks, from its making to `close`."""

    def __init__(self, run: Run, every: float) -> None:
        self.found: tuple[dict[str, float], int] | None = None  # the newest, until somebody takes it
        self._run = run
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="shoal-monitor", daemon=True)
        self._thread.start()

    def ask(self) -> tuple[dict[str, float], int] | None:
        """None if the coordinator does not answer: the next one may."""
        with contextlib.suppress(WireError, OSError):
            if (figures := self._run.figures()) is not None:
                return named_figures(figures), figures.step
        return None

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._over.wait(self._every):
            self.found = self.ask() or self.found

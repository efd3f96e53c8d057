"""The backend's own profile of a few steps, where TensorBoard and Perfetto find it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from shoal.observe.profiled_steps import ProfiledSteps, ProfileSwitch
from shoal.observe.recorder import Moment


class StepProfile:
    """Of this worker. It begins and ends between two moments of the training's thread, which waits for it."""

    def __init__(self, steps: ProfiledSteps, folder: Path) -> None:
        self._folder = folder
        self._switch = ProfileSwitch(steps)
        self._end: Callable[[], None] | None = None

    def hear(self, moment: Moment) -> None:
        turn = self._switch.hear(moment)
        if turn is True:
            self._try(self._begin)
        elif turn is False:
            self.close()

    def close(self) -> None:
        """If the training has ended in the middle of it. Calling it again does nothing."""
        end, self._end = self._end, None
        if end is not None:
            self._try(end)

    def _begin(self) -> None:
        from shoal.hook.backends import registry

        self._folder.mkdir(parents=True, exist_ok=True)
        self._end = registry.current().profile(self._folder)

    def _try(self, act: Callable[[], None]) -> None:
        """Training goes on without a profile: the script may have a profiler of its own at work."""
        try:
            act()
        except Exception as error:
            print(f"shoal: there is no profile: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

"""The chief, as a worker sees it that waits for what the chief does with files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from shoal.cluster import folders
from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.errors import ViewChanged
from shoal.files import Chief
from shoal.wire.status_page import read


class ChiefWatch:
    """Who is the chief, and a sleep in which this worker is there if the others need it."""

    def __init__(self, coordinator_link: CoordinatorLink, folder: Path | None, attend: Callable[[], None]) -> None:
        """`attend`: be in the newest view, for those who need what this worker has."""
        self._coordinator_link = coordinator_link
        self._folder = folder
        self._attend = attend

    def chief(self) -> Chief:
        chief = self._coordinator_link.view.chief
        return Chief(chief.id, chief.pid, is_here=chief.machine == self._coordinator_link.member.machine)

    def pause(self, seconds: float) -> None:
        """Sleeps; less if the run changes. Raises if it is over."""
        if self._is_in_a_call():
            self._attend()
        view, wakeup = self._coordinator_link.stand()
        with contextlib.suppress(ViewChanged):
            wakeup.check()
        self._coordinator_link.wait_change(view.number, self._coordinator_link.candidates, seconds)

    def _is_in_a_call(self) -> bool:
        """Where it may need this worker. In the script's own lines it does not, and may take as long as it likes."""
        if self._folder is None:
            return False
        said = read(self._folder / f"{self.chief().id}{folders.STATUS_PAGE}")
        return said is not None and not said[1].phase.is_scripts

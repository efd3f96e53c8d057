"""What the hook asks of the run that this process takes part in. The session answers."""

from __future__ import annotations

from typing import Protocol

from shoal.collectives.group import AbstractGroup


class Run(Protocol):
    """The run, as one of its workers sees it."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def is_chief(self) -> bool: ...

    @property
    def pieces(self) -> int | None:
        """What the command line said; None if it said nothing."""

    @property
    def check_every(self) -> int:
        """Steps between two comparisons of the workers' weights."""

    def group(self) -> AbstractGroup:
        """All workers, connected."""

    def say(self, doing: str, step: int | None = None) -> None:
        """What this worker does now, for `shoal status` and for errors."""

    def rest(self) -> None:
        """A call of fit, evaluate or predict is over: the script goes on."""

    def count(self, samples: int) -> None:
        """Samples that a committed step has trained on."""

    def announce(self, what: str, path: str) -> None:
        """Tells the other workers that the chief has written a file they may wait for."""

    def wait_for_chief(self, what: str, path: str) -> None:
        """Waits for such an announcement."""

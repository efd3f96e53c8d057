"""What the chief has written, told to the workers that wait for it.

The chief waits for nobody: a script may well write on the chief alone. The others wait for the chief's word on the same
call, counted per kind of call and path.
"""

from __future__ import annotations

import warnings
from collections import Counter

from shoal.clock import Deadline
from shoal.cluster.member import Seat
from shoal.config import Deadlines
from shoal.errors import PeerTimeout


class Announcements:
    """One worker's side: the chief announces, the others wait."""

    def __init__(self, seat: Seat, deadlines: Deadlines) -> None:
        self._seat = seat
        self._deadlines = deadlines
        self._calls: Counter[str] = Counter()

    def announce(self, what: str, path: str) -> None:
        """The chief has done this, for this path."""
        self._seat.post(self._numbered(f"{what} {path}"), b"")
        self._seat.post(self._numbered(what), path.encode())

    def wait(self, what: str, path: str) -> None:
        """Until the chief has done it as often as this worker has asked.

        A path that differs from worker to worker (a time, a temporary folder) never comes from the chief. After the
        silence deadline it is enough that the chief has done as many calls of this kind. PeerTimeout names the chief.
        """
        same, alike = self._numbered(f"{what} {path}"), self._numbered(what)
        try:
            self._seat.wait_post(same, Deadline.after(self._deadlines.silence))
        except PeerTimeout:
            self._wait_for_either(what, path, same, alike)

    def _wait_for_either(self, what: str, path: str, same: str, alike: str) -> None:
        chief = self._seat.view.chief.id
        try:
            name, value = self._seat.wait_any_post((same, alike), Deadline.after(self._deadlines.stall))
        except PeerTimeout as error:
            text = f"{chief} did not {what} {path}, for which {self._seat.member.id} waits"
            raise PeerTimeout((chief,), f"{text}. Every worker must make the same calls.") from error
        if name == alike:
            warnings.warn(f"{what}: asked for {path} here, the chief wrote {value.decode()}", stacklevel=2)

    def _numbered(self, what: str) -> str:
        self._calls[what] += 1
        return f"{what} #{self._calls[what]}"

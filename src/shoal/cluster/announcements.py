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
        """The chief has done what it was last asked for."""
        self._seat.post(f"{what} {path} #{self._calls[f'{what} {path}']}", b"")
        self._seat.post(f"{what} #{self._calls[what]}", path.encode())

    def wait(self, what: str, path: str) -> bool:
        """Until the chief has done it as often as this worker has asked; False if this worker is the chief.

        A path that differs from worker to worker (a time, a temporary folder) never comes from the chief. After the
        silence deadline it is enough that the chief has done as many calls of this kind; but not for one who came late
        and does not know how many there were. PeerTimeout names the chief.
        """
        self._count_what_was_missed()
        same, alike = self._numbered(f"{what} {path}"), self._numbered(what)
        while not self._is_chief():
            chief = self._seat.view.chief.id
            try:
                if not self._seat.wait_post((same,), Deadline.after(self._deadlines.silence), while_chief=chief):
                    continue
                return True
            except PeerTimeout:
                if self._wait_for_either(what, path, same, alike, chief):
                    return True
        return False

    def _wait_for_either(self, what: str, path: str, same: str, alike: str, chief: str) -> bool:
        names = (same, alike) if self._seat.view.has(self._seat.member.id) else (same,)
        try:
            found = self._seat.wait_post(names, Deadline.after(self._deadlines.stall), while_chief=chief)
        except PeerTimeout as error:
            text = f"{chief} did not {what} {path}, for which {self._seat.member.id} waits"
            raise PeerTimeout((chief,), f"{text}. Every worker must make the same calls.") from error
        if found is not None and found[0] == alike:
            warnings.warn(f"{what}: asked for {path} here, the chief wrote {found[1].decode()}", stacklevel=2)
        return found is not None

    def _count_what_was_missed(self) -> None:
        """One who came late and was let in counts on from where the others were."""
        for name in self._seat.posted_before():
            call, _, number = name.rpartition(" #")
            self._calls[call] = max(self._calls[call], int(number))

    def _is_chief(self) -> bool:
        return self._seat.view.chief.id == self._seat.member.id

    def _numbered(self, what: str) -> str:
        self._calls[what] += 1
        return f"{what} #{self._calls[what]}"

"""What the chief has written, or failed to write, told to the workers that wait for it.

The chief waits for nobody: a script may well write on the chief alone. The others wait for the chief's word on the same
call, counted per kind of call and path. While they wait they are not among the others: when the view changes, others
may have been torn out of what they did together last, the chief too, and need this worker to end it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable

import msgspec

from shoal.clock import Deadline
from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.config import Deadlines
from shoal.errors import CallOver, PeerTimeout


class _Said(msgspec.Struct, frozen=True, array_like=True):
    """What the chief has to say of one call."""

    path: str
    failure: bytes  # why it failed; the script's room knows how to read it

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decoded(cls, said: bytes) -> _Said:
        return msgspec.msgpack.decode(said, type=cls)


class Announcements:
    """One worker's side: the chief announces, the others wait."""

    def __init__(
        self, coordinator_link: CoordinatorLink, deadlines: Deadlines, attend: Callable[[], None] = lambda: None
    ) -> None:
        """`attend`: be in the newest view, for those who need what this worker has."""
        self._coordinator_link = coordinator_link
        self._deadlines = deadlines
        self._attend = attend
        self._calls: Counter[str] = Counter()

    def announce(self, what: str, path: str, failure: bytes = b"") -> None:
        """The chief has done what it was last asked for, or failed to."""
        said = _Said(path, failure).encoded()
        self._coordinator_link.post(f"{what} {path} #{self._calls[f'{what} {path}']}", said)
        self._coordinator_link.post(f"{what} #{self._calls[what]}", said)

    def wait(self, what: str, path: str, call: int | None = None) -> bytes | None:
        """Until the chief has done it as often as this worker has asked. What the chief has said of its failure, or
        nothing if there was none; None if this worker is the chief.

        `call`: of the script, within which this worker asks. CallOver if the others have left it.
        A path that differs from worker to worker (a time, a temporary folder) never comes from the chief. After the
        silence deadline it is enough that the chief has done as many calls of this kind; but not for one who came late
        and does not know how many there were. PeerTimeout names the chief.
        """
        self._count_what_was_missed()
        same, alike = self._numbered(f"{what} {path}"), self._numbered(what)
        while not self._is_chief():
            view = self._coordinator_link.view.number
            if call is not None and self._coordinator_link.view.call > call:
                raise CallOver
            try:
                found = self._coordinator_link.wait_post((same,), Deadline.after(self._deadlines.silence), view, call)
            except PeerTimeout:
                found = self._wait_for_either(what, path, same, alike, view, call)
            if found is not None:
                return _Said.decoded(found[1]).failure
            self._attend()
        return None

    def _wait_for_either(
        self, what: str, path: str, same: str, alike: str, view: int, call: int | None
    ) -> tuple[str, bytes] | None:
        names = (same, alike) if self._coordinator_link.view.has(self._coordinator_link.member.id) else (same,)
        chief = self._coordinator_link.view.chief.id
        try:
            found = self._coordinator_link.wait_post(names, Deadline.after(self._deadlines.stall), view, call)
        except PeerTimeout as error:
            text = f"{chief} did not {what} {path}, for which {self._coordinator_link.member.id} waits"
            raise PeerTimeout((chief,), f"{text}. Every worker must make the same calls.") from error
        if found is not None and found[0] == alike:
            wrote = _Said.decoded(found[1]).path
            warnings.warn(f"{what}: asked for {path} here, the chief wrote {wrote}", stacklevel=2)
        return found

    def _count_what_was_missed(self) -> None:
        """One who came late and was let in counts on from where the others were."""
        for name in self._coordinator_link.posted_before():
            call, _, number = name.rpartition(" #")
            self._calls[call] = max(self._calls[call], int(number))

    def _is_chief(self) -> bool:
        return self._coordinator_link.view.chief.id == self._coordinator_link.member.id

    def _numbered(self, what: str) -> str:
        self._calls[what] += 1
        return f"{what} #{self._calls[what]}"

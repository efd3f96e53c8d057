"""One process's part in a run: the order of calls and nothing else.

start: listen for peers → join the run → (when the script first trains) form the group → close.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from shoal import hook
from shoal.clock import Deadline
from shoal.cluster import folders, meeting
from shoal.cluster.identity import Identity
from shoal.cluster.member import Seat
from shoal.cluster.view import Member
from shoal.collectives.group import AbstractGroup, Alone, form
from shoal.config import RunConfig
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.slate import Slate


class Session:
    """This process in its run. Without a run (a plain `python script.py`) it is a run of one worker."""

    def __init__(
        self,
        me: str = "worker-0",
        config: RunConfig | None = None,
        seat: Seat | None = None,
        listener: Listener | None = None,
        key: RunKey | None = None,
    ) -> None:
        self._me = me
        self._config = config
        self.seat = seat
        self._listener = listener
        self._key = key
        self._group: AbstractGroup | None = None
        self._step = 0
        self._doing = "running the script"
        self._announced: dict[str, int] = {}

    @property
    def rank(self) -> int:
        return self.seat.view.rank(self._me) if self.seat is not None else 0

    @property
    def size(self) -> int:
        return len(self.seat.view.workers) if self.seat is not None else 1

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def pieces(self) -> int | None:
        """What the command line said."""
        return self._config.pieces if self._config is not None else None

    @property
    def check_every(self) -> int:
        """Steps between two comparisons of the workers' weights."""
        return self._config.check_every if self._config is not None else RunConfig.__struct_defaults__[-1]

    def group(self) -> AbstractGroup:
        """All workers of the run, connected. Formed when it is first asked for, which all workers do."""
        if self._group is None:
            self._group = self._form()
        return self._group

    def say(self, doing: str, step: int | None = None) -> None:
        """What this worker does now: `shoal status` and every error shows it. Costs next to nothing."""
        self._doing = doing
        self._step = self._step if step is None else step
        if self.seat is not None:
            self.seat.say(self._step, doing, exchanging=doing.startswith("exchanging"))

    def count(self, samples: int) -> None:
        """Samples that a committed step has trained on."""
        if self.seat is not None:
            self.seat.say(self._step, self._doing, samples)

    def announce(self, what: str) -> None:
        """Tells the other workers that the chief has done something they may wait for."""
        if self.seat is not None:
            self.seat.post(self._numbered(what), b"")

    def wait_for_chief(self, what: str) -> None:
        """Waits until the chief has announced this as often as it was waited for."""
        if self.seat is not None and self._config is not None:
            self.say(f"waiting for the chief to {what}")
            self.seat.wait_post(self._numbered(what), Deadline.after(self._config.deadlines.stall))

    def close(self, ok: bool) -> None:
        """Leaves the run. After a good end it waits for the others: their last exchange may still need this worker."""
        if self.seat is not None and ok:
            self.seat.done()
            self.seat.wait_end()
        if self._group is not None:
            self._group.close()
        if self._listener is not None:
            self._listener.close()
        if self.seat is not None:
            self.seat.close()

    def _form(self) -> AbstractGroup:
        if self.seat is None or self._config is None or self._listener is None or self._key is None:
            return Alone(self._me)
        return form(
            self.seat.view,
            self._me,
            self._listener,
            self._key,
            self._config.transport,
            self._config.deadlines,
            self.seat.wakeup,
        )

    def _numbered(self, what: str) -> str:
        self._announced[what] = self._announced.get(what, 0) + 1
        return f"{what} #{self._announced[what]}"


_current: Session | None = None


def start(config: RunConfig, key: RunKey, member_id: str, folder: Path) -> Session:
    """Joins the run; returns when all members have joined. The script's models train in it from now on."""
    address = f"unix:{folder / member_id}.sock" if config.transport == "shm" else "tcp:127.0.0.1:0"
    listener = Listener(address, key)
    coordinator = meeting.find(folder, Deadline.after(config.deadlines.start))
    member = Member(member_id, "worker", os.getpid(), platform.node(), listener.address)
    slate = Slate(folder / f"{member_id}{folders.SLATE}")
    seat = Seat.join(coordinator, key, member, Identity.of_this_process(config), config.deadlines, slate)
    return _enter(Session(member_id, config, seat, listener, key))


def current() -> Session:
    """This process's session. Without `shoal run` it is one of a single worker, made when first asked for."""
    return _current or _enter(Session())


def _enter(session: Session) -> Session:
    global _current
    _current = session
    hook.install(session)
    return session

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
from shoal.cluster.announcements import Announcements
from shoal.cluster.identity import Identity
from shoal.cluster.member import Seat
from shoal.cluster.view import Member
from shoal.collectives.group import AbstractGroup, Alone, form
from shoal.config import CHECK_EVERY, RunConfig
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.slate import Slate

IN_SCRIPT = "running the script"  # what a worker does outside of fit, evaluate and predict


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
        self._doing = IN_SCRIPT
        self._announcements = Announcements(seat, config.deadlines) if seat is not None and config is not None else None

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
        return self._config.check_every if self._config is not None else CHECK_EVERY

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
            self.seat.say(self._step, doing)

    def rest(self) -> None:
        """A call of fit, evaluate or predict is over: the script goes on."""
        self.say(IN_SCRIPT)

    def count(self, samples: int) -> None:
        """Samples that a committed step has trained on."""
        if self.seat is not None:
            self.seat.say(self._step, self._doing, samples)

    def announce(self, what: str, path: str) -> None:
        """Tells the other workers that the chief has written a file they may wait for."""
        if self._announcements is not None:
            self._announcements.announce(what, path)

    def wait_for_chief(self, what: str, path: str) -> None:
        """Waits until the chief has written a file."""
        if self._announcements is not None:
            self.say(f"waiting for the chief to {what} {path}")
            self._announcements.wait(what, path)
            self.rest()

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
            self._wait,
        )

    def _wait(self, waiting: bool) -> None:
        """Whether this worker is in an exchange, where it can't go on unless all come."""
        assert self.seat is not None
        self.seat.say(self._step, self._doing, exchanging=waiting)


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

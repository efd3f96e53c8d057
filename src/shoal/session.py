"""One process's part in a run: the order of calls and nothing else.

start: listen for peers → join the run → (when the script first trains) form the group → close.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from shoal import hook
from shoal.checkpoint.resumed import look_into
from shoal.clock import Deadline
from shoal.cluster import folders, meeting
from shoal.cluster.announcements import Announcements
from shoal.cluster.deposits import Deposits
from shoal.cluster.identity import Identity
from shoal.cluster.member import Seat
from shoal.cluster.view import Member, View, role_of
from shoal.collectives.group import AbstractGroup, Alone, Company, form
from shoal.config import CHECK_EVERY, RunConfig, Saving, Servers
from shoal.errors import RunEnded
from shoal.hook.calls import Calls
from shoal.store.client import Client, Weights
from shoal.store.ledger import Ledger
from shoal.store.saves import Scribe
from shoal.store.server import Kept, Server
from shoal.store.tensors import AnyShapes, Tensors
from shoal.wire import addresses
from shoal.wire.certificates import RunCertificate
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.slate import Slate
from shoal.wire.wakeup import Wakeup

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
        on_training: Callable[[], None] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._me = me
        self.deposits = Deposits(folder)
        self._config = config
        self.seat = seat
        self._listener = listener
        self._key = key
        self._on_training = on_training
        self._company: Company | None = None
        self._step = 0
        self._doing = IN_SCRIPT
        resumed = look_into(Path(config.resume)) if config is not None and config.resume is not None else None
        self.calls = Calls(seat, resumed, lambda: self.company.is_late, self.say)
        self.trained = 0
        self._announcements = Announcements(seat, config.deadlines) if seat is not None and config is not None else None

    @property
    def rank(self) -> int:
        """This worker's place among the others; one that has come late, and is not in yet, stands behind them."""
        if self.seat is None:
            return 0
        view = self.seat.view
        return view.rank(self._me) if view.has(self._me) else len(view.workers)

    @property
    def size(self) -> int:
        return len(self.seat.view.workers) if self.seat is not None else 1

    @property
    def workers(self) -> int:
        """How many the run was started with."""
        return self._config.workers if self._config is not None else 1

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def is_plain(self) -> bool:
        """One worker, now and later, and nothing to write or to go on from: Keras does it all."""
        config = self._config
        if config is None:
            return True
        return config.workers == 1 and config.servers is None and config.saving is None and config.resume is None

    @property
    def pieces(self) -> int | None:
        """What the command line said."""
        return self._config.pieces if self._config is not None else None

    @property
    def check_every(self) -> int:
        """Steps between two comparisons of the workers' weights."""
        return self._config.check_every if self._config is not None else CHECK_EVERY

    @property
    def company(self) -> Company:
        """All workers of the run. They connect when they first do something together."""
        if self._company is None:
            patience = self._config.deadlines.stall if self._config is not None else 0.0
            lasting = self._config is not None and self._config.least is not None
            shm = self._config is not None and self._config.transport == "shm"
            self._company = Company(self._me, self.seat, self._form, patience, lasting, shm, self.say)
        return self._company

    @property
    def takes_part(self) -> bool:
        """Whether this is a worker that does what all others do; one that came late does, once it was let in."""
        return not self.is_server and not self.company.is_late

    # Parameter servers ----------------------------------------------------------------------------------

    @property
    def servers(self) -> Servers | None:
        return self._config.servers if self._config is not None else None

    @property
    def is_server(self) -> bool:
        return role_of(self._me) == "server"

    def client(self, call: int, shapes: Sequence[AnyShapes], initial: Weights | None, ahead: int) -> Client:
        assert self.seat is not None
        assert self._key is not None
        assert self._config is not None
        patience = self._config.deadlines.stall
        return Client(self._me, call, self.seat, self._key, shapes, initial, ahead, patience=patience)

    def server(
        self,
        call: int,
        shapes: Sequence[AnyShapes],
        make: Callable[[int], Tensors],
        scales: bool,
        scribe: Scribe | None,
        ledger: Ledger,
        kept: Mapping[int, Kept],
    ) -> Server:
        assert self.seat is not None
        assert self._key is not None
        assert self._listener is not None
        return Server(
            self._me, call, self.seat, self._listener, self._key, shapes, make, scales, kept, None, scribe, ledger
        )

    def wait_in(self, call: int) -> bytes | None:
        """Until this worker, which came late, is let in; or what the call returned, if it is over before that."""
        assert self.seat is not None
        while not (view := self.seat.view).has(self._me):
            self.seat.ready(call)
            result = self.seat.wait_result_or_view(call, view.number)
            if result is not None:
                return result
        return None

    def result_of(self, call: int) -> bytes:
        """What a call of the script returned, in which this process took no part."""
        assert self.seat is not None
        while (kept := self.seat.wait_result_or_view(call, self.seat.view.number)) is None:
            pass
        return kept

    # Leaving and saving ----------------------------------------------------------------------------------

    @property
    def drains(self) -> bool:
        return self.seat is not None and self.seat.drain is not None

    def leave(self) -> NoReturn:
        assert self.seat is not None
        self.seat.leave()
        raise RunEnded(f"it has left the run: {self.seat.drain}")

    def drain(self, why: str) -> None:
        """Leave after the step that is going on, if there is one; otherwise at once. For signal handlers."""
        assert self.seat is not None
        self.seat.drain = why
        if not self.calls.going_on:
            self.leave()

    @property
    def saving(self) -> Saving | None:
        return self._config.saving if self._config is not None else None

    @property
    def me(self) -> str:
        return self._me

    def candidates(self, call: int) -> tuple[str, ...]:
        if self.seat is None:
            return ()
        return tuple(candidate.id for candidate in self.seat.candidates if candidate.call == call)

    # What this worker does ------------------------------------------------------------------------------

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
        if self._on_training is not None:
            self._on_training()
            self._on_training = None
        if self.seat is not None:
            self.seat.say(self._step, self._doing, samples)

    def announce(self, what: str, path: str) -> None:
        """Tells the other workers that the chief has written a file they may wait for."""
        if self._announcements is not None:
            self._announcements.announce(what, path)

    def wait_for_chief(self, what: str, path: str) -> bool:
        """Waits until the chief has written a file; False if it is this worker that has to."""
        if self._announcements is None:
            return False
        self.say(f"waiting for the chief to {what} {path}")
        waited = self._announcements.wait(what, path)
        self.rest()
        return waited

    def close(self, ok: bool) -> None:
        """Leaves the run. After a good end it waits for the others: they may still need this worker's last result."""
        if self.seat is not None and ok:
            hook.leave_servers()
            self.seat.done()
            company = self._company if self._company is not None and self._company.has_acted else None
            while not self.seat.wait_end(after=company.view if company else None):
                assert company is not None
                company.attend()
        if self._company is not None:
            self._company.close()
        if self._listener is not None:
            self._listener.close()
        if self.seat is not None:
            self.seat.close()

    def _form(self, view: View, wakeup: Wakeup) -> AbstractGroup:
        if self.seat is None or self._config is None or self._listener is None or self._key is None:
            return Alone(self._me)
        return form(
            view,
            self._me,
            self._listener,
            self._key,
            self._config.transport,
            self._config.deadlines,
            wakeup,
            self._wait,
        )

    def _wait(self, waiting: bool) -> None:
        """Whether this worker is in an exchange, where it can't go on unless all come."""
        assert self.seat is not None
        self.seat.say(self._step, self._doing, exchanging=waiting)


_current: Session | None = None


def start(
    config: RunConfig,
    key: RunKey,
    member_id: str,
    folder: Path,
    on_chief: Callable[[], None] = lambda: None,
    on_training: Callable[[], None] = lambda: None,
) -> Session:
    """Joins the run; returns when all members have joined. The script's models train in it from now on.

    `on_chief` is called when this worker becomes the chief, `on_training` after its first step, or at once if it
    comes late.
    """
    address = f"unix:{folder / member_id}.sock" if config.transport == "shm" else addresses.any_port(config.host)
    certificate = RunCertificate.new() if addresses.needs_certificate(address) else None
    listener = Listener(address, key, certificate=certificate)
    coordinator = meeting.find(folder, Deadline.after(config.deadlines.start))
    find = partial(meeting.find, folder) if config.least is not None else None
    member = Member(member_id, role_of(member_id), os.getpid(), platform.node(), listener.address)
    slate = Slate(folder / f"{member_id}{folders.SLATE}")
    seat = Seat.join(
        coordinator, key, member, Identity.of_this_process(config), config.deadlines, slate, on_chief, find
    )
    if seat.view.has(member_id):
        return _enter(Session(member_id, config, seat, listener, key, on_training, folder))
    on_training()
    return _enter(Session(member_id, config, seat, listener, key, folder=folder))


def current() -> Session:
    """This process's session. Without `shoal run` it is one of a single worker, made when first asked for."""
    return _current or _enter(Session())


def _enter(session: Session) -> Session:
    global _current
    _current = session
    hook.install(session)
    return session

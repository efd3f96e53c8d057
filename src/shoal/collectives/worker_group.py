"""The workers of a run, whoever they are at the moment: what is begun in one view is ended in a later one, if need be.

Everything that all do together is an act: a function of the view's group, which gives a Result. When the view
changes in the middle of it, the members of the next view find out where each stands (resync.py); who missed the end
of the act gets its result from one who has it, and if nobody has, all do it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from shoal.clock import Deadline
from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.cluster.view import View
from shoal.collectives.abstract import AbstractGroup, Result
from shoal.collectives.layout import Array
from shoal.collectives.resync import Orders, WorkerStanding, resync
from shoal.errors import PeerClosed, PeerTimeout, Refused, RunEnded, ViewChanged
from shoal.wire.wakeup import Wakeup

Act = Callable[[AbstractGroup], Result]
Form = Callable[[View, Wakeup], AbstractGroup]

_LOOK_AGAIN = 1.0  # seconds between two looks at what has changed while a run waits for workers
_MOMENT = 0.3  # seconds in which who goes on alone is heard of
_NO_RESULT = Result([], [])


def _never() -> bool:
    return False


class StateKeeper(Protocol):
    """Who can tell a newcomer everything, between two steps; and the newcomer's side of it."""

    def give(self) -> Result: ...

    def take(self, given: Result) -> None: ...


class Gathered(NamedTuple):
    """What everyone said, by rank of the view in which it was said."""

    members: tuple[str, ...]
    values: list[bytes]

    @property
    def chiefs(self) -> bytes:
        return self.values[0]

    def unlike_chiefs(self) -> list[str]:
        """Who said something else than the chief."""
        return [member for member, value in zip(self.members, self.values, strict=True) if value != self.values[0]]


class WorkerGroup:
    """One worker among the others, from view to view. Belongs to one thread.

    `lasting` is false for a run that ends with its first loss: then errors are raised as they come.
    """

    def __init__(
        self,
        me: str,
        coordinator_link: CoordinatorLink | None,
        form: Form,
        patience: float,
        lasting: bool = True,
        shares_memory: bool = False,
        on_wait: Callable[[str], None] = lambda for_what: None,
        on_view: Callable[[View], None] = lambda view: None,
    ) -> None:
        """`on_view` is told of a view before it is entered, and may raise: then the act that was going on is over."""
        self._me = me
        self._coordinator_link = coordinator_link
        self._form = form
        self._patience = patience
        self._lasting = lasting
        self.shares_memory = shares_memory  # whether vectors move through memory that all share
        self._on_wait = on_wait
        self._on_view = on_view
        self._view: View | None = None
        self._tried = 0  # the number of the last view that was to be formed
        self._group: AbstractGroup | None = None
        self._acts: int | None = 0 if coordinator_link is None or coordinator_link.view.has(me) else None
        self._call = 0  # of the script: all acts before it are forgotten, since it began after one that was left
        self._forgotten = 0
        self._last = Result([], [])
        self._find: Callable[[], Result | None] = lambda: None

    @property
    def me(self) -> str:
        """This worker's id."""
        return self._me

    @property
    def is_late(self) -> bool:
        """Whether this worker came while the others were training, and has not been let in yet."""
        return self._acts is None

    @property
    def has_acted(self) -> bool:
        """Whether others may need what this worker has."""
        return bool(self._acts)

    @property
    def view(self) -> int:
        """The number of the last view in which this worker met the others."""
        return self._view.number if self._view is not None else 0

    @property
    def members(self) -> tuple[str, ...]:
        """Who was there, by rank."""
        return tuple(worker.id for worker in self._view.workers) if self._view is not None else (self._me,)

    # What all do together ---------------------------------------------------------------------------

    def commit(
        self,
        act: Act,
        keeper: StateKeeper | None = None,
        admit: Sequence[str] = (),
        leavers: Sequence[str] = (),
        is_past: Callable[[], bool] = _never,
    ) -> Result:
        """Do it together with all others until it has committed once, in whatever view.

        With a `keeper`, this worker stands between two steps: newcomers may come in, and those of `admit`, on whom
        all agree, do; `leavers` are about to be gone. `is_past`: for an act without a result, after which the others do
        not come here for long: whether some have done it, and are gone. Then it has committed here too.
        """
        assert self._acts is not None, "who has come late enters first"
        begun = self._acts
        while self._acts == begun:
            try:
                if (
                    leavers
                    and self._coordinator_link is not None
                    and any(map(self._coordinator_link.view.has, leavers))
                ):
                    self._coordinator_link.wait_view(
                        self.view, Deadline.after(self._patience), "the next view did not come"
                    )
                leavers = ()
                asked, admit = admit, ()  # once: they may be lost, or come too early
                self._gather_round(keeper, asked)
                if self._acts == begun:
                    assert self._group is not None
                    self._keep(act(self._group))
            except ViewChanged as changed:
                self._leave_view(changed)
                if self._soon(is_past):
                    self._keep(_NO_RESULT)
            except (PeerClosed, PeerTimeout, Refused) as error:
                if is_past():
                    self._leave_view()
                    self._keep(_NO_RESULT)
                else:
                    self._complain(error)
        return self._last

    def start_apart(self, what: str, is_past: Callable[[], bool]) -> None:
        """The last thing that all do before each goes its own way for long, where nobody attends to who is behind: when
        this returns, all have the result of the act before. `is_past` tells that others are on their way.
        """

        def act(group: AbstractGroup) -> Result:
            group.gather(what, b"")
            return _NO_RESULT

        self.commit(act, is_past=is_past)

    def _soon(self, is_past: Callable[[], bool]) -> bool:
        """Whether it is so within a moment, in this view."""
        link, deadline = self._coordinator_link, Deadline.after(_MOMENT)
        if link is None or is_past is _never:
            return False
        while not (past := is_past()) and not deadline.passed():
            link.wait_change(link.view.number, link.candidates, _MOMENT / 10)
        return past

    def gather(self, what: str, value: bytes | Callable[[AbstractGroup], bytes]) -> Gathered:
        """Small values of all."""

        def act(group: AbstractGroup) -> Result:
            told = group.gather(what, value if isinstance(value, bytes) else value(group))
            return Result([msgspec.msgpack.encode(group.members), *told], [])

        members, *values = self.commit(act).values
        return Gathered(msgspec.msgpack.decode(members, type=tuple[str, ...]), values)

    def broadcast(self, what: str, arrays: Sequence[Array]) -> list[Array]:
        """The chief's contents for everyone, in new arrays."""

        def act(group: AbstractGroup) -> Result:
            landing = [np.array(array) for array in arrays]  # anew: half of a lost chief's may lie there
            group.broadcast(what, landing)
            return Result([], landing)

        return self.commit(act).arrays

    def enter(self, keeper: StateKeeper, call: int, find: Callable[[], Result | None] = lambda: None) -> bytes | None:
        """Who came late waits here to be let in; `keeper` takes what it is told.

        Returns what the call returned, if it is over for the others before that; None: this worker is in. `find`: what
        others have left, for when nobody is there who could tell; the same, whoever looks.
        """
        assert self._coordinator_link is not None
        self._find = find
        while self._acts is None:
            view, _ = self._coordinator_link.stand()
            if not view.has(self._me):
                self._coordinator_link.ready(call)
                result = self._coordinator_link.wait_result_or_view(call, view.number)
                if result is not None:
                    return result
                continue
            try:
                self._gather_round(keeper, ())
            except ViewChanged as changed:
                self._leave_view(changed)
            except (PeerClosed, PeerTimeout, Refused) as error:
                self._complain(error)
        return None

    def attend_newest(self) -> None:
        """For a worker that waits for something else, between two acts: if there is a newer view, `attend`."""
        if self._coordinator_link is not None and self.has_acted and self._coordinator_link.view.number > self.view:
            self.attend()

    def attend(self) -> None:
        """For a worker whose script is over, or that waits: others may still need the result of the last act."""
        try:
            try:
                self._gather_round(None, ())
            except ViewChanged as changed:
                self._leave_view(changed)
            except (PeerClosed, PeerTimeout, Refused) as error:
                self._complain(error)
        except RunEnded:
            pass  # the last of the others was done too; or not, which whoever waits for the end will hear

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    # From view to view ------------------------------------------------------------------------------

    def _gather_round(self, keeper: StateKeeper | None, admit: Sequence[str]) -> None:
        """Be in the newest view, at the same point as everyone in it, with enough workers if a step is to begin.

        If others have committed the act that is going on already, it has committed here too when this returns.
        """
        if self._coordinator_link is None:
            self._group = self._group or self._form(_nobody, Wakeup())
            return
        if admit:
            self._let_in(self._coordinator_link, tuple(admit))
        acts = self._acts
        view = self._meet(self._coordinator_link, keeper)
        # Only once all stand at the same point: before that, others may need this worker in order to get there.
        while keeper is not None and self._acts == acts and not view.enough:
            self._wait_for_more(self._coordinator_link, view)
            view = self._meet(self._coordinator_link, keeper)

    def _meet(self, coordinator_link: CoordinatorLink, keeper: StateKeeper | None) -> View:
        """Form the newest view and catch up, if that has not been done yet."""
        view, wakeup = coordinator_link.stand()
        if self._group is not None and self._view == view:
            return view
        self.close()
        if not view.has(self._me):
            raise RunEnded(f"view {view.number} is without {self._me}")
        self._on_view(view)
        if view.call > self._call:
            self._call, self._forgotten = view.call, self._acts or 0
        first = self._view is None and self._acts == 0 and view.number == 1
        self._tried = view.number
        self._group = self._form(view, wakeup)
        self._view = view
        if not first:
            self._catch_up(coordinator_link, self._group, view, keeper)
        return view

    def _catch_up(
        self, coordinator_link: CoordinatorLink, group: AbstractGroup, view: View, keeper: StateKeeper | None
    ) -> None:
        found = self._find() if self._acts is None else None
        acts = None if self._acts is None else self._acts - self._forgotten
        mine = WorkerStanding(acts, keeper is not None and acts is not None, found is not None)
        told = group.gather(f"view {view.number}: where everyone stands", msgspec.msgpack.encode(mine))
        orders = resync(group.members, [msgspec.msgpack.decode(value, type=WorkerStanding) for value in told])
        if orders.anew:
            assert keeper is not None
            assert found is not None
            keeper.take(found)
            self._acts = 0
        if orders.declined:
            coordinator_link.decline(view.number, tuple(group.members[rank] for rank in sorted(orders.declined)))
            coordinator_link.wait_view(view.number, Deadline.after(self._patience), "the next view did not come")
            raise ViewChanged(view.number + 1)
        if orders.behind:
            self._pass_result(group, orders)
        if orders.newcomers:
            self._pass_state(group, orders, keeper)

    def _pass_result(self, group: AbstractGroup, orders: Orders) -> None:
        given = self._last if group.rank == orders.giver else None
        missed = group.pass_on("the result of the last act", orders.giver, orders.behind, given)
        if missed is not None:
            # At once: a newcomer that is told the state after this act next could not give its result to anybody.
            self._keep(missed)

    def _keep(self, result: Result) -> None:
        """The act has committed."""
        assert self._acts is not None
        self._acts += 1
        self._last = result

    def _pass_state(self, group: AbstractGroup, orders: Orders, keeper: StateKeeper | None) -> None:
        given = None
        if group.rank == orders.giver:
            assert keeper is not None
            state = keeper.give()
            acts = (self._acts or 0) - self._forgotten
            header = np.frombuffer(msgspec.msgpack.encode((acts, state.values)), np.uint8)
            given = Result([], [header, *state.arrays])
        taken = group.pass_on("the state for newcomers", orders.giver, orders.newcomers, given)
        if taken is not None:
            assert keeper is not None
            header, *arrays = taken.arrays
            acts, values = msgspec.msgpack.decode(header.tobytes(), type=tuple[int, list[bytes]])
            keeper.take(Result(values, arrays))
            self._acts, self._forgotten = acts, 0

    def _let_in(self, coordinator_link: CoordinatorLink, admit: tuple[str, ...]) -> None:
        """Between two steps: wait for the view with those who are let in."""
        view, _ = coordinator_link.stand()
        if not all(view.has(id) for id in admit):
            coordinator_link.admit(view.number, admit)
            coordinator_link.wait_view(
                view.number, Deadline.after(self._patience), "the view with the newcomers did not come"
            )

    def _wait_for_more(self, coordinator_link: CoordinatorLink, view: View) -> None:
        """Between two steps: there are too few workers for the next."""
        candidates = coordinator_link.candidates
        if candidates:
            coordinator_link.admit(view.number, tuple(candidate.id for candidate in candidates))
        self._on_wait(f"for more workers: too few with {len(view.workers)}")
        coordinator_link.wait_change(view.number, candidates, _LOOK_AGAIN)

    def _complain(self, error: PeerClosed | PeerTimeout | Refused) -> None:
        """A peer can't be reached: whoever is to blame, the next view will be without it."""
        if not self._lasting or self._coordinator_link is None:
            raise error
        self._coordinator_link.complain(self._tried, _absent(error), str(error), late=isinstance(error, PeerTimeout))
        self._leave_view()
        try:
            self._coordinator_link.wait_view(self._tried, Deadline.after(self._patience), "the next view did not come")
        except PeerTimeout as timeout:
            raise timeout from error

    def _leave_view(self, changed: ViewChanged | None = None) -> None:
        self.close()
        if changed is not None:
            # It lives on in the old view's wakeup: with it would live all that its frames hold, the old memory too.
            changed.__traceback__ = None


def _absent(error: PeerClosed | PeerTimeout | Refused) -> tuple[str, ...]:
    match error:
        case PeerTimeout():
            return error.missing
        case PeerClosed():
            return (error.peer,)
        case _:
            return ()


_nobody = View(0, ())

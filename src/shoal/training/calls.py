"""The script's calls of fit, evaluate and predict, counted: what each returned is kept for workers that come late.

A late worker runs the script from its beginning. The calls that are over for the others return to it what they returned
to them, or raise what they raised, at once; the fit that is going on lets it in.

A call that raises on one worker may still go on for the others: the worker may be about to die, and another comes in
its place. But if its script catches the error and comes to its next call, then the call is over, for all (`settle`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import msgspec
import numpy as np

from shoal.checkpoint.addresses import Place
from shoal.checkpoint.resumed import Resumed
from shoal.clock import Deadline
from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.cluster.messages import NOT_KEPT
from shoal.cluster.view import View
from shoal.errors import CallOver, PeerTimeout, RaisedElsewhere, UsageError
from shoal.observe.phases import Phase
from shoal.training.kept_outcomes import KeptOutcomes
from shoal.training.outcomes import CallOutcome, RaisedError, decode, error_of

PLAN = "plan"  # the name of a call that no script makes: how the next fit is done
_OVER = b"over"  # what is kept of a loop
_AN_HOUR = 3600.0


class Calls:
    """The calls of one worker's script, counted from 0, and what those returned that are over."""

    def __init__(
        self,
        coordinator_link: CoordinatorLink | None = None,
        resumed: Resumed | None = None,
        is_late: Callable[[], bool] = lambda: False,
        record: Callable[[Phase, str], None] = lambda phase, detail: None,
        takes_part: Callable[[], bool] = lambda: True,
        patience: float = 0.0,
        on_call: Callable[[], None] = lambda: None,
    ) -> None:
        """`takes_part`: this is a worker that does what all others do. `patience`: seconds for news to come.

        `on_call` hears of each call that is not within another, before it begins.
        """
        self.number = 0  # how many there have been; a newcomer is told it by others
        self.made: Counter[str] = Counter()  # by name: the script's own, not those within others
        self.returned = KeptOutcomes()
        if resumed is not None:
            self.returned.go_on_from(resumed.forgotten)
        self._coordinator_link = coordinator_link
        self._resumed = resumed
        self._is_late = is_late
        self._record = record
        self._takes_part = takes_part
        self._patience = patience
        self.between_steps = False  # of a loop of the script's own: what it does there is no part of a call
        self._on_call = on_call
        self._depth = 0
        self._outermost = 0  # the number of the last call that was not within another
        self._left: RaisedError | None = None  # the error with which that was left, until the others have heard of it

    @property
    def going_on(self) -> int | None:
        """The number of the call that is going on, if one is."""
        return self._outermost if self._depth else None

    @property
    def is_nested(self) -> bool:
        """Whether the call that is going on is within another."""
        return self._depth > 1

    def count(
        self,
        name: str,
        live: Callable[[int], Any],
        write: Callable[[Any], bytes],
        read: Callable[[bytes], Any],
        waits: bool = True,
        meanwhile: Callable[[int], None] | None = None,
    ) -> Any:
        """One call: done (`live`, with its number), or read from what is kept of it.

        `waits`: a late worker waits until it is over for the others. In a fit it may be let in instead. `meanwhile`:
        what one has to do who waits, and does not take part. Calls within calls (a callback that evaluates) are
        counted, but not kept.
        """
        if self._depth == 0:
            self._come()
            self.made[name] += 1
        call = self.number
        self.number += 1
        self._depth += 1
        returned = None
        try:
            returned = self._replayed(call, waits, meanwhile)
            if returned is not None:
                return read(returned)
            with self._watching():
                value = live(call)
            returned = write(value)
            return value
        finally:
            self._depth -= 1
            if self._depth == 0 and returned is not None and not self._is_late():
                self._keep(call, returned)

    @contextlib.contextmanager
    def brief(self, name: str) -> Iterator[None]:
        """One of many calls, of which nothing is kept: `train_on_batch` and its kin. Who is late can't take part."""
        if self._depth == 0:
            self._come()
            if self._is_late():
                self._stand_by(name)
        self.made[name] += self._depth == 0
        self._depth += 1
        try:
            with self._watching():
                yield
        finally:
            self._depth -= 1

    @contextlib.contextmanager
    def loop(self) -> Iterator[int | None]:
        """A loop over `shoal.batches`, as one call: its number; None if it is over for the others already."""
        if self._depth == 0:
            self._come()
        call = self.number
        self.number += 1
        kept = self._coordinator_link.result(call) if self._coordinator_link is not None and self._is_late() else None
        if kept is not None:
            self.unpack(call, kept)
        if kept is not None or self._replayed(call, waits=False) is not None:
            yield None
            return
        self.made["loop"] += self._depth == 0
        self._depth += 1
        try:
            with self._watching():
                yield call
        finally:
            self._depth -= 1
            if self._depth == 0 and not self._is_late():
                self._keep(call, _OVER)

    def _come(self) -> None:
        """To a call that is not within another."""
        self._on_call()
        self.settle()
        self._outermost = self.number
        if self._coordinator_link is not None:
            self._coordinator_link.forget_results(before=self.number)

    def _stand_by(self, name: str) -> NoReturn:
        """For a worker that came late to a loop that nobody can join: until the run is over."""
        assert self._coordinator_link is not None, "only a member of a run can be late"
        self._record(Phase.STANDING_BY, f"while the script calls {name} in a loop of its own, which nobody can join")
        while True:
            with contextlib.suppress(PeerTimeout):
                self._coordinator_link.wait_view(
                    self._coordinator_link.view.number, Deadline.after(_AN_HOUR), "the view stayed as it is"
                )

    def settle(self) -> None:
        """The script goes on. If it has caught what its last call raised, that call is over for all."""
        left, self._left = self._left, None
        if left is None or self._coordinator_link is None or not self._takes_part():
            return
        call = self._outermost
        following = max(self.number, call + 1)  # brief calls have no numbers of their own
        outcome = CallOutcome(following, raised=left).encoded()
        self._record(Phase.LEAVING, f"call {call} of the script, which raised {left.kind}")
        self.number = self._coordinator_link.caught(call, following, outcome, Deadline.after(self._patience))
        self.returned.keep(call, self._coordinator_link.result(call) or outcome)

    def take(self, view: View) -> None:
        """Before a view is entered. Raises CallOver if the call that is going on is not one of that view's."""
        if self.going_on is not None and self._takes_part() and view.call > self.going_on:
            raise CallOver

    @property
    def is_resumed(self) -> bool:
        """Whether the run goes on from a checkpoint."""
        return self._resumed is not None

    def resumes(self, call: int) -> Place | None:
        """The checkpoint to go on from, if it was taken in this call."""
        return self._resumed.path if self._resumed is not None and self._resumed.call == call else None

    def unpack(self, call: int, kept: bytes) -> bytes:
        """What is kept, for one who came late, of a call that is over for the others. Raises what it raised."""
        result = self._unpack(call, kept)
        if result == NOT_KEPT:
            raise UsageError(
                "this worker came too late: a call of the script (usually of predict) returned too much to be kept for "
                "those who were not there"
            )
        return result

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Remembers what is raised, which the script may catch. What ends the call here, since it raised elsewhere, is
        raised as that.
        """
        try:
            yield
        except CallOver:
            error = self._error_elsewhere()
            self._remember(error)
            raise error from None
        except Exception as error:
            self._remember(error)
            raise

    def _remember(self, error: Exception) -> None:
        if self._depth == 1:
            self._left = RaisedError.by(
                self._coordinator_link.member.id if self._coordinator_link is not None else "", error
            )

    def _error_elsewhere(self) -> RaisedElsewhere:
        kept = self._coordinator_link.result(self._outermost) if self._coordinator_link is not None else None
        raised = decode(kept).raised if kept is not None else None
        return error_of(raised or RaisedError("another worker", "builtins", "Exception", "it is not known which"))

    def _keep(self, call: int, result: bytes) -> None:
        kept = CallOutcome(self.number, result).encoded()
        self.returned.keep(call, kept)
        if self._coordinator_link is not None:
            self._coordinator_link.finished(call, kept)

    def _replayed(self, call: int, waits: bool, meanwhile: Callable[[int], None] | None = None) -> bytes | None:
        """What a call returned that is over already: before the checkpoint, or for those who were not late."""
        if self._resumed is not None and call in self._resumed.returned:
            returned = self._unpack(call, self._resumed.returned[call])
            if returned == NOT_KEPT:
                raise UsageError(
                    f"can't resume from {self._resumed.path}: call {call} of the script (counted from 0, over fit, "
                    "evaluate and predict) returned too much to be kept in a checkpoint. Resume in a script without it."
                )
            return returned
        if self._resumed is not None and call < self._resumed.forgotten and call == self._outermost:
            raise UsageError(
                f"can't resume from {self._resumed.path}: the script had made so many calls of fit, evaluate and "
                f"predict that the first {self._resumed.forgotten} are not in the checkpoint, and it makes call "
                f"{call} (counted from 0) again. Resume in a script that begins after those calls."
            )
        if not (waits and self._is_late()):
            return None
        assert self._coordinator_link is not None, "only a member of a run can be late"
        if meanwhile is not None and self._coordinator_link.result(call) is None:
            meanwhile(call)
        self._record(Phase.WAITING, f"until call {call} of the script is over for the others")
        while (kept := self._coordinator_link.wait_result_or_view(call, self._coordinator_link.view.number)) is None:
            pass
        return self.unpack(call, kept)

    def _unpack(self, call: int, kept: bytes) -> bytes:
        """The next call gets the number that it has for the others. And checkpoints keep it: this worker may be the one
        who writes them.
        """
        outcome = decode(kept)
        if call == self._outermost:
            self.returned.keep(call, kept)
        self.number = outcome.next
        if outcome.raised is not None:
            raise error_of(outcome.raised)
        return outcome.returned


def encode_plain(value: Any) -> bytes:
    """Numbers, texts and nests of them; not as JSON, which has no infinity."""
    return msgspec.msgpack.encode(value, enc_hook=lambda odd: np.asarray(odd).tolist())


def decode_plain(kept: bytes) -> Any:
    return msgspec.msgpack.decode(kept)

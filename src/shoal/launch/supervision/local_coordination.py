"""A coordinator that is started here: a process that is watched, and started again if it dies and the run can bear it.

It ends when its pipe is let go. If that is because this process was killed, it ends all that belongs to the run.
"""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from signal import SIGCONT

from shoal.cluster.coordinator_log import has_record
from shoal.cluster.evidence import look_at
from shoal.cluster.launcher_pipe import Awaited, Interrupt, LauncherPipe, MemberTold, Reaped, Released, Spawned, Wanted
from shoal.cluster.messages import End
from shoal.cluster.trouble import ending
from shoal.cluster.view import role_of
from shoal.config import RunConfig
from shoal.launch.logs import Logs
from shoal.launch.plan import ProcessPlan
from shoal.launch.processes import Process
from shoal.launch.supervision.coordination import AbstractCoordination, CoordinatorOrder, PlaceGiven
from shoal.launch.supervision.restarts import Restarts
from shoal.wire.messages import Message

_NAME = "coordinator"
_LEAVES = 5.0  # seconds that it gets when it is no longer needed
_RESTARTS = 10  # within an hour; more would hide that something is wrong with this machine


class LocalCoordination(AbstractCoordination):
    """`members`: the ids that the plan gives. `claimed`: the lock on the folder of checkpoints."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        environ: Mapping[str, str],
        logs: Logs,
        members: Iterable[str],
        claimed: int | None = None,
        elected: bool = False,
    ) -> None:
        """`elected`: of a run on several hosts, which elect another one when it dies: `start_again` or `stop`.

        Nobody can be elected before it has written something down: until then it is started again here.
        """
        self._folder = folder
        self._environ = environ
        self._logs = logs
        self._claimed = claimed
        self._is_elected = elected
        self._lasts = config.least is not None
        self._silence = config.deadlines.silence
        self._restarts = Restarts(_RESTARTS)
        self._given = Counter(role_of(id) for id in members)
        self._seen: dict[str, list[Message]] = {}  # of each member: whoever takes the coordinator's place is told again
        self._interrupt: Interrupt | None = None  # that it was told
        self._is_stopped = False  # on purpose: another one was elected
        self._is_over = False
        self._selector = selectors.DefaultSelector()  # whose descriptor stays, whatever becomes of the pipe
        try:
            self._start()
        except BaseException:
            self._selector.close()
            raise

    def fileno(self) -> int:
        return self._selector.fileno()  # that of epoll

    def hear(self) -> list[CoordinatorOrder]:
        orders = self._receive() if self._selector.select(0) else []
        orders = [*orders, *self._watch(time.monotonic())]
        self._is_over |= any(isinstance(order, End) for order in orders)
        return orders

    def tell(self, message: Message) -> None:
        match message:
            case Spawned(id) | Awaited(id) | Reaped(id):
                self._seen.setdefault(id, []).append(message)
            case Interrupt():
                self._interrupt = message
        self._pipe.send(message)

    def ask(self, plan: ProcessPlan) -> PlaceGiven:
        role = role_of(plan.id)
        self._given[role] += 1
        return PlaceGiven(f"{role}-{self._given[role] - 1}", plan)

    def close(self) -> None:
        self._pipe.send(Released())
        self._process.send(SIGCONT)  # it may have been stopped
        self._process.close_pipes()
        self._process.wait(_LEAVES)
        self._process.release()
        self._selector.close()

    def _start(self) -> None:
        self._ran, self._stopped = time.monotonic(), ""  # `_stopped`: since when, if it was killed for that
        with self._logs.open(_NAME, fresh=False) as log:
            self._process = Process(
                "shoal.launch.coordinator",
                [str(self._folder)],
                self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # If this process is killed, the others write a last checkpoint.
                pass_fds=() if self._claimed is None else (self._claimed,),
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pipe = LauncherPipe(self._process.stdout.fileno(), self._process.stdin.fileno())
        self._selector.register(self._pipe, selectors.EVENT_READ)

    def _receive(self) -> list[CoordinatorOrder]:
        try:
            return [message for message in self._pipe.receive() if isinstance(message, Wanted | MemberTold | End)]
        except EOFError:
            self._selector.unregister(self._pipe)
            return [] if self._is_over or self._is_stopped else [self._survive()]

    def _survive(self) -> CoordinatorOrder:
        """Training goes on without it; it comes back knowing what it had written down, and hears who is alive."""
        self._process.wait(_LEAVES)
        died = f"the coordinator (pid {self._process.pid}) {self._stopped or ending(self._process.look() or 0)}"
        if not self._lasts or self._interrupt is not None or not self._restarts.grant(_NAME, time.monotonic()):
            return End(ok=False, code=1, reason=f"{died}; its log is {self._logs.path_of(_NAME)}")
        if self._is_elected and has_record(self._folder):
            return MemberTold(f"{died}; the hosts elect another, training goes on")
        self.start_again()
        return MemberTold(f"{died}; starting it again, training goes on")

    def start_again(self) -> None:
        """In the place of the one that has ended."""
        self._process.kill_group()
        self._process.wait(_LEAVES)
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._pipe)
        self._process.release()
        self._is_stopped = False
        self._start()
        for messages in self._seen.values():
            for message in messages:
                self._pipe.send(message)
        if self._interrupt is not None:  # it may have come between the two
            self._pipe.send(self._interrupt)

    def stop(self) -> None:
        """It is none any more: nothing that it has not done yet may happen."""
        self._is_stopped = True
        self._process.kill_group()

    def _watch(self, now: float) -> list[CoordinatorOrder]:
        """One that was stopped could never say End. One that ended is seen by its pipe."""
        seen = look_at(self._process.pid)
        if seen is None or seen.state not in "Tt":
            self._ran = now
        elif not self._is_over and not self._is_stopped and now - self._ran > self._silence:
            stopped = f"has been stopped for {now - self._ran:.1f} s (deadline {self._silence:.1f} s)"
            if not self._lasts:
                return [End(ok=False, code=1, reason=f"the coordinator (pid {self._process.pid}) {stopped}")]
            self._ran, self._stopped = now, stopped
            self._process.kill_group()  # its pipe tells; another is started
        return []

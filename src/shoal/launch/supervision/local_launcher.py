"""Members as processes of this host: forked from a process that has imported keras, or each started anew."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import Signals

from shoal.cluster.launcher_pipe import Dying, Reaped, Spawned
from shoal.cluster.view import role_of
from shoal.errors import WireError
from shoal.launch.outputs import Outputs
from shoal.launch.plan import ProcessPlan
from shoal.launch.prefork import Prefork, adopt_orphans
from shoal.launch.processes import Child, Process
from shoal.launch.supervision.launcher import AbstractLauncher, MemberEvent

_CHILDREN_LEAVE = 1.0  # seconds that the children of ended members get


@dataclass(frozen=True, slots=True)
class _Coming:
    """One that was asked for and is not there yet."""

    plan: ProcessPlan
    dies: int  # our end of its death pipe


class LocalLauncher(AbstractLauncher):
    """On this host, as children of this process.

    `preload`: the environment of a process from which members are forked; None: each is started anew. `guests`: no
    coordinator of this host would end the members if this process were killed; they see to it themselves.
    """

    def __init__(
        self, folder: Path, outputs: Outputs, preload: Mapping[str, str] | None = None, guests: bool = False
    ) -> None:
        self._folder = folder
        self._outputs = outputs
        self._guests = guests
        self._members: dict[str, Child] = {}
        self._coming: dict[str, _Coming] = {}
        self._held: set[str] = set()  # born, and waiting to be let go
        self._death_pipes: set[int] = set()
        self._prefork: Prefork | None = None
        self._news: list[MemberEvent] = []
        self._selector = selectors.DefaultSelector()
        self._has_news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # for what no descriptor tells
        self._selector.register(self._has_news, selectors.EVENT_READ, partial(os.eventfd_read, self._has_news))
        try:
            if preload is not None and adopt_orphans():
                with outputs.log("prefork") as log:
                    self._prefork = Prefork(folder, preload, log)
                self._selector.register(self._prefork, selectors.EVENT_READ, self._hear_prefork)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._selector.fileno()  # that of epoll

    def start(self, id: str, plan: ProcessPlan) -> None:
        dies, lives = os.pipe()
        # Who may become the chief gets the way to the terminal.
        terminal = self._outputs.terminal if role_of(id) == "worker" and not self._outputs.is_shown(id) else ()
        gets = (lives, *terminal)
        words = [str(self._folder), id, ",".join(map(str, plan.cores)) or "-", "{0}"]
        words += ["{1},{2}"] if terminal else ["-"] if self._guests else []
        words += [str(os.getpid())] if self._guests else []
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, lives)
            standard = stack.enter_context(self._outputs.standard_of(id))
            if self._prefork is not None:
                try:
                    self._prefork.ask(id, words, standard, gets, plan.environment)
                    self._coming[id] = _Coming(plan, dies)
                    return
                except WireError:
                    self._lose_prefork()
            words = [word.format(*gets) for word in words]
            process = Process("shoal.launch.worker", words, plan.environment, standard=standard, pass_fds=gets)
        self._take_in(id, process, dies)

    def release(self, id: str) -> None:
        if id in self._held and self._prefork is not None:
            self._prefork.let_go(id)
        self._held.discard(id)

    def hear(self) -> list[MemberEvent]:
        for key, _ in self._selector.select(0):
            key.data()
        self._outputs.follow()
        news, self._news = self._news, []
        return news

    def signal(self, number: Signals) -> None:
        for member in self._alive():
            member.send(number)

    def close(self) -> None:
        self._outputs.follow(final=True)
        for pipe in self._death_pipes:
            os.close(pipe)
        if self._prefork is not None:
            self._prefork.close()
        for coming in self._coming.values():
            os.close(coming.dies)
        for member in self._alive():  # only if something went wrong in the supervisor itself
            member.kill_group()
        children_until = time.monotonic() + _CHILDREN_LEAVE
        for member in self._members.values():
            member.release(children_until)
        self._selector.close()
        os.close(self._has_news)

    def _take_in(self, id: str, member: Child, dies: int) -> None:
        self._death_pipes.add(dies)
        self._selector.register(dies, selectors.EVENT_READ, partial(self._see_dying, id, dies))
        self._members[id] = member
        self._selector.register(member, selectors.EVENT_READ, partial(self._see_exit, id))
        self._news.append(Spawned(id, member.pid))
        os.eventfd_write(self._has_news, 1)

    def _see_dying(self, id: str, pipe: int) -> None:
        """Its death pipe is gone: the process is about to be, as soon as its memory is given back."""
        self._selector.unregister(pipe)
        self._death_pipes.remove(pipe)
        os.close(pipe)
        self._news.append(Dying(id))

    def _see_exit(self, id: str) -> None:
        member = self._members[id]
        code = member.look()
        if code is not None:
            self._selector.unregister(member)
            self._news.append(Reaped(id, code))

    def _alive(self) -> list[Child]:
        return [member for member in self._members.values() if member.look() is None]

    def _hear_prefork(self) -> None:
        assert self._prefork is not None
        try:
            while (born := self._prefork.born()) is not None:
                self._take_in(born.id, Child(born.pid), self._coming.pop(born.id).dies)
                self._held.add(born.id)
        except WireError:
            self._lose_prefork()

    def _lose_prefork(self) -> None:
        """Whoever has not come from there yet is started as if there had been none."""
        assert self._prefork is not None
        self._selector.unregister(self._prefork)
        self._prefork.close()
        self._prefork = None
        coming, self._coming = self._coming, {}
        for id, one in coming.items():
            os.close(one.dies)
            self.start(id, one.plan)

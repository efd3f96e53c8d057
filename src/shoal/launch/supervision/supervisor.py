"""Sees and hears what happens to the members of a run that are started from here, and does what is decided.

The same for a run of this machine and for workers that join one from elsewhere; on which hosts members are started, and
who coordinates them, is behind `AbstractLauncher` and `AbstractCoordination`.
"""

from __future__ import annotations

import selectors
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.cluster import folders
from shoal.cluster.messages import End
from shoal.errors import UsageError
from shoal.launch.outputs import say
from shoal.launch.supervision.coordination import AbstractCoordination
from shoal.launch.supervision.decisions import (
    AskForPlace,
    FolderDeleted,
    MarkInterrupted,
    ReleaseMember,
    ShowUser,
    SignalMembers,
    StartMember,
    Supervision,
    SupervisionAction,
    SupervisionEvent,
    TellCoordinator,
)
from shoal.launch.supervision.heard_signals import HeardSignals
from shoal.launch.supervision.launcher import AbstractLauncher

WATCH_EVERY = 1.0  # seconds between two looks at what no descriptor tells
FOLLOW_EVERY = 0.1  # under --verbose


class KeptFolder:
    """The run's folder, which is made anew if somebody deletes it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.keeper = folders.FolderKeeper(folder)
        self._is_lost = False

    def hear(self) -> Iterator[FolderDeleted]:
        """What became of it. That it is lost is told once."""
        try:
            if self.keeper.restore():
                yield FolderDeleted(str(self.path))
        except UsageError as error:
            if not self._is_lost:
                self._is_lost = True
                yield FolderDeleted(str(self.path), str(error))

    def close(self) -> None:
        self.keeper.close()


class Supervisor:
    """The loop. Whoever made what it is given closes it afterwards: launchers first, then the coordination."""

    def __init__(
        self,
        supervision: Supervision,
        coordination: AbstractCoordination,
        launchers: Mapping[str, AbstractLauncher],  # by host
        folder: KeptFolder,
        signals: HeardSignals,
        look_every: float = WATCH_EVERY,
    ) -> None:
        self._supervision = supervision
        self._coordination = coordination
        self._launchers = launchers
        self._folder = folder
        self._signals = signals
        self._look_every = look_every
        self._events: deque[SupervisionEvent] = deque()

    def run(self) -> End:
        """Wait until the run is over and all members are gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals, selectors.EVENT_READ)
            selector.register(self._coordination, selectors.EVENT_READ)
            for launcher in self._launchers.values():
                selector.register(launcher, selectors.EVENT_READ)
            while not self._supervision.is_over:
                selector.select(self._supervision.patience(time.monotonic(), self._look_every))
                self._hear()
                while self._events:
                    self._perform(self._supervision.handle(self._events.popleft(), time.monotonic()))
                self._perform(self._supervision.due(time.monotonic()))
        return self._supervision.outcome()

    def _hear(self) -> None:
        """The coordinator last, so that it has said what explains the rest; what it says comes first."""
        lives = [life for launcher in self._launchers.values() for life in launcher.hear()]
        folder = list(self._folder.hear())
        self._events.extend([*folder, *self._coordination.hear(), *lives, *self._signals.hear()])

    def _perform(self, acts: list[SupervisionAction]) -> None:
        for act in acts:
            match act:
                case StartMember(id, plan):
                    self._launchers[plan.host].start(id, plan)
                case ReleaseMember(id, plan):
                    self._launchers[plan.host].release(id)
                case AskForPlace(plan):
                    given = self._coordination.ask(plan)
                    if given is not None:
                        self._events.append(given)
                case TellCoordinator(message):
                    self._coordination.tell(message)
                case SignalMembers(number):
                    for launcher in self._launchers.values():
                        launcher.signal(number)
                case MarkInterrupted():
                    folders.mark_interrupted(self._folder.path)
                case ShowUser(text, apart):
                    if apart:
                        print(file=sys.stderr)
                    say(text)

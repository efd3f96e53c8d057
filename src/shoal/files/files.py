"""One process's part in what a script does with files: as the chief it acts, otherwise it follows the chief.

The chief waits for nobody. Between two calls of fit and its kin a follower lets the chief go first, operation by
operation (following.py), and sees its own writes in the place of the chief's (private.py). Within a call the chief may
be waiting for this worker: nobody waits for a file there.

When the chief dies, the next one goes on where it stands: its operations are real from then on, private files of which
the old chief had none are put in place, and files that are open are the real ones from then on.
"""

from __future__ import annotations

import os
import stat
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from shoal.files import held, system
from shoal.files.elsewhere import Elsewhere
from shoal.files.following import BEGUN, Deeds, FileOutcome, Key, Turn
from shoal.files.held import HeldFile
from shoal.files.journal import Doing, Journal, JournalRecord
from shoal.files.left_alone import LeftAlone
from shoal.files.private import PrivateFiles
from shoal.files.replacing import plain
from shoal.files.succession import OpenFile, publish
from shoal.files.trail import Trail
from shoal.observe.phases import Phase

_T = TypeVar("_T")

_CLOCK = 0.05  # seconds by which the clock that stamps files may be behind
_PAUSES = (0.001, 0.05)  # seconds between two looks at the chief: the first, the longest
_LONG = 0.2  # seconds after which a wait is worth a word


class Chief(NamedTuple):
    id: str
    process: int
    is_here: bool  # on this host


class Script(Protocol):
    """The run, as far as it concerns a script's files."""

    rank_was_asked: bool

    @property
    def is_in_call(self) -> bool:
        """Whether a call of fit or its kin is going on."""

    def chief(self) -> Chief: ...

    def pause(self, seconds: float) -> None:
        """Sleeps; less if the run changes. Raises if it is over."""

    def record(self, phase: Phase, detail: str) -> None: ...

    def rest(self) -> None: ...


class Operation(NamedTuple):
    """One that changes what lies at `path`, and what leads away what lay at `leaves`."""

    name: str
    path: str
    leaves: str | None = None
    is_long: bool = False  # it makes many files

    @property
    def key(self) -> Key:
        return Key(self.name, self.path)


class _Here(threading.local):
    """What this thread is doing."""

    within = False  # an operation that is made of others
    alone = False  # something that the chief has done differently


class Files:
    """This process's part. All threads share it."""

    def __init__(
        self,
        folder: Path,
        member: str,
        left: LeftAlone,
        private: PrivateFiles,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._me = member
        self._journal = Journal(folder / "files", member)
        self._trail = Trail(folder / "files", member)
        self._left = left
        self._private = private
        self._removed = HeldFile()
        self._now = now
        self._began = system.stat(str(folder / "run.json")).st_ctime
        self._met = self._began
        self._called = 0.0  # when the last call began
        self._script: Script | None = None
        self._is_chief = False  # as last heard
        self._leads = False  # and acted upon
        self._waits = True
        self._old = _ancestors(os.getcwd(), os.path.expanduser("~"))
        self._lock = threading.RLock()
        self._here = _Here()
        self._open: weakref.WeakSet[OpenFile] = weakref.WeakSet()
        self._inherited: Deeds | None = None
        self._elsewhere = Elsewhere(folder / "files")
        self._sweeps = False
        self._begin(0)

    def attach(self, script: Script) -> None:
        """From now on operations are looked at; before the user's script begins."""
        self._leads = self._is_chief
        self._script = script
        os.register_at_fork(after_in_child=self._let_go)

    # What the run tells ------------------------------------------------------------------------------

    def become_chief(self) -> None:
        """Heard by another thread than the script's: acted upon at the next opportunity."""
        self._is_chief = True

    def come(self) -> None:
        """The script has come to another call of fit or its kin."""
        self._take_over_if_due()
        self._called = self._now()
        self._elsewhere.look()
        self._begin(self._trail.phase + 1)
        self._journal.come(self._trail.phase)
        self._removed.release_old()

    def meet(self, waiting: bool) -> None:
        """This worker begins to wait for all others, or ends to."""
        if waiting:
            self._met = self._now()
        if self._script is not None and not self._script.is_in_call:
            self._journal.do(Doing.MEETING if waiting else Doing.RUNNING)
        self._take_over_if_due()

    def settle(self, path: str) -> None:
        """The chief has written this file and says so."""
        _, name = self.where(path)
        path = name or path
        with self._lock:
            self._settled.add(path)
        self._private.remove(path)

    def over(self) -> None:
        """The script is over."""
        self._take_over_if_due()
        self._waits = False
        self._journal.do(Doing.OVER)

    def close(self) -> None:
        self._waits = False
        self._journal.close()
        self._trail.close()
        self._removed.release()
        self._private.clear()

    # What the operations ask -------------------------------------------------------------------------

    @property
    def follows(self) -> bool:
        """Whether this process sees and writes files of its own."""
        return not self._leads and self._script is not None and not self._script.rank_was_asked

    @property
    def redirects(self) -> bool:
        """Whether what it looks at may lie elsewhere."""
        return self.follows or bool(self._elsewhere)

    def change(self, operation: Operation, do: Callable[[], _T], alone: Callable[[bool], _T]) -> _T:
        """`do` is the operation itself; `alone` what it means for a follower.

        The argument of `alone` says whether the chief has done it. What the chief got as an error is raised here too.
        """
        if self._here.within or self._left.has(operation.path):
            return do()
        self._take_over_if_due()
        outcome = self._outcome(operation.key)
        if outcome is None:
            return self._lead(operation, do)
        if outcome.instead is not None and operation.name == "mkdir":
            self._elsewhere.add(operation.path, outcome.instead)
            operation, outcome = operation._replace(path=outcome.instead), FileOutcome(True)
        self._note(operation, outcome.error)
        if outcome.done:
            self._trail.keep_up(operation.path, operation.leaves)
        if outcome.error > 0:
            raise OSError(outcome.error, os.strerror(outcome.error), operation.path)
        return alone(outcome == FileOutcome(True))

    def make(self, operation: Operation, do: Callable[[], _T], result: Callable[[], _T]) -> _T:
        """An operation that makes files out of others, or fetches them: where the chief has done it, they are there.

        `result` is what it returns then.
        """

        def alone(did: bool) -> _T:
            # Who comes late finds what the chief made before it.
            did = did or (self._may_wait() and self.was_made(operation.path))
            if did and (system.exists(operation.path) or self._held(operation.path) is not None):
                self.settle(operation.path)
                return result()
            self._here.alone = True
            try:
                return do()
            finally:
                self._here.alone = False

        return self.change(operation, do, alone)

    def where(self, path: Any) -> tuple[Any, str | None]:
        """What to give to the system in the place of this path, and its absolute path; None if it is not text.

        The first is the path itself, unless the chief's folder is meant.
        """
        name = plain(path)
        if name is None or not self._elsewhere:
            return path, name
        meant = self._elsewhere.of(name)
        return (path, name) if meant == name else (meant, meant)

    def as_the_chief_says(self, path: str) -> str:
        """How the chief calls this path: absolute or relative, as it is here."""
        meant, _ = self.where(path)
        if meant == path:
            return path
        return str(meant) if os.path.isabs(path) else os.path.relpath(meant)

    def unfollowed(self, make: Callable[[], _T]) -> _T:
        """Does something to files that nobody else comes to, or of which others are told in another way."""
        before, self._here.within = self._here.within, True
        try:
            return make()
        finally:
            self._here.within = before

    def is_unsettled(self, found: os.stat_result | None, of_names: bool = False) -> bool:
        """Whether what was found, or not, deserves a second look. Quick. `of_names`: of what a folder holds."""
        if found is None or self._private.exist:
            return True
        return found.st_ctime >= self._since and (of_names or not stat.S_ISDIR(found.st_mode))

    def look(self, path: str, found: os.stat_result | None, of_names: bool = False) -> str | None:
        """Where to look instead: at a private file, if there is one. Waits as long as the chief may be writing it."""
        self._sweep_if_due()
        place = self._private.find(path)
        if place is not None and not of_names:
            return place
        if not self._may_wait() or self._left.has(path):
            return None
        if found is None and (place := self._held(path, of_names)) is not None:
            return place
        if self._changes(path, found, of_names):
            self._wait(path, lambda: self._chief_has_come() or None)
        return None

    @property
    def has_taken_over(self) -> bool:
        """Whether another was the chief before."""
        return self._inherited is not None

    @property
    def private(self) -> PrivateFiles:
        return self._private

    @property
    def left(self) -> LeftAlone:
        return self._left

    def was_made(self, path: str) -> bool:
        """Whether what lies there has changed since the run began."""
        try:
            return system.stat(path).st_ctime >= self._began - _CLOCK
        except OSError:
            return False

    def opened(self, file: OpenFile) -> None:
        """A private file is open: if this worker becomes the chief, it goes on in the real one."""
        self._open.add(file)

    def until_closed(self, path: str) -> None:
        """Waits until the chief no longer writes it: a library may read it now that does not ask here."""
        if self.follows and self._may_wait():
            self._wait(path, lambda: self._chief_has_come() or not self._trail.is_open(path) or None)

    @property
    def is_noted(self) -> bool:
        """Whether others follow what this process does now."""
        return self._script is not None and not self._script.is_in_call and self._waits

    def closed(self, path: str) -> None:
        """The chief has closed a file that it has written."""
        if self.is_noted:
            self._journal.note(JournalRecord("close", path))

    # Following ---------------------------------------------------------------------------------------

    def _begin(self, calls: int) -> None:
        """A new phase of the script."""
        with self._lock:
            self._trail.begin(calls)
            self._settled: set[str] = set()  # what the chief has written and will not change before its next call
            self._inherited = None
            self._sweeps = self._private.exist

    @property
    def _since(self) -> float:
        return self._met - _CLOCK

    def _outcome(self, key: Key) -> FileOutcome | None:
        """What came of it on the chief, who goes first, or on the one that died; None: this worker is to do it."""
        if self.follows and not self._may_wait():
            return FileOutcome(False)
        if self.follows and not self._is_chief_now() and not self._chief().is_here:
            return None  # where the chief is on another host, all do as they would without Shoal
        turn = self._trail.turn(key)
        if self.follows:
            outcome = self._wait(key.path, lambda: self._trail.follow(self._chief().id, turn))
            if outcome is not None:
                return outcome
        return self._inherit(turn)

    def _held(self, path: str, of_names: bool = False) -> str | None:
        """Where something is that the chief has removed already, and this worker not yet. Folders are empty then."""
        chief = self._chief()
        if not self._may_wait() or not chief.is_here:
            return None
        descriptor = self._trail.removed(chief.id, path)
        if descriptor is not None and (place := held.place(chief.process, descriptor)) is not None:
            return place
        is_gone = of_names and (descriptor is not None or self._trail.is_in_removed(chief.id, path))
        return self._private.stand_in(path) if is_gone else None

    def _chief(self) -> Chief:
        assert self._script is not None
        return self._script.chief()

    def _is_chief_now(self) -> bool:
        """Looks itself: that it was told may come a moment after the view."""
        self._is_chief = self._is_chief or self._chief().id == self._me
        self._take_over_if_due()
        return self._is_chief

    def _chief_has_come(self) -> bool:
        chief = self._chief()
        return not chief.is_here or self._trail.has_come(chief.id)

    def _may_wait(self) -> bool:
        return self._waits and not self._here.alone and self._script is not None and not self._script.is_in_call

    def _changes(self, path: str, found: os.stat_result | None, of_names: bool) -> bool:
        """Whether the chief may be about to change what this worker looks at."""
        if self._is_settled(path):
            return False
        if found is not None:
            return found.st_ctime >= self._since and (of_names or not stat.S_ISDIR(found.st_mode))
        # Missing. If its folder was made just now, and not by an operation to which this worker has come too, it may be
        # about to come.
        while path not in self._old and not self._trail.was_followed(path):
            path = os.path.dirname(path)
            try:
                return not self._trail.was_followed(path) and system.stat(path).st_ctime >= self._since
            except OSError:
                pass
        return False

    def _is_settled(self, path: str) -> bool:
        if not self._settled:
            return False
        return path in self._settled or any(str(parent) in self._settled for parent in Path(path).parents)

    def _wait(self, path: str, look: Callable[[], _T | None]) -> _T | None:
        """Until there is an answer; None if this worker is the chief meanwhile."""
        assert self._script is not None
        began, pause, said = time.monotonic(), _PAUSES[0], False
        try:
            while not self._is_chief_now():
                if (answer := look()) is not None:
                    return answer
                if not said and time.monotonic() - began > _LONG:
                    said = True
                    self._script.record(Phase.WAITING, f"for {self._chief().id} at {path}")
                self._script.pause(pause)
                pause = min(2 * pause, _PAUSES[1])
            return None
        finally:
            if said:
                self._script.rest()

    # Leading -----------------------------------------------------------------------------------------

    def _lead(self, operation: Operation, do: Callable[[], _T]) -> _T:
        is_new = self.is_noted and not system.exists(operation.path)
        descriptor = self._removed.hold(operation.leaves) if operation.leaves and self.is_noted else held.NOTHING
        if operation.is_long:
            self._note(operation._replace(name=BEGUN + operation.name, leaves=None), 0, is_new=is_new)
        self._here.within = True
        try:
            result = do()
        except OSError as error:
            self._note(operation, error.errno or -1)
            raise
        except BaseException:
            self._note(operation, -1)
            raise
        finally:
            self._here.within = False
        self._note(operation, 0, descriptor, is_new)
        return result

    def _note(self, operation: Operation, error: int, descriptor: int = held.NOTHING, is_new: bool = False) -> None:
        if not self.is_noted:
            return
        if operation.leaves is not None and operation.leaves != operation.path:
            self._journal.note(JournalRecord("leave", operation.leaves, error, descriptor))
        self._journal.note(JournalRecord(operation.name, operation.path, error, descriptor, is_new))

    def _inherit(self, turn: Turn) -> FileOutcome | None:
        """What the chief that died has done of what this one comes to now."""
        if self._inherited is None or turn.key.operation == "open":  # it may have died in the middle of a file
            return None
        error = self._inherited.of(turn.key, turn.nth)
        return None if error is None else FileOutcome(True, error)

    def _take_over_if_due(self) -> None:
        if not self._is_chief or self._leads or self._script is None:
            return
        with self._lock:
            is_first, self._leads = not self._leads, True
            if not is_first:
                return
            self._inherited, unfinished = self._trail.of_the_dead()
        if not self._script.rank_was_asked:
            for path in unfinished:
                system.remove(path)
            self._sweep()
            publish(self._private, list(self._open))
        self._private.clear()

    def _sweep_if_due(self) -> None:
        if self._sweeps and self._script is not None and not self._script.is_in_call:
            self._sweeps = False
            self._sweep()

    def _sweep(self) -> None:
        """Private files of earlier phases: by now the chief's are there."""
        still_open = {file.path for file in self._open if not file.closed}
        for path, place in list(self._private.files()):
            if path not in still_open and system.exists(path) and system.stat(place).st_mtime < self._called - _CLOCK:
                self._private.remove(path)

    def _let_go(self) -> None:
        """In a forked child: it can't wait, and what it does is not what its parent's script does."""
        self._waits = False
        self._lock = threading.RLock()


def _ancestors(*paths: str) -> frozenset[str]:
    """Folders that were there before the run."""
    found: set[str] = {"/"}
    for path in paths:
        found.update((path, *map(str, Path(path).parents)))
    return frozenset(found)

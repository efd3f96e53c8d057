"""Where workers and servers come from: a process that has imported keras and its backend, once, and forks.

    launcher ──Birth──▶ prefork process ──fork, fork──▶ worker
    launcher ◀──Born─── prefork process
    launcher ──a byte─────────────────────────▶ worker          from now on it is one

Importing is most of what a start costs: 2 to 4 s of processor time, as often as there are workers. A fork costs some
milliseconds, and the imported code is in memory once. Nothing that is imported has started a thread yet.

A worker's parent is the launcher, as if it had been started by it: the one in between ends at once, and the launcher
has told the system that it takes such children in.

    python -m shoal.launch.prefork RUN_FOLDER DESCRIPTOR ROOM
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from shoal.clock import Deadline
from shoal.errors import WireError
from shoal.launch.processes import Process, leave
from shoal.wire.connection import Connection
from shoal.wire.messages import Message, MessageCodec
from shoal.wire.pairs import inherited, pair

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_ROOM = "-" * 200  # in the command line, for what a worker's says


class ForkRequest(Message, frozen=True):
    """Launcher -> prefork process: let there be one.

    Beside it descriptors: its standard input, output and error, one to wait on, and those that it gets.
    """

    id: str
    words: tuple[str, ...]  # of its command line; `{0}`, `{1}` stand for the descriptors that it gets
    environment: dict[str, str]  # what is its own: devices are given to one worker each


class Forked(Message, frozen=True):
    """Prefork process -> launcher: it is there, and your child."""

    id: str
    pid: int


_CODEC = MessageCodec(ForkRequest, Forked)


class Prefork:
    """The launcher's side."""

    def __init__(self, folder: Path, environment: Mapping[str, str], log: IO[bytes]) -> None:
        self._connection, theirs = pair(_CODEC, "the prefork process")
        self._environment = environment
        self._waiting: dict[str, int] = {}  # who is to come, and the descriptor that it waits on
        try:
            words = [str(folder), str(theirs), _ROOM]
            self._process = Process(
                "shoal.launch.prefork", words, environment, stdin=None, stdout=log, stderr=log, pass_fds=(theirs,)
            )
        finally:
            os.close(theirs)

    def fileno(self) -> int:
        return self._connection.fileno()

    def ask(
        self,
        id: str,
        words: Sequence[str],
        standard: Sequence[int],
        gets: Sequence[int],
        environment: Mapping[str, str],
    ) -> None:
        """For one more. WireError if the prefork process is gone."""
        own = {name: value for name, value in environment.items() if self._environment.get(name) != value}
        waits, self._waiting[id] = os.pipe()
        try:
            self._connection.send_fds(ForkRequest(id, tuple(words), own), [*standard, waits, *gets])
        finally:
            os.close(waits)

    def born(self) -> Forked | None:
        """The next who is there, if one is. WireError if the prefork process is gone."""
        message = self._connection.try_receive()
        assert message is None or isinstance(message, Forked)
        return message

    def let_go(self, id: str) -> None:
        """It may begin. One that is never let go ends when the prefork process is closed."""
        waiting = self._waiting.pop(id)
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(waiting, b"1")
        os.close(waiting)

    def close(self) -> None:
        """Nobody comes from here any more; who is there stays."""
        self._connection.close()
        self._process.release()
        while self._waiting:
            os.close(self._waiting.popitem()[1])


def adopt_orphans() -> bool:
    """Whether children of this process's children become its own when their parents end."""
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


# The prefork process's process --------------------------------------------------------------------------------


def main() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = inherited(int(sys.argv[2]), _CODEC, "the launcher")
    from shoal import session  # noqa: F401
    from shoal.hook.patching.preload import preload

    preload()
    gc.collect()
    gc.freeze()  # what is there now is never looked at again, and so never copied for that
    with contextlib.suppress(WireError):  # the launcher is gone
        while True:
            select.select([connection], [], [])
            message, descriptors = connection.receive_fds(Deadline.after(60.0))
            assert isinstance(message, ForkRequest)
            connection.send(Forked(message.id, _bear(message, descriptors, connection)))
    sys.exit(0)


def _bear(birth: ForkRequest, descriptors: list[int], connection: Connection) -> int:
    """Fork twice; returns the grandchild's id once it is nobody's here."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that forking is unsafe with threads: there are none
        between = os.fork()
    if between == 0:
        child = os.fork()
        if child:
            os.write(writer, child.to_bytes(8, "little"))
            os._exit(0)
        os.close(reader)
        os.close(writer)
        connection.close()
        _live(birth, descriptors)
    os.close(writer)
    for fd in descriptors:
        os.close(fd)
    os.waitpid(between, 0)
    child = int.from_bytes(os.read(reader, 8), "little")
    os.close(reader)
    return child


def _live(birth: ForkRequest, descriptors: list[int]) -> NoReturn:
    """The rest of a worker's life."""
    code = 1
    try:
        os.setsid()
        os.environ.update(birth.environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for standard in range(3):
            os.dup2(descriptors[standard], standard)
            os.close(descriptors[standard])
        words = [word.format(*descriptors[4:]) for word in birth.words]
        _rename([sys.executable, "-P", "-m", "shoal.launch.worker", *words])
        if not os.read(descriptors[3], 1):
            os._exit(1)  # whoever asked for it is gone
        os.close(descriptors[3])
        from shoal.launch import worker

        worker.main(words)
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


def _rename(words: Sequence[str]) -> None:
    """The command line that others see: written where this process's was, if there is room."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    line = "\0".join(words).encode() + b"\0"
    if len(line) < end - start:
        ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()

"""Processes that have imported keras and its backend, and fork: trainings that start from there need not import them.

    tests ──the command──▶ warm process ──fork──▶ `python script …`, or the launcher ──fork──▶ all that it starts
    tests ◀──────────its id, then its exit code, through a pipe of its own──────────┘

Importing is most of what a short training costs. All else is as it always is: each training has processes of its own,
with their own environment, folder, streams and signals. A run that wants other threads than these processes have, or
another backend, gets a prefork process that is started anew, as every run outside of the tests does.

    python -P warm.py DESCRIPTOR plain|shoal|launch ROOM
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

import psutil

MOST = 1 << 17  # bytes of a command with its environment
ROOM = "-" * 200  # in the command line, for what a worker's says
READ_AT_IMPORT = ("KERAS_BACKEND", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
MAINS = ("shoal.launch.prefork", "shoal.launch.coordinator", "shoal.launch.worker")  # what a launcher starts
SUBREAPER = 36  # linux/prctl.h

_imported_with = {name: os.environ.get(name) for name in READ_AT_IMPORT}


class Running:
    """A process that was forked for the tests, with as much of a Popen as they use."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.returncode: int | None = None
        self.pid = self._read()

    def poll(self) -> int | None:
        return self.wait(0.0) if self.returncode is not None or self._told(0.0) else None

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            if not self._told(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = self._read()
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _told(self, seconds: float) -> bool:
        return bool(select.select([self._status], [], [], seconds)[0])

    def _read(self) -> int:
        found = os.read(self._status, 8)
        assert found, "the warm process is gone"
        return int.from_bytes(found, "little", signed=True)


class Warm:
    """One warm process. `kind` is `shoal`; or `plain`, which knows nothing of Shoal; or `launch`, nothing of Keras."""

    def __init__(self, kind: str, backend: str, environ: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno()), kind, ROOM],
                env={**environ, "KERAS_BACKEND": backend},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def start(
        self, words: Sequence[str], environ: Mapping[str, str], folder: Path, stdout: IO[Any], stderr: IO[Any]
    ) -> Running:
        """`python words…`."""
        reader, writer = os.pipe()
        with open(os.devnull, "rb") as nothing:
            fds = [nothing.fileno(), stdout.fileno(), stderr.fileno(), writer]
            message = json.dumps([list(words), dict(environ), str(folder)]).encode()
            assert len(message) < MOST
            socket.send_fds(self._socket, [message], fds)
        os.close(writer)
        return Running(reader)

    def descendants(self) -> list[psutil.Process]:
        """Also those whose parents have died."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(30)


# The warm process ---------------------------------------------------------------------------------------


def main() -> None:
    commands, kind = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    _import_for(kind)
    gc.collect()
    gc.freeze()
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    running: dict[int, int] = {}  # process -> the pipe for its exit code
    while True:
        ready, _, _ = select.select([commands, woken], [], [])
        if commands in ready:
            message, fds, _, _ = socket.recv_fds(commands, MOST, 4)
            if not message:
                return
            words, environ, folder = json.loads(message)
            pid = os.fork()
            if pid == 0:
                _begin(words, environ, folder, fds[:3])
            os.write(fds[3], _number(pid))
            running[pid] = fds[3]
            for fd in fds[:3]:
                os.close(fd)
        if woken in ready:
            os.read(woken, 1 << 16)
            _reap(running)


def _import_for(kind: str) -> None:
    if kind == "plain":
        import keras  # noqa: F401

        return
    from shoal import cli, session  # noqa: F401
    from shoal.cli import run  # noqa: F401
    from shoal.hook.patching.preload import preload
    from shoal.launch import coordinator, prefork, worker  # noqa: F401

    if kind == "shoal":
        preload()


def _reap(running: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            if pid in running:
                os.write(running[pid], _number(os.waitstatus_to_exitcode(status)))
                os.close(running.pop(pid))


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def _begin(words: list[str], environ: dict[str, str], folder: str, standard: Sequence[int]) -> NoReturn:
    """As `python words…` in this folder would, but for the imports."""
    _be_like_new(environ, standard, keep=())
    os.chdir(folder)
    _end_with(lambda: _python(words))


def _python(words: list[str]) -> None:
    if words[:2] == ["-m", "shoal"]:
        from shoal import cli
        from shoal.launch import prefork
        from shoal.launch.supervision import local_coordination, local_launcher

        for module in (prefork, local_coordination, local_launcher):
            module.Process = _process  # type: ignore[attr-defined]
        if "keras" not in sys.modules:
            _fork_members_without_keras()
        prefork._rename([sys.executable, *words])
        sys.argv = ["shoal", *words[2:]]
        cli.main(prog_name="shoal")
    else:
        sys.argv = list(words)
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def _fork_members_without_keras() -> None:
    """Members of a run come from its prefork process, which imports nothing, whether or not the script allows that."""
    from shoal.hook.patching import preload
    from shoal.launch.plan import LaunchPlan

    def environment(plan: LaunchPlan, host: str) -> Mapping[str, str] | None:
        there = [member for member in plan.members if member.host == host]
        return there[0].environment if len(there) > 1 else None

    LaunchPlan.preload = environment  # type: ignore[method-assign]
    preload.preload = lambda: None


def _process(
    module: str,
    arguments: list[str],
    environment: Mapping[str, str],
    *,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    standard: tuple[int, ...] | None = None,
    pass_fds: tuple[int, ...] = (),
) -> Any:
    """In the launcher, as its class Process: one that has everything already; started anew if it were another."""
    from shoal.launch.processes import Process, hold_interrupts

    given = standard or (stdin, stdout, stderr)
    is_other = "keras" in sys.modules and any(environment.get(name) != was for name, was in _imported_with.items())
    may_fork = module in MAINS and threading.active_count() == 1
    if not may_fork or (is_other and module != "shoal.launch.coordinator"):  # which does without keras
        return Process(
            module, arguments, environment, stdin=given[0], stdout=given[1], stderr=given[2], pass_fds=pass_fds
        )
    theirs, ours = [], []  # descriptors: the child's standard streams, and this process's ends of pipes
    for place, stream in enumerate(given):
        if stream == subprocess.PIPE:
            ends = os.pipe()
            theirs.append(ends[place != 0])
            ours.append(ends[place == 0])
        else:
            theirs.append(place if stream is None else stream if isinstance(stream, int) else stream.fileno())
            ours.append(-1)
    with hold_interrupts():
        pid = os.fork()
        if pid == 0:
            os.setsid()
            _be_like_new(environment, theirs, pass_fds)
            _end_with(lambda: _main_of(module, arguments))
    for fd, own in zip(theirs, ours, strict=True):
        if own >= 0:
            os.close(fd)
    return _child(pid, ours)


def _child(pid: int, pipes: Sequence[int]) -> Any:
    from shoal.launch.processes import Child

    class Forked(Child):
        """With as much of a Process as the launcher uses."""

        def __init__(self) -> None:
            super().__init__(pid)
            self.stdin = os.fdopen(pipes[0], "wb") if pipes[0] >= 0 else None
            self.stdout = os.fdopen(pipes[1], "rb") if pipes[1] >= 0 else None

        def close_pipes(self) -> None:
            for stream in (self.stdin, self.stdout):
                if stream is not None:
                    stream.close()

        def _reap(self) -> None:
            super()._reap()
            self.close_pipes()

    return Forked()


def _main_of(module: str, arguments: list[str]) -> None:
    from shoal.launch import prefork

    prefork._rename([sys.executable, "-P", "-m", module, *arguments])
    sys.argv = [module, *arguments]
    main = importlib.import_module(module).main
    main(arguments) if module == "shoal.launch.worker" else main()


def _be_like_new(environ: Mapping[str, str], standard: Sequence[int], keep: Sequence[int]) -> None:
    """What `exec` would have changed: signals, descriptors, the environment."""
    gc.freeze()  # what the parent held stays: its descriptors' numbers may be others' by now
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for place, fd in enumerate(standard):
        os.dup2(fd, place)
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd not in keep:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(fd)
    os.environ.clear()
    os.environ.update(environ)
    if "jax" in sys.modules:
        jax: Any = sys.modules["jax"]
        for name, kind in (
            ("jax_compilation_cache_dir", str),
            ("jax_persistent_cache_min_compile_time_secs", float),
        ):
            if name.upper() in environ:
                jax.config.update(name, kind(environ[name.upper()]))


def _end_with(act: Any) -> NoReturn:
    """Do it, and end as an interpreter does."""
    code = 0
    try:
        act()
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        if isinstance(exit.code, str):
            print(exit.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    from shoal.launch.processes import leave

    leave(code)


if __name__ == "__main__":
    main()

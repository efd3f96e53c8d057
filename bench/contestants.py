"""Training jobs in processes of their own: contestants, which take turns, and stamped jobs, which are disturbed.

None of them outlives the bench. Whatever way it ends, its jobs are stopped first; when it is killed itself, the kernel
tells them to end.

A contestant is started once, compiles, and is then told to train for a slice at a time (peers/gate.py is its end
of the line). In between it must use no CPU; how much it did use is part of its facts.

A stamped job trains until it is stopped. Each of its processes writes down when each step was done
(peers/stamps.py), so that one can be killed, or slowed down, and the others tell what it cost.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psutil

from harness import ROOT, Facts, say, significant
from peers.stamps import Stamp, read

GATE = "{gate}"  # stands for the gate's folder in a command
STAMPS = "{stamps}"  # stands for the folder of stamps
START = 120.0  # seconds within which the first step must be done
ANSWER = 120.0  # seconds after which a slice that is not over has failed
IDLE = 0.05  # the share of a core that a paused contestant may use
STEADY = 40  # steps after which a stamped job runs as it will
OUR_WORKER = "shoal.launch.worker"
OUR_COORDINATOR = "shoal.launch.coordinator"
QUOTAS = Path("/sys/fs/cgroup/cpu")  # cgroup v1
PERIOD = 10_000  # microseconds of a quota
SETTLE = 0.3  # seconds after a slice in which the gatekeeper's fellows end the step they are in
LONG_SETTLE = 0.6  # the same where each worker has heard only now that it is over
KINDLY = 15.0  # seconds that processes have to end by themselves
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LIBC = ctypes.CDLL(None, use_errno=True)
_BENCH = os.getpid()


@dataclass(frozen=True)
class Command:
    """One process: what to run, on which cores, and what its environment has beyond the bench's own."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cores: Sequence[int]

    @property
    def pinned(self) -> list[str]:
        return ["taskset", "-c", ",".join(map(str, self.cores)), *self.argv]

    def __str__(self) -> str:
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        hidden = ("--gate", GATE, "--stamps", STAMPS)
        words = [word.replace(f"{ROOT}/", "") for word in self.pinned if word not in hidden]
        return " ".join(settings + [shlex.quote(word) for word in words])


class Processes:
    """What was started for one job, with one log in the job's own folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.started: list[subprocess.Popen[bytes]] = []
        self._log = folder / "log"

    def start(self, command: Command, **words: str) -> None:
        """`words` stand in the command as {name}."""
        argv = list(command.pinned)
        for name, value in words.items():
            argv = [word.replace(f"{{{name}}}", value) for word in argv]
        with self._log.open("ab") as log:
            self.started.append(
                subprocess.Popen(
                    argv,
                    env={**os.environ, **command.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Linux shares out a busy core by session: one each, for all
                    preexec_fn=end_with_bench,
                )
            )

    def stop(self) -> None:
        """End them all and their children, kindly first; returns when they are gone."""
        family = self.family()
        for process in self.started:
            process.terminate()
        _, left = psutil.wait_procs(family, timeout=KINDLY)
        _kill(left)
        for process in self.started:
            process.wait()  # reaped, so that its CPU seconds count as ours

    def check_alive(self) -> None:
        for process in self.started:
            if process.poll() is not None:
                code = process.returncode
                raise RuntimeError(f"{self.name}: ended, exit code {code}\n{self.log_end()}")

    def log_end(self) -> str:
        return "\n".join(self.log().splitlines()[-20:])

    def log(self) -> str:
        """All that they have printed so far."""
        return self._log.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """All of them that are there now, with their descendants."""
        return [member for process in self.started for member in _family(process.pid)]

    def cpu_seconds(self) -> float:
        """CPU seconds so far of all processes and their descendants."""
        return sum(cpu_seconds(member) for member in self.family())


class Contestant:
    """A job of one or more processes and a gatekeeper among them. Not for use by several threads."""

    def __init__(
        self,
        name: str,
        commands: Sequence[Command],
        samples_per_step: int,
        gatekeepers: int = 1,
        patience: float = ANSWER,
    ) -> None:
        """`gatekeepers`: more than one where workers do not wait for each other; a step is then one worker's.

        `patience`: seconds after which a slice that is not over has failed.
        """
        self.name = name
        self.commands = commands
        self.samples_per_step = samples_per_step
        self.steps = 0  # in all slices so far
        self._gatekeepers = gatekeepers
        self._patience = patience
        self.seconds_to_first_step = 0.0
        self._paused_since: tuple[float, float] | None = None  # wall and CPU seconds
        self._paused = [0.0, 0.0]  # wall and CPU seconds, summed over all pauses
        self._trained = [0.0, 0.0]  # samples and CPU seconds, summed over all slices
        self._cpu_at_go = 0.0

    def start(self) -> None:
        """Start the processes; returns when the first step is done. Raises RuntimeError with the log's end."""
        self._folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self._processes = Processes(self.name, self._folder)
        self._paused_since = None
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._folder / "gate"))
            listener.listen()
            listener.settimeout(0.5)
            begun = time.monotonic()
            for command in self.commands:
                self._processes.start(command, gate=str(self._folder))
            connections = [self._accept(listener, begun + START) for _ in range(self._gatekeepers)]
        for connection in connections:
            connection.settimeout(self._patience)
        self._lines = [connection.makefile("rw") for connection in connections]
        self.seconds_to_first_step = max(answer["first_step_at"] for answer in self._answers()) - begun

    def go(self, seconds: float) -> None:
        """Begin a slice."""
        self._cpu_at_go = self._processes.cpu_seconds()
        if self._paused_since:
            self._paused[0] += time.monotonic() - self._paused_since[0]
            self._paused[1] += self._cpu_at_go - self._paused_since[1]
        self._tell({"go": seconds, "among_others": self._gatekeepers > 1})

    def rate(self) -> float:
        """Wait for the slice's end. Returns samples per second, of all gatekeepers together."""
        answers = self._answers()
        among_others = self._gatekeepers > 1
        at_answers = self._processes.cpu_seconds()
        if among_others:
            self._tell({"rest": True})
        time.sleep(LONG_SETTLE if among_others else SETTLE)
        cpu = self._processes.cpu_seconds()
        self._paused_since = (time.monotonic(), cpu)
        steps = sum(int(answer["steps"]) + 1 for answer in answers)  # the untimed ones too
        self.steps += steps
        self._trained[0] += steps * self.samples_per_step
        self._trained[1] += (at_answers if among_others else cpu) - self._cpu_at_go
        return sum(answer["steps"] * self.samples_per_step / answer["seconds"] for answer in answers)

    def stop(self) -> None:
        """End all processes, kindly first; returns when they are gone."""
        self._processes.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def family(self) -> list[psutil.Process]:
        """Its processes and their descendants, those that the bench has started first and in their order."""
        started = {process.pid: rank for rank, process in enumerate(self._processes.started)}
        return sorted(self._processes.family(), key=lambda member: started.get(member.pid, len(started)))

    def log(self) -> str:
        """All that its processes have printed so far."""
        return self._processes.log()

    def facts(self) -> Facts:
        """The commands, the CPU cost of a sample, and the share of a core used while paused (0, one hopes)."""
        samples, busy = self._trained
        wall, idle = self._paused
        return {
            "commands": [str(command) for command in self.commands],
            "cpu_ms_per_sample": significant(1000 * busy / samples) if samples else None,
            "cpu_share_while_paused": round(idle / wall, 3) if wall else None,
        }

    def _accept(self, listener: socket.socket, until: float) -> socket.socket:
        while time.monotonic() < until:
            self._processes.check_alive()
            try:
                connection = listener.accept()[0]
                connection.sendall(b"welcome\n")
                return connection
            except TimeoutError:
                continue
        raise RuntimeError(f"{self.name}: no step within {START:.0f} s\n{self._processes.log_end()}")

    def _tell(self, command: Facts) -> None:
        for line in self._lines:
            try:
                line.write(json.dumps(command) + "\n")
                line.flush()
            except BrokenPipeError:
                raise RuntimeError(f"{self.name}: ended while it rested\n{self._processes.log_end()}") from None

    def _answers(self) -> list[dict[str, float]]:
        return [self._answer(line) for line in self._lines]

    def _answer(self, gatekeeper: TextIO) -> dict[str, float]:
        try:
            line = gatekeeper.readline()
        except TimeoutError:
            raise RuntimeError(f"{self.name}: does not answer\n{self._processes.log_end()}") from None
        if not line:
            raise RuntimeError(f"{self.name}: ended while it should train\n{self._processes.log_end()}")
        answer: dict[str, float] = json.loads(line)
        return answer


@dataclass(frozen=True)
class Kill:
    """A process that was killed: when, and when the system had taken it down, so that others could see it."""

    pid: int
    at: float
    gone: float


class Stamped:
    """A job of several workers that trains until it is stopped, in processes that may be killed."""

    def __init__(self, name: str, command: Command, workers: int, apart: int = 1) -> None:
        """`apart`: steps by which workers may differ; more than one where each computes steps of its own."""
        self.name = name
        self.command = command
        self.workers = workers
        self._apart = apart
        self.folder = Path(tempfile.mkdtemp(prefix="bench-", dir="/dev/shm"))  # in /dev every worker's files are kept
        self.processes = Processes(name, self.folder)

    def start(self) -> None:
        """Returns when all its workers train."""
        self.processes.start(self.command, stamps=str(self.folder))
        self.wait("train", lambda: len(self.training()) == self.workers and self.step > STEADY, START)

    def stop(self) -> None:
        self.processes.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def stamps(self) -> dict[int, list[Stamp]]:
        """By process, those that have been killed too."""
        return {pid: stamps for pid, stamps in read(self.folder).items() if stamps}

    @property
    def step(self) -> int:
        """The last step that somebody finished; -1 before the first."""
        return max((stamps[-1].step for stamps in self.stamps.values()), default=-1)

    def training(self) -> list[int]:
        """The processes that keep up with the steps, the longest-serving first: ours are in the order of ranks."""
        stamps = self.stamps
        newest = max((mine[-1].step for mine in stamps.values()), default=0)
        here = [pid for pid, mine in stamps.items() if mine[-1].step >= newest - self._apart]
        return sorted(here, key=lambda pid: (stamps[pid][0].step, pid))

    def child(self, word: str) -> psutil.Process | None:
        """Its process with this word in the command, if it lives."""
        return child(self.processes.family(), word)

    @property
    def family(self) -> list[psutil.Process]:
        return self.processes.family()

    def waiting(self) -> list[psutil.Process]:
        """Workers of ours that are started, do not train and use no CPU: standbys that are ready."""
        busy = self.training()
        found = []
        for member in self.processes.family():
            with suppress(psutil.Error):
                if OUR_WORKER in member.cmdline() and member.pid not in busy and cpu_seconds(member) > 0.3:
                    found.append(member)
        before = [cpu_seconds(member) for member in found]
        time.sleep(0.5)
        return [member for member, used in zip(found, before, strict=True) if 0 <= cpu_seconds(member) - used < 0.02]

    def wait(self, what: str, condition: Callable[[], object], seconds: float) -> None:
        """Until it is so. RuntimeError says what did not come."""
        until = time.monotonic() + seconds
        while not condition():
            self.processes.check_alive()
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name}: does not {what} after {seconds:.0f} s\n{self.processes.log_end()}")
            time.sleep(0.05)

    def wait_steps(self, count: int, seconds: float = ANSWER) -> None:
        """Until so many more steps are done."""
        target = self.step + count
        self.wait(f"do {count} steps", lambda: self.step >= target, seconds)

    def wait_end(self, seconds: float) -> None:
        """Until the job has ended by itself. RuntimeError if it failed, or does not end."""
        launcher = self.processes.started[0]
        try:
            failed = launcher.wait(seconds)
        except subprocess.TimeoutExpired:
            failed = True
        if failed:
            raise RuntimeError(f"{self.name}: failed, or did not end\n{self.processes.log_end()}")

    def kill(self, pid: int) -> Kill:
        """`kill -9`; returns when the process is gone."""
        descriptor = os.pidfd_open(pid)
        at = time.monotonic()
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [], ANSWER)
        gone = time.monotonic()
        os.close(descriptor)
        return Kill(pid, at, gone)


@contextmanager
def stamped(job: Stamped) -> Iterator[Stamped]:
    """Start it; stop it in the end."""
    _end_in_order()
    try:
        job.start()
        say(f"{job.name}: trains")
        yield job
    finally:
        job.stop()


@contextmanager
def slowed(processes: Sequence[psutil.Process], share: float) -> Iterator[str]:
    """Their threads get this share of a core, all together, as long as this lasts; a word on how.

    Only one of the processes may be at work at a time. A control group does it where we may make one; else busy loops
    on the processes' core, each of which gets as much as they do.
    """
    group = QUOTAS / f"shoal-bench-{os.getpid()}"
    try:
        group.mkdir(exist_ok=True)
    except OSError:
        with _burners(sorted(processes[0].cpu_affinity()), round(1 / share) - 1) as how:
            yield how
        return
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(round(share * PERIOD)))
        for process in processes:
            (group / "cgroup.procs").write_text(str(process.pid))
        yield f"a quota of {share:.0%} of a core in periods of {PERIOD // 1000} ms"
    finally:
        for process in processes:
            with suppress(OSError):
                (QUOTAS / "cgroup.procs").write_text(str(process.pid))
        with suppress(OSError):
            group.rmdir()


@contextmanager
def _burners(cores: Sequence[int], count: int) -> Iterator[str]:
    """So many endless loops on these cores, each in a session of its own, among which Linux divides a core."""
    loop = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(loop, start_new_session=True) for _ in range(count)]
    try:
        yield f"{count} busy loops on core {', '.join(map(str, cores))}"
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def together(contestants: Sequence[Contestant], seconds: float) -> float:
    """One slice of all of them at the same time. Returns the sum of their samples per second."""
    for contestant in contestants:
        contestant.go(seconds)
    return sum(contestant.rate() for contestant in contestants)


@contextmanager
def running(contestants: Sequence[Contestant]) -> Iterator[None]:
    """Start them one after the other, so that none slows another's first step; stop them all in the end."""
    _end_in_order()
    with ExitStack() as stack:
        for contestant in contestants:
            stack.callback(contestant.stop)
            contestant.start()
            say(f"{contestant.name}: first step after {contestant.seconds_to_first_step:.1f} s")
        yield


def restless(contestants: Sequence[Contestant]) -> list[str]:
    """Those that worked while they were told to wait: they spoilt the others' slices, or their workers don't wait
    for each other."""
    return [c.name for c in contestants if (c.facts()["cpu_share_while_paused"] or 0.0) > IDLE]


def child(family: Sequence[psutil.Process], word: str) -> psutil.Process | None:
    """The process with this word in its command, if it lives."""
    for member in family:
        with suppress(psutil.Error):
            if word in member.cmdline() and member.status() != psutil.STATUS_ZOMBIE:
                return member
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_to_end(name: str, command: Command, seconds: float) -> None:
    """Run a job that ends by itself. RuntimeError if it fails, or does not end in this time."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    processes = Processes(name, folder)
    _end_in_order()
    try:
        processes.start(command)
        try:
            code: int | None = processes.started[0].wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            how = f"did not end within {seconds:.0f} s" if code is None else f"ended, exit code {code}"
            raise RuntimeError(f"{name}: {how}\n{processes.log_end()}")
    finally:
        processes.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started(name: str, commands: Sequence[Command], **words: str) -> Iterator[Processes]:
    """Processes of one job with a log in common; stopped in the end. `words` stand in the commands as {name}."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    processes = Processes(name, folder)
    _end_in_order()
    try:
        for command in commands:
            processes.start(command, **words)
        yield processes
    finally:
        processes.stop()
        shutil.rmtree(folder, ignore_errors=True)


def end_with_bench() -> None:
    """In a child, before it becomes what it shall be: it is told to end when the bench is gone, however that came."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != _BENCH:  # gone already
        os._exit(1)


def _end_in_order() -> None:
    """A bench that is told to end (by `timeout`, say) stops its jobs first: they have sessions of their own.

    Whoever loses its parent becomes the bench's own child, and the last thing that a bench does is to end its children.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    atexit.unregister(_end_children)
    atexit.register(_end_children)


def _end(number: int, frame: object) -> None:
    for heard in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(heard, signal.SIG_IGN)  # once is enough: what follows must not be cut short
    sys.exit(128 + number)


def _end_children() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _kill(psutil.Process().children(recursive=True))


def _kill(members: Sequence[psutil.Process]) -> None:
    """Returns when they are gone."""
    for member in members:
        with suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(members, timeout=KINDLY)


def _family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; none when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)

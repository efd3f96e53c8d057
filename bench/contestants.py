"""Contestants: training jobs that run in processes of their own and train only while their slice lasts.

A contestant is started once, compiles, and is then told to train for a slice at a time (peers/gate.py is its end
of the line). In between it must use no CPU; how much it did use is part of its facts.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness import ROOT, Facts, say, significant

GATE = "{gate}"  # stands for the gate's folder in a command
START = 300.0  # seconds within which the first step must be done
ANSWER = 120.0  # seconds that a slice may last beyond what was asked
IDLE = 0.05  # the share of a core that a paused contestant may use
SETTLE = 0.3  # seconds after a slice in which the gatekeeper's fellows end the step they are in


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
        words = [word.replace(f"{ROOT}/", "") for word in self.pinned if word not in ("--gate", GATE)]
        return " ".join(settings + [shlex.quote(word) for word in words])


class Contestant:
    """A job of one or more processes and one gatekeeper among them. Not for use by several threads."""

    def __init__(self, name: str, commands: Sequence[Command], samples_per_step: int) -> None:
        self.name = name
        self.commands = commands
        self._samples = samples_per_step
        self._processes: list[subprocess.Popen[bytes]] = []
        self.seconds_to_first_step = 0.0
        self._paused_since: tuple[float, float] | None = None  # wall and CPU seconds
        self._paused = [0.0, 0.0]  # wall and CPU seconds, summed over all pauses
        self._trained = [0.0, 0.0]  # samples and CPU seconds, summed over all slices
        self._cpu_at_go = 0.0

    def start(self) -> None:
        """Start the processes; returns when the first step is done. Raises RuntimeError with the log's end."""
        self._folder = Path(tempfile.mkdtemp(prefix="bench-"))
        (self._folder / "ticket").touch()
        with socket.socket(socket.AF_UNIX) as listener, (self._folder / "log").open("wb") as log:
            listener.bind(str(self._folder / "gate"))
            listener.listen()
            listener.settimeout(0.5)
            begun = time.monotonic()
            for command in self.commands:
                argv = [word.replace(GATE, str(self._folder)) for word in command.pinned]
                self._processes.append(
                    subprocess.Popen(
                        argv,
                        env={**os.environ, **command.env},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # Linux shares out a busy core by session: one each, for all
                    )
                )
            connection = self._accept(listener, begun + START)
        connection.settimeout(START)
        self._line = connection.makefile("rw")
        self.seconds_to_first_step = self._answer()["first_step_at"] - begun
        connection.settimeout(ANSWER)

    def go(self, seconds: float) -> None:
        """Begin a slice."""
        self._cpu_at_go = self._cpu_seconds()
        if self._paused_since:
            self._paused[0] += time.monotonic() - self._paused_since[0]
            self._paused[1] += self._cpu_at_go - self._paused_since[1]
        self._line.write(json.dumps({"go": seconds}) + "\n")
        self._line.flush()

    def rate(self) -> float:
        """Wait for the slice's end. Returns samples per second."""
        answer = self._answer()
        time.sleep(SETTLE)
        cpu = self._cpu_seconds()
        self._paused_since = (time.monotonic(), cpu)
        self._trained[0] += (answer["steps"] + 1) * self._samples  # the untimed step too
        self._trained[1] += cpu - self._cpu_at_go
        return answer["steps"] * self._samples / answer["seconds"]

    def stop(self) -> None:
        """End all processes, kindly first; returns when they are gone."""
        family = [member for process in self._processes for member in _family(process.pid)]
        for process in self._processes:
            process.terminate()
        _, left = psutil.wait_procs(family, timeout=15.0)
        for member in left:
            member.kill()
        for process in self._processes:
            process.wait()  # reaped, so that its CPU seconds count as ours
        shutil.rmtree(self._folder, ignore_errors=True)

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
            self._check_alive()
            try:
                return listener.accept()[0]
            except TimeoutError:
                continue
        raise RuntimeError(f"{self.name}: no step within {START:.0f} s\n{self._log_end()}")

    def _answer(self) -> dict[str, float]:
        try:
            line = self._line.readline()
        except TimeoutError:
            raise RuntimeError(f"{self.name}: does not answer\n{self._log_end()}") from None
        if not line:
            raise RuntimeError(f"{self.name}: ended while it should train\n{self._log_end()}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def _check_alive(self) -> None:
        for process in self._processes:
            if process.poll() is not None:
                code = process.returncode
                raise RuntimeError(f"{self.name}: ended before a step, exit code {code}\n{self._log_end()}")

    def _log_end(self) -> str:
        return "\n".join((self._folder / "log").read_text(errors="replace").splitlines()[-20:])

    def _cpu_seconds(self) -> float:
        """CPU seconds so far of all processes and their descendants."""
        return sum(_cpu_seconds(member) for process in self._processes for member in _family(process.pid))


def together(contestants: Sequence[Contestant], seconds: float) -> float:
    """One slice of all of them at the same time. Returns the sum of their samples per second."""
    for contestant in contestants:
        contestant.go(seconds)
    return sum(contestant.rate() for contestant in contestants)


@contextmanager
def running(contestants: Sequence[Contestant]) -> Iterator[None]:
    """Start them one after the other, so that none slows another's first step; stop them all in the end."""
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; none when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)

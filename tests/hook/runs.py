"""Real trainings in processes of their own: with plain Keras, the outside witness, and with `shoal run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import psutil
import pytest
from click.testing import CliRunner

from shoal import cli
from shoal.launch.environment import of_worker
from warm import Running, Warm

BACKENDS = ("jax", "tensorflow", "torch")
FULL = bool(os.environ.get("SHOAL_TEST_ALL"))  # every scene on every backend; see tests/conftest.py
SCRIPTS = Path(__file__).parent.parent / "scripts"
PATIENCE = 120.0  # seconds for something to happen in a run that goes on
# XLA's compiler is most of what a training on JAX costs here. Without its optimizations it takes less than half of it.
QUICKLY_COMPILED = {"XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"}
LIMIT = 280.0  # seconds for one training; only a broken one takes so long


def full(*values: Any, id: str | None = None) -> Any:
    """A case that only `make test-full` runs: it compiles much, and what it shows is shown on another backend, too."""
    return pytest.param(*values, marks=pytest.mark.full, id=id)


class WarmProcesses:
    """For each backend those from which trainings come, once they are needed. See warm.py."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Warm] = {}

    def get(self, kind: Literal["plain", "shoal"], backend: str) -> Warm:
        if (kind, backend) not in self._found:
            environ = of_worker({**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, 1, True, 0)
            self._found[kind, backend] = Warm(kind, backend, environ)
        return self._found[kind, backend]

    def descendants(self) -> list[psutil.Process]:
        return [process for warm in self._found.values() for process in warm.descendants()]

    def close(self) -> None:
        for warm in self._found.values():
            warm.close()


class Trainings:
    """A folder for trainings, a cache of compiled programs that they share with others, and what they leave.

    `plain_cache` is for plain Keras: JAX's own cache is not for several processes at a time.
    """

    def __init__(self, folder: Path, cache: Path, plain_cache: Path, warm: WarmProcesses) -> None:
        self.folder = folder
        self._plain_cache = plain_cache
        self._warm = warm
        runtime = folder / "r"
        runtime.mkdir(mode=0o700)
        self.environ = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(runtime),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(cache),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "SHOAL_TEST": str(folder),
            **QUICKLY_COMPILED,
        }

    def plain(self, backend: str, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """`python script`, on one thread, as each worker has. JAX keeps what it compiled: many models are alike."""
        environ = {"KERAS_BACKEND": backend}
        environ |= dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
        environ |= {"JAX_COMPILATION_CACHE_DIR": str(self._plain_cache)}
        environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        return self._run(self._warm.get("plain", backend), [SCRIPTS / script, *arguments], environ)

    def shoal(
        self, backend: str, options: str, script: str | Path, *arguments: object
    ) -> subprocess.CompletedProcess[str]:
        """`shoal run options script`."""
        command = ["-m", "shoal", "run", "--backend", backend, *options.split(), SCRIPTS / script, *arguments]
        return self._run(self._warm.get("shoal", backend), command, {})

    def start(self, words: Sequence[object], stdout: IO[Any], stderr: IO[Any]) -> Running:
        """`shoal run …`, with a backend among its words."""
        backend = str(words[words.index("--backend") + 1])
        words = ["-m", "shoal", *map(str, words)]
        return self._warm.get("shoal", backend).start(words, self.environ, self.folder, stdout, stderr)

    def leftovers(self) -> list[psutil.Process]:
        """Processes of these trainings that still live."""
        found = self._warm.descendants()
        for process in psutil.process_iter():
            try:
                if process.environ().get("SHOAL_TEST") == str(self.folder) and process not in found:
                    found.append(process)
            except psutil.Error:
                continue
        return [process for process in found if _lives(process)]

    def kill_everything(self) -> None:
        """All at once: nobody may see another die."""
        everyone = self.leftovers()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in everyone:
                os.kill(process.pid, number)
        for process in everyone:
            process.wait(30)

    def _run(self, warm: Warm, words: Sequence[object], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        command = list(map(str, words))
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = warm.start(command, self.environ | environ, self.folder, out, err)
            try:
                code = process.wait(LIMIT)
            except BaseException:
                print(f"after {LIMIT:.0f} s, or the test's limit:\n{_status(self.environ)}\n{_all(out)}\n{_all(err)}")
                raise
            finally:
                for left in self.leftovers():
                    left.kill()
            return subprocess.CompletedProcess(command, code, _all(out), _all(err))


def _status(environ: dict[str, str], *options: str) -> str:
    """Without a process of its own, which would take a core where it is asked often."""
    return CliRunner().invoke(cli.main, ["status", *options], env=environ).stdout


def _all(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class Going:
    """A `shoal` command that goes on while the test looks at it, in the background, maybe on another host."""

    def __init__(self, trainings: Trainings, words: Sequence[object], host: str | None = None) -> None:
        self._prefix = ["ip", "netns", "exec", host] if host else []
        self._folder = trainings.folder
        self.environ = trainings.environ
        if host:
            runtime = trainings.folder / host
            runtime.mkdir(mode=0o700, exist_ok=True)
            self.environ = trainings.environ | {"XDG_RUNTIME_DIR": str(runtime)}
        fd, log = tempfile.mkstemp(dir=trainings.folder, suffix=".log")
        self._log = Path(log)
        self.process: Running | subprocess.Popen[bytes]
        with os.fdopen(fd, "wb") as out:
            if host or "--backend" not in words:
                command = self._command(words)
                self.process = subprocess.Popen(command, env=self.environ, stdout=out, stderr=out, cwd=self._folder)
            else:
                self.process = trainings.start(words, out, out)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def ask(self, *words: object) -> subprocess.CompletedProcess[str]:
        """`shoal …`, from another terminal of the same host."""
        command = self._command(words)
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=60, cwd=self._folder)

    def workers(self) -> dict[str, dict[str, Any]]:
        """What `shoal status` says of each."""
        runs = json.loads(self._status() or "[]")
        return {m["id"]: m for run in runs for m in run.get("members", []) if m["role"] == "worker"}

    def states(self) -> dict[str, str]:
        return {id: member["state"] for id, member in self.workers().items()}

    def until(self, what: str, found: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not found():
            assert time.monotonic() < deadline, f"{what}\n{self.said()[-3000:]}"
            assert self.process.poll() is None, f"{what}\n{self.said()[-3000:]}"
            time.sleep(1.0 if self._prefix else 0.1)

    def end(self) -> int:
        """Waits for it. Returns its exit code."""
        return self.process.wait(PATIENCE)

    def __enter__(self) -> Going:
        return self

    def __exit__(self, *_: object) -> None:
        """It should have ended; if the test failed before that, it is ended."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)

    def _status(self) -> str:
        return self.ask("status", "--json").stdout if self._prefix else _status(self.environ, "--json")

    def _command(self, words: Sequence[object]) -> list[str]:
        return [*self._prefix, sys.executable, "-m", "shoal", *map(str, words)]


def told(folder: Path) -> list[Any]:
    """What the workers of a training wrote, by rank."""
    files = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in files]


def newest(saved: Path) -> int:
    """The step of the last checkpoint in a folder; 0 if there is none."""
    return max((int(path.name.removeprefix("step-")) for path in saved.glob("step-*")), default=0)


def succeeded(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, f"{result.stdout[-2000:]}\n{result.stderr[-6000:]}"

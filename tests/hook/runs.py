"""Real trainings in processes of their own: with plain Keras, the outside witness, and with `shoal run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from click.testing import CliRunner

from shoal import cli

BACKENDS = ("jax", "tensorflow", "torch")
SCRIPTS = Path(__file__).parent.parent / "scripts"
PATIENCE = 120.0  # seconds for something to happen in a run that goes on
LIMIT = 280.0  # seconds for one training; only a broken one takes so long


class Trainings:
    """A folder for trainings, a cache of compiled programs that they share with others, and what they leave."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.cache = cache
        runtime = folder / "r"
        runtime.mkdir(mode=0o700)
        self.environ = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(runtime),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(cache),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "SHOAL_TEST": str(folder),
        }

    def plain(self, backend: str, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """`python script`, on one thread, as each worker has. JAX keeps what it compiled: many models are alike."""
        environ = {"KERAS_BACKEND": backend}
        environ |= dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
        environ |= {"JAX_COMPILATION_CACHE_DIR": str(self.cache / "plain")}
        environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        return self._run([sys.executable, SCRIPTS / script, *arguments], environ)

    def shoal(
        self, backend: str, options: str, script: str | Path, *arguments: object
    ) -> subprocess.CompletedProcess[str]:
        """`shoal run options script`."""
        command = [sys.executable, "-m", "shoal", "run", "--backend", backend, *options.split()]
        return self._run([*command, SCRIPTS / script, *arguments], {})

    def leftovers(self) -> list[psutil.Process]:
        """Processes of these trainings that still live."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("SHOAL_TEST") == str(self.folder) and process.status() != "zombie":
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def _run(self, command: list[Any], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        try:
            return subprocess.run(
                words, env=self.environ | environ, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT
            )
        finally:
            for process in self.leftovers():
                process.kill()


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
        self.process = subprocess.Popen(self._command(words), env=self.environ, stdout=fd, stderr=fd, cwd=self._folder)
        os.close(fd)

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
        """Asked often: on this host without a process for each question, which would take a core."""
        if self._prefix:
            return self.ask("status", "--json").stdout
        return CliRunner().invoke(cli.main, ["status", "--json"], env=self.environ).stdout

    def _command(self, words: Sequence[object]) -> list[str]:
        return [*self._prefix, sys.executable, "-m", "shoal", *map(str, words)]


def told(folder: Path) -> list[Any]:
    """What the workers of a training wrote, by rank."""
    files = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in files]


def succeeded(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, f"{result.stdout[-2000:]}\n{result.stderr[-6000:]}"

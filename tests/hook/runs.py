"""Real trainings in processes of their own: with plain Keras, the outside witness, and with `shoal run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

BACKENDS = ("jax", "tensorflow", "torch")
SCRIPTS = Path(__file__).parent.parent / "scripts"
LIMIT = 280.0  # seconds for one training; only a broken one takes so long


class Trainings:
    """A folder for trainings, what they share (a cache of compiled programs) and what they leave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        runtime = folder / "r"
        runtime.mkdir(mode=0o700)
        self.environ = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(runtime),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "SHOAL_TEST": str(folder),
        }

    def plain(self, backend: str, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """`python script`, on one thread, as each worker has."""
        one_thread = dict.fromkeys(
            ("NPROC", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1"
        )
        return self._run([sys.executable, SCRIPTS / script, *arguments], {"KERAS_BACKEND": backend} | one_thread)

    def shoal(self, backend: str, options: str, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
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


def told(folder: Path) -> list[Any]:
    """What the workers of a training wrote, by rank."""
    files = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in files]


def succeeded(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, f"{result.stdout[-2000:]}\n{result.stderr[-6000:]}"

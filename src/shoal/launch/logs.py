"""The workers' logs: where they go, how they are followed, how they end."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from shoal.errors import UsageError
from shoal.observe import record_files
from shoal.observe.chart import CHART

KEPT_RUNS = 20
CHIEF = "worker-0"  # which has the terminal
_TAIL_BYTES = 64 * 1024


def home(environ: Mapping[str, str]) -> Path:
    """Where the logs of all runs lie that were not told otherwise, each in a folder of its name."""
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path("~/.local/state").expanduser()) / "shoal" / "logs"


def prepare(folder: Path, prune: bool) -> Path:
    """Make the folder of this run's logs. `prune`: it lies among those of earlier runs; keep the newest."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "coordinator.log").touch()
        # Of another run with the same folder. The chief has a log if it fails.
        path_of(folder, CHIEF).unlink(missing_ok=True)
        (folder / CHART).unlink(missing_ok=True)
        record_files.remove(folder)
    except OSError as error:
        raise UsageError(f"can't write logs to {folder}: {error.strerror}. Choose another with --logs.") from error
    if prune:
        # A run's name begins with the time it began, so the order of names is that of runs.
        for old in sorted(path for path in folder.parent.iterdir() if path.is_dir())[:-KEPT_RUNS]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def path_of(folder: Path, id: str) -> Path:
    return folder / f"{id}.log"


def add(folder: Path, id: str, text: str) -> bool:
    """To a member's log; whether that could be done."""
    try:
        with path_of(folder, id).open("a", encoding="utf-8", errors="replace") as log:
            log.write(text)
    except OSError:
        return False
    return True


class Logs:
    """The logs of a run that is going on. One that can't be written costs its lines, not the run."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say

    def path_of(self, id: str) -> Path:
        return path_of(self._folder, id)

    def open(self, id: str, fresh: bool = True) -> BinaryIO:
        """A member's log, to write to; what was in it goes if it is to be fresh."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0)
        path = self.path_of(id)
        try:
            if not self._folder.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._say(f"the folder of the logs was deleted; {self._folder} is made anew, without what was in it")
            return open(path, "wb", opener=lambda path, _: os.open(path, flags, 0o666))
        except OSError as error:
            self._say(f"{id} has no log: can't write {path}: {error.strerror}. What it prints is lost")
            return open(os.devnull, "wb")


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log, without reading all of it."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]


class Follower:
    """New lines of several growing logs, each with its worker's name before it."""

    def __init__(self) -> None:
        self._files: dict[str, BinaryIO] = {}
        self._partial: dict[str, bytes] = {}

    def follow(self, id: str, path: Path) -> None:
        """This one too, from its beginning on."""
        with contextlib.suppress(OSError):  # it has no log
            self._files[id] = path.open("rb")
            self._partial[id] = b""

    def new_lines(self, final: bool = False) -> list[str]:
        """What was added since the last call: whole lines, unless it is the final call."""
        found = []
        for id, file in self._files.items():
            *lines, rest = (self._partial[id] + file.read()).split(b"\n")
            if final and rest:
                lines.append(rest)
            self._partial[id] = b"" if final else rest
            found += [f"[{id}] {line.decode(errors='replace')}" for line in lines]
        return found

    def close(self) -> None:
        for file in self._files.values():
            file.close()

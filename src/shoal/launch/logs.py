"""The workers' logs: where they go, how they are followed, how they end."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from shoal.errors import UsageError

KEPT_RUNS = 20
_TAIL_BYTES = 64 * 1024


def prepare(folder: Path, prune: bool) -> Path:
    """Make the folder of this run's logs. `prune`: it lies among those of earlier runs; keep the newest."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "coordinator.log").touch()
    except OSError as error:
        raise UsageError(f"can't write logs to {folder}: {error.strerror}. Choose another with --logs.") from error
    if prune:
        # A run's name begins with the time it began, so the order of names is that of runs.
        for old in sorted(path for path in folder.parent.iterdir() if path.is_dir())[:-KEPT_RUNS]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def path_of(folder: Path, id: str) -> Path:
    return folder / f"{id}.log"


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

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._files = {id: path.open("rb") for id, path in paths.items()}
        self._partial = dict.fromkeys(paths, b"")

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

"""The runs of this machine: those that are alive, and what the others have left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from shoal.cluster import folders
from shoal.errors import UsageError
from shoal.launch import logs
from shoal.observe.story import OLDER, STORY
from shoal.wire.held_folder import is_alive


def living(environ: Mapping[str, str]) -> list[Path]:
    """The folders of all runs that are alive, oldest first."""
    return [folder for folder in folders.runs(folders.home(environ)) if is_alive(folder)]


def the_run(environ: Mapping[str, str], run: str | None) -> Path:
    """The folder of the run that is meant; UsageError if that is not clear."""
    there = {folder.name: folder for folder in living(environ)}
    if run is not None and run in there:
        return there[run]
    if not there:
        raise UsageError("no run is going on on this machine. `shoal run` starts one.")
    names = ", ".join(there)
    if run is not None:
        raise UsageError(f"there is no run {run} on this machine; there is {names}.")
    if len(there) != 1:
        raise UsageError(f"which run? Say it with --run ID; on this machine there is {names}.")
    return next(iter(there.values()))


def logs_of(run: str | None) -> Path:
    """Where the logs of a run lie: of the last one, if none is named."""
    home = logs.home(os.environ)
    if run is None:
        told = finished(os.environ)
        if not told:
            raise UsageError(f"no run has left a story in {home}. Give the folder of its logs, if it had --logs.")
        return told[-1]
    for folder in (home / run, Path(run)):
        if _has_story(folder):
            return folder
    known = ", ".join(path.name for path in _runs(home)[-5:]) or "none"
    raise UsageError(f"there is no story of a run {run}. The last runs here: {known}.")


def finished(environ: Mapping[str, str]) -> list[Path]:
    """The folders of the logs of runs that have told something, alive or not, oldest first."""
    return [path for path in _runs(logs.home(environ)) if _has_story(path)]


def _runs(home: Path) -> list[Path]:
    """Oldest first: a run's name begins with the time at which it began."""
    try:
        return sorted(path for path in home.iterdir() if path.is_dir())
    except OSError:
        return []


def _has_story(folder: Path) -> bool:
    return (folder / STORY).is_file() or (folder / OLDER).is_file()

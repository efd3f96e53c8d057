"""The names in a folder of checkpoints, and which of them are to be swept away. Object stores have others.

step-000001234       a checkpoint
step-000001234.old   what stood there before; only while it is being replaced
.draft-RUN-STEP-VIEW a checkpoint being written; its writers hold it, so that a dead run's draft is told by its being
                     held by nobody
.gone-…              on its way out
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from shoal.checkpoint import files
from shoal.checkpoint.addresses import Place
from shoal.errors import UsageError
from shoal.wire.held_folder import is_alive

_STEP = re.compile(r"step-([0-9]{9,18})(\.old)?")
_DRAFT = re.compile(r"\.draft-(.+)-([0-9]{9,18})-([0-9]+)")
_ATTEMPT = re.compile(r"(.+)-([0-9]+)")
_RUN = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Draft:
    """One attempt at a checkpoint. Members that agree on it write into the same folder.

    The view is part of its name: a member that was lost and wakes up writes into a draft of its own.
    """

    folder: Place
    run: str
    step: int
    view: int = 0
    training: str | None = None  # the run that this training began with, if that is another

    def __post_init__(self) -> None:
        for run in (self.run, self.first_run):
            if not _RUN.fullmatch(run):
                raise UsageError(f"{run!r} can't be part of a file's name: expected letters, digits, '.', '_' or '-'")
        if not 0 <= self.step < 10**18:
            raise UsageError(f"there is no step {self.step}: expected a number from 0 on")

    @property
    def first_run(self) -> str:
        return self.training or self.run

    @property
    def name(self) -> str:
        """What it will be called as a checkpoint."""
        return f"step-{self.step:09}"

    @property
    def final(self) -> Place:
        """Where it will be, as a checkpoint."""
        return self.folder / self.name

    @property
    def hidden_name(self) -> str:
        """What its folder is called until then, in a file system."""
        return f".draft-{self.run}-{self.step:09}-{self.view}"

    @property
    def path(self) -> Place:
        """Where it is written, in a file system."""
        return self.folder / self.hidden_name

    @property
    def attempt(self) -> str:
        """What tells it from other drafts of its step."""
        return f"{self.run}-{self.view}"


def attempt_of(name: str) -> tuple[str | None, int]:
    """The run and the view in a draft's name among those of its step; no run if it is not named like one."""
    found = _ATTEMPT.fullmatch(name)
    return (found[1], int(found[2])) if found else (None, 0)


def step_of(path: Place) -> int | None:
    """The step in a checkpoint's name; None if it is not named like one."""
    found = _STEP.fullmatch(path.name)
    return int(found[1]) if found else None


def checkpoints(folder: Path) -> list[Path]:
    """All that is named like a checkpoint, newest first. Nothing if there is no such folder."""
    try:
        found = [(step, path) for path in folder.iterdir() if (step := step_of(path)) is not None]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"can't read the checkpoints in {folder}: {error.strerror}") from error
    # Of one step, the one that is being replaced comes last.
    return [path for _, path in sorted(found, key=lambda item: (-item[0], item[1].suffix))]


def sweep(folder: Path, current: Draft | None = None) -> None:
    """Removes drafts that nobody writes any more: those of dead runs, and older ones of the current draft's run."""
    for path in folder.iterdir():
        if path.name.startswith(files.GONE) or (path.name.startswith(".draft-") and _is_stale(path, current)):
            files.remove(path)


def _is_stale(path: Path, current: Draft | None) -> bool:
    found = _DRAFT.fullmatch(path.name)
    if found is not None and current is not None and found[1] == current.run:
        return (int(found[2]), int(found[3])) < (current.step, current.view)
    try:
        return not is_alive(path)
    except OSError:
        return False  # a file system without locks can't tell: better a draft too many

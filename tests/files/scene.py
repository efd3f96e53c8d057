"""Workers of one run that handle the same files, in one process and without a run around them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal import files
from shoal.files.changing import Changing
from shoal.files.files import Chief, Files, Operation
from shoal.files.left_alone import LeftAlone
from shoal.files.looking import Looking
from shoal.files.making import Making
from shoal.files.opening import Opening
from shoal.files.private import PrivateFiles
from shoal.observe.phases import Phase

assert files


class Scene:
    """A run's folder, the user's folder, and who is the chief."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.data = folder / "data"
        self.run.mkdir()
        self.data.mkdir()
        (self.run / "run.json").write_text("{}")
        self.chief = "worker-0"

    def worker(self, number: int) -> Worker:
        return Worker(self, f"worker-{number}")


class Worker:
    """One of them: its functions on files, and what happens while it waits."""

    rank_was_asked = False

    def __init__(self, scene: Scene, id: str) -> None:
        self.scene = scene
        self.id = id
        self.is_in_call = False
        self.now = time.time()
        self.said: list[str] = []
        self.meanwhile: list[Callable[[], Any]] = []  # what the others do while it waits, one by one
        self.left = LeftAlone({}, str(scene.run / "tmp"), [str(scene.run)])
        self.private = scene.run / f"private-{id}"
        self.files = Files(scene.run, id, self.left, PrivateFiles(self._make), lambda: self.now)
        if scene.chief == id:
            self.files.become_chief()
        self.files.attach(self)
        self._opening, self._looking = Opening(self.files), Looking(self.files)
        self._changing, self._making = Changing(self.files), Making(self.files)

    def _make(self) -> str:
        self.private.mkdir()
        return str(self.private)

    # What a script does.

    def open(self, name: str, *args: Any) -> Any:
        return self._opening.open(self.scene.data / name, *args)

    def write(self, name: str, text: str, mode: str = "w") -> None:
        with self.open(name, mode) as file:
            file.write(text)

    def read(self, name: str) -> str:
        with self.open(name) as file:
            return str(file.read())

    def exists(self, name: str) -> bool:
        try:
            self._looking.stat(self.scene.data / name)
        except FileNotFoundError:
            return False
        return True

    def names(self, name: str = ".") -> list[str]:
        assert sorted(entry.name for entry in self._looking.scandir(self.scene.data / name)) == sorted(
            self._looking.listdir(self.scene.data / name)
        )
        return sorted(self._looking.listdir(self.scene.data / name))

    def mkdir(self, name: str) -> None:
        self._changing.mkdir(self.scene.data / name)

    def remove(self, name: str) -> None:
        self._changing.remove(self.scene.data / name)

    def rename(self, name: str, other: str) -> None:
        self._changing.replace(self.scene.data / name, self.scene.data / other)

    def rmtree(self, name: str) -> None:
        self._changing._rmtree(shutil.rmtree)(self.scene.data / name)

    def make(self, name: str, content: str) -> None:
        """As a download does: through files of its own making."""
        path = str(self.scene.data / name)
        self.files.make(Operation("fetch", path), lambda: self.write(name, content), lambda: None)

    # What the run does.

    def call(self) -> None:
        """The script comes to a fit, which goes on."""
        self.files.come()
        self.is_in_call = True
        self.files.meet(True)
        self.files.meet(False)

    def goes_on(self) -> None:
        self.is_in_call = False

    def becomes_chief(self) -> None:
        self.scene.chief = self.id
        self.files.become_chief()

    # The run, as its files see it.

    def chief(self) -> Chief:
        return Chief(self.scene.chief, os.getpid(), is_here=self.scene.chief != "elsewhere")

    def pause(self, seconds: float) -> None:
        assert self.meanwhile, "it waits, and nothing will happen"
        self.meanwhile.pop(0)()

    def record(self, phase: Phase, detail: str) -> None:
        self.said.append(f"{phase} {detail}")

    def rest(self) -> None:
        self.said.append("")

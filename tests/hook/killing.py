"""Kills members of a run with parameter servers, from outside."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import psutil

from shoal.observe.phases import Activity, Phase
from shoal.wire import status_page

from .runs import Going


class Killer:
    """Kills the processes of one run, so that every shard always has a copy left and somebody computes."""

    def __init__(self, run: Going, folder: Path, seed: int) -> None:
        self._run = run
        self._folder = folder  # in which the run has its own
        self._random = random.Random(seed)
        self.killed = Counter[str]()

    def members(self, kind: str) -> dict[str, int]:
        found = {}
        assert self._run.process.poll() is None, f"the run is over: {self._run.said()[-5000:]}"
        for child in psutil.Process(self._run.process.pid).children():
            try:
                words = child.cmdline()
            except psutil.Error:
                continue
            if kind == "coordinator" and "shoal.launch.coordinator" in words:
                found[kind] = child.pid
            elif "shoal.launch.worker" in words and words[words.index("shoal.launch.worker") + 2].startswith(kind):
                found[words[words.index("shoal.launch.worker") + 2]] = child.pid
        return found

    def strike(self, kind: str) -> str | None:
        """Who was killed. Not the only worker that computes: without any, a run is over."""
        members = self.members(kind)
        computing = [id for id in members if kind == "worker" and self.doing(id)[0] > 0]
        able = sorted(members.keys() - set(computing if len(computing) == 1 else ()))
        if not able:
            return None
        victim = self._random.choice(able)
        os.kill(members[victim], signal.SIGKILL)
        self.killed[kind] += 1
        return victim

    def pause(self, longest: float) -> None:
        time.sleep(self._random.uniform(0.0, longest))

    def doing(self, id: str) -> tuple[int, Activity]:
        """The last word on a member's status page."""
        found = [status_page.read(path) for path in self._folder.glob(f"shoal/*/{id}.status")]
        return next((read for read in found if read), (0, Activity()))

    def is_whole(self) -> bool:
        """Three servers serve, and every shard has its two copies, as far as the run has said."""
        said = self._run.said()
        serving = sum(self.doing(id)[1].phase is Phase.SERVING for id in self.members("server"))
        return serving == 3 and said.rfind("fewer than 2 copies") <= said.rfind("every shard has 2 copies again")

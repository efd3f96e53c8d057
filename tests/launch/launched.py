"""Real runs of tiny scripts, each in a world of its own: folders, processes, output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
from click.testing import CliRunner

from shoal import cli
from warm import Running, Warm

PATIENCE = 60.0  # seconds; only a broken run takes so long


def eventually(condition: Callable[[], object], what: str, within: float = PATIENCE) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


class World:
    """Folders for one test, and everything that was started in them."""

    def __init__(self, folder: Path, warm: Warm) -> None:
        self.folder = folder
        self._warm = warm
        self.runtime = folder / "r"
        self.runtime.mkdir(mode=0o700)
        self.environ = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "SCENE": str(folder),
        }
        self.prefix: list[str] = []  # before every command: what puts it onto another host
        self.starts_anew = False  # as users start it: where starting is what a test is about
        self._launched: list[Launched] = []

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text(_PRELUDE + dedent(text))
        return path

    def shoal(self, *words: object, stdin: int = subprocess.DEVNULL, **environ: str) -> Launched:
        """`shoal …`, running. It comes from the warm process, unless it begins with something special."""
        mark = f"-{len(self._launched)}" if self._launched else ""
        is_special = environ or self.prefix or stdin != subprocess.DEVNULL or self.starts_anew
        warm = None if is_special else self._warm
        launched = Launched(self, [str(word) for word in words], {**self.environ, **environ}, stdin, mark, warm)
        self._launched.append(launched)
        return launched

    def run(self, text: str, *options: object, arguments: tuple[str, ...] = (), **more: Any) -> Launched:
        """`shoal run --backend jax [options] script`, running."""
        return self.shoal("run", "--backend", "jax", *options, self.script(text), *arguments, **more)

    def python(self, text: str) -> subprocess.CompletedProcess[str]:
        """`python script`, the witness of what a script's end looks like."""
        script = self.folder / "plain.py"
        script.write_text(dedent(text))
        return subprocess.run([sys.executable, script], cwd=self.folder, capture_output=True, text=True, timeout=60)

    def customize(self, text: str) -> str:
        """What every Python process does first, if it is started with this as PYTHONPATH."""
        (self.folder / "sitecustomize.py").write_text(text)
        return os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])

    def marks(self, prefix: str) -> list[str]:
        """What the scripts left with `mark`."""
        return sorted(path.read_text() for path in self.folder.glob(f"mark-{prefix}-*"))

    def tell(self, word: str) -> None:
        """What scripts wait for with `until`."""
        (self.folder / f"word-{word}").touch()

    def processes(self) -> list[psutil.Process]:
        """Everything alive that was started in this world."""
        found = [process for process in self._warm.descendants() if is_alive(process)]
        for process in psutil.process_iter():
            try:
                is_here = process.environ().get("SCENE") == str(self.folder)
                if is_here and is_alive(process) and process not in found:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def is_clean(self) -> bool:
        home = self.runtime / "shoal"
        return not self.processes() and (not home.exists() or not list(home.iterdir()))

    def close(self) -> None:
        for process in self.processes():
            process.kill()
        for launched in self._launched:
            launched.wait()


def is_alive(process: psutil.Process) -> bool:
    """Also while it dies: it has lost its environment by then, but not yet its files."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Launched:
    """One `shoal` command."""

    def __init__(
        self, world: World, words: list[str], environ: dict[str, str], stdin: int, mark: str, warm: Warm | None
    ) -> None:
        self.world = world
        self._said = {name: world.folder / f"{name}{mark}" for name in ("out", "err")}
        self._out, self._err = (path.open("wb+") for path in self._said.values())
        words, folder = ["-m", "shoal", *words], world.folder
        self.process: Running | subprocess.Popen[bytes]
        if warm is not None:
            self.process = warm.start(words, environ, folder, self._out, self._err)
        else:
            command = [*world.prefix, sys.executable, *words]
            out, err = self._out, self._err
            self.process = subprocess.Popen(command, env=environ, cwd=folder, stdin=stdin, stdout=out, stderr=err)

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self._out.close()
        self._err.close()
        return code

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def out(self) -> str:
        return self._said["out"].read_text()

    @property
    def err(self) -> str:
        return self._said["err"].read_text()

    def log(self, id: str) -> str:
        (path,) = (self.world.folder / "state/shoal/logs").glob(f"*/{id}.log")
        return path.read_text()

    def pid(self, id: str) -> int:
        """A member's process, found by its command line. A list of processes misses some while others come and go."""
        found: list[int] = []
        eventually(lambda: found or found.extend(filter(None, [self.finds(id)])), f"{id} runs")
        return found[0]

    def finds(self, id: str) -> int | None:
        """The same; None if there is none."""
        for process in self.world.processes():
            try:
                words = process.cmdline()
            except psutil.Error:  # it has ended since: one that forks another, and is done
                continue
            if id in words or f"shoal.launch.{id}" in words:
                return process.pid
        return None


def status(world: World) -> list[dict[str, object]]:
    """`shoal status --json`: asked often, so without a process for each question."""
    result = CliRunner().invoke(cli.main, ["status", "--json"], env=world.environ, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    runs: list[dict[str, object]] = json.loads(result.stdout)
    return runs


# What every script may use. `exchange` waits as an exchange does that nobody else comes to; `forever` looks at
# nothing, as a long computation does; `until` waits for the test. Marks bear the worker's number, which stays.
# (That it changes the environment keeps keras from being imported for scripts that do not need it.)
_PRELUDE = """
import os, sys, time; os.environ.pop('NOTHING', None)
from pathlib import Path
import shoal
from shoal import session
from shoal.observe.phases import Phase

shoal.rank()  # who asks handles its files itself
me = session.current()
who = me.coordinator_link.member
def say(step, phase, detail="", exchanging=False):
    me.recorder.record(Phase[phase], detail, step, exchanging)
def mark(name, text=""):
    draft = Path(os.environ["SCENE"]) / f".{name}-{who.number}"
    draft.write_text(str(text))
    draft.rename(draft.with_name(f"mark-{name}-{who.number}"))
def exchange():
    while True: me.coordinator_link.wakeup.check(); time.sleep(0.01)
def forever():
    while True: time.sleep(0.01)
def until(word):
    while not (Path(os.environ["SCENE"]) / f"word-{word}").exists(): time.sleep(0.01)
"""

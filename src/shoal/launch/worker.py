"""A worker's or server's process: takes its cores, joins the run, runs the user's script as
`python script.py` would.

python -m shoal.launch.worker RUN_FOLDER MEMBER_ID CORE,CORE…|- DEATH_PIPE [TERMINAL_OUT,TERMINAL_ERR|- [PARENT]]

With PARENT, the launcher's process id, it is a guest: nobody of this host would end it if its launcher were killed.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO, cast

from shoal.cluster import folders, stacks
from shoal.cluster.exits import ENDED, INTERRUPTED, OUTSIDE, exit_code
from shoal.config import RunConfig
from shoal.errors import CutOff, Diverged, RaisedElsewhere, RunEnded, UsageError
from shoal.launch import death_pipe, logs
from shoal.launch.cores import settle_on
from shoal.launch.last_words import LastWords
from shoal.launch.parents import Guest
from shoal.launch.processes import let_interrupts_in
from shoal.wire.keys import RunKey

if TYPE_CHECKING:
    from io import TextIOWrapper

    from shoal.cluster.coordinator_link import CoordinatorLink
    from shoal.session import Session


def main(words: Sequence[str]) -> NoReturn:
    folder, id, cores, pipe = Path(words[0]), *words[1:4]
    terminal, parent = (*words[4:], *("-", "-")[len(words) - 4 :])
    guest = Guest(int(parent), folder) if parent != "-" else None
    settle = partial(settle_on, _numbers(cores))
    config = RunConfig.load(folder)
    if config.backend != "jax":  # only JAX's compiler would use more cores than one
        settle()
    death_pipe.keep(int(pipe))
    faulthandler.enable(all_threads=False)  # a native crash leaves its Python stack among the log's last lines
    stacks.answer(folder, id)
    for stream in (sys.stdout, sys.stderr):
        _flush_every_line(stream)
    log = _Log(Path(config.logs) if config.logs else None, id)
    code = _work(config, RunKey.load(folder / "key"), id, folder, _Terminal(_numbers(terminal)), log, settle)
    if guest is not None:
        guest.end()
    sys.exit(code)


def _numbers(text: str) -> list[int]:
    """`3,4`, or `-` for none."""
    return [int(number) for number in text.split(",") if number != "-"]


class _Terminal:
    """Where the chief prints. The other workers print to their logs until one of them becomes the chief."""

    def __init__(self, descriptors: list[int]) -> None:
        self._descriptors = descriptors
        for fd in descriptors:
            os.set_inheritable(fd, False)

    def take(self) -> None:
        """This worker is the chief now. Calling it again does nothing."""
        while self._descriptors:
            fd = self._descriptors.pop()
            os.dup2(fd, 1 + len(self._descriptors))
            os.close(fd)


class _Log:
    """Where a worker writes why its script ended: the launcher shows it once, however many workers say the same."""

    def __init__(self, folder: Path | None, id: str) -> None:
        self._folder = folder  # None: a guest, which says it where it prints
        self._id = id

    def write(self, text: str) -> None:
        if self._folder is None or not logs.add(self._folder, self._id, text):
            print(text, end="", file=sys.stderr)


def _work(
    config: RunConfig, key: RunKey, id: str, folder: Path, terminal: _Terminal, log: _Log, settle: Callable[[], None]
) -> int:
    """From joining the run to leaving it. Returns the process's exit code."""
    # After the cores are set: these bring libraries that count them.
    from shoal import session
    from shoal.hook.patching.chance import leave_nothing_to_chance

    if not config.is_single:
        leave_nothing_to_chance(config.seed)

    try:
        let_interrupts_in()
        run = session.start(config, key, id, folder, terminal.take, settle)
        signal.signal(signal.SIGTERM, lambda *_: run.drain("SIGTERM"))  # a notice: this machine is about to be taken
        try:
            code = _run_script(config, run, folder, log)
            run.close(ok=code == 0)
        except BaseException:
            run.close(ok=False)
            raise
    except CutOff as cut:
        print(f"shoal: {id} stops: {cut}", file=sys.stderr)
        return OUTSIDE
    except RunEnded as ended:
        # The launcher says why on the terminal, which is the chief's standard error.
        if id != logs.CHIEF:
            print(f"shoal: {id} stops: {ended}", file=sys.stderr)
        return ENDED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _run_script(config: RunConfig, run: Session, folder: Path, log: _Log) -> int:
    """Run it to its end; tell the run how it failed, if it did. Returns the exit code that Python would."""
    try:
        execute(config)
        run.check_script()
    except RunEnded:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and folders.was_interrupted(folder):
            raise
        _tell(error, config, run, log)
        return exit_code(error)
    return 0


def _tell(error: BaseException, config: RunConfig, run: Session, log: _Log) -> None:
    words = LastWords.of(error, Path(config.script))
    log.write(words.text)
    # Who disagrees, and what can't be distributed, is found by all workers alike. One that is torn out of that when the
    # first has left would otherwise go on alone. An error in the chief's own lines is the script's: whoever took the
    # chief's place would come to it, too. So would those who do not catch what others have caught.
    is_scripts = run.is_chief and run.is_in_script
    found_by_all = isinstance(error, Diverged | UsageError | RaisedElsewhere) and run.takes_part
    _coordinator_link(run).fail(error, words.text, words.where, of_all=is_scripts or found_by_all)


def _coordinator_link(run: Session) -> CoordinatorLink:
    assert run.coordinator_link is not None, "a session that was started has a link"
    return run.coordinator_link


def execute(config: RunConfig) -> None:
    """Returns when the script has come to a good end, be it by `sys.exit()`."""
    sys.argv = [config.script, *config.arguments]
    try:
        if config.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(config.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(config.script).parent))
            runpy.run_path(config.script, run_name="__main__")
    except SystemExit as exit:
        if exit_code(exit) != 0:
            raise


def _flush_every_line(stream: TextIO) -> None:
    """What a worker printed must be in its log when it is killed."""
    cast("TextIOWrapper", stream).reconfigure(line_buffering=True)


if __name__ == "__main__":
    main(sys.argv[1:])

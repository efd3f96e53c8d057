"""A worker's or server's process: takes its cores, takes its seat, runs the user's script as `python script.py` would.

python -m shoal.launch.worker RUN_FOLDER MEMBER_ID CORE,CORE…|- [CANARY [TERMINAL_OUT,TERMINAL_ERR]]
"""

from __future__ import annotations

import faulthandler
import os
import random
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, TextIO, cast

from shoal.cluster.member import exit_code
from shoal.config import RunConfig
from shoal.errors import CutOff, Diverged, RunEnded, UsageError
from shoal.launch import canary
from shoal.launch.cores import settle_on
from shoal.launch.report import CHIEF
from shoal.wire.keys import RunKey

if TYPE_CHECKING:
    from io import TextIOWrapper

    from shoal.cluster.member import Seat
    from shoal.session import Session

INTERRUPTED = 130  # what shells return for a command that Ctrl-C ended
OUTSIDE = 76  # the run went on without this worker; another may come in its place
ENDED = 75  # the run was over before this worker's script was


def main(words: Sequence[str]) -> NoReturn:
    folder, id, cores, *more = Path(words[0]), *words[1:]
    settle = partial(settle_on, [int(core) for core in cores.split(",") if core != "-"])
    if os.environ.get("KERAS_BACKEND") != "jax":  # only JAX's compiler would use more cores than one
        settle()
    if more:
        canary.keep(int(more[0]))
    faulthandler.enable(all_threads=False)  # a native crash leaves its Python stack among the log's last lines
    for stream in (sys.stdout, sys.stderr):
        _flush_every_line(stream)
    sys.exit(_work(RunConfig.load(folder), RunKey.load(folder / "key"), id, folder, _Terminal(*more[1:]), settle))


class _Terminal:
    """Where the chief prints. The other workers print to their logs until one of them becomes the chief."""

    def __init__(self, descriptors: str = "") -> None:
        self._descriptors = [int(fd) for fd in descriptors.split(",") if fd]
        for fd in self._descriptors:
            os.set_inheritable(fd, False)

    def take(self) -> None:
        """This worker is the chief now. Calling it again does nothing."""
        while self._descriptors:
            fd = self._descriptors.pop()
            os.dup2(fd, 1 + len(self._descriptors))
            os.close(fd)


def _work(
    config: RunConfig, key: RunKey, id: str, folder: Path, terminal: _Terminal, settle: Callable[[], None]
) -> int:
    """From taking the seat to giving it up. Returns the process's exit code."""
    from shoal import session  # after the cores are set: it brings libraries that count them

    if config.workers > 1 or config.servers is not None:
        _seed_alike(config.seed)

    try:
        run = session.start(config, key, id, folder, terminal.take, settle)
        signal.signal(signal.SIGTERM, lambda *_: run.drain("SIGTERM"))  # a notice: this machine is about to be taken
        try:
            code = _run_script(config, run)
            run.close(ok=code == 0)
        except BaseException:
            run.close(ok=False)
            raise
    except CutOff as cut:
        print(f"shoal: {id} stops: {cut}", file=sys.stderr)
        return OUTSIDE
    except RunEnded as ended:
        # The launcher says why on the terminal, which is the chief's standard error.
        if id != CHIEF:
            print(f"shoal: {id} stops: {ended}", file=sys.stderr)
        return ENDED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _seed_alike(seed: int) -> None:
    """A script that shuffles or splits its data without a seed must do it alike in all processes of a run."""
    import numpy

    random.seed(seed)
    numpy.random.seed(seed)


def _run_script(config: RunConfig, run: Session) -> int:
    """Run it to its end; tell the run how it failed, if it did. Returns the exit code that Python would."""
    try:
        _execute(config)
    except (RunEnded, KeyboardInterrupt):
        raise
    except SystemExit as exit:
        if exit_code(exit) != 0:
            if not isinstance(exit.code, int):
                print(exit.code, file=sys.stderr)
            _seat(run).fail(exit, "")
        return exit_code(exit)
    except BaseException as error:
        own = _below_the_launcher(error.__traceback__)
        text = "".join(traceback.format_exception(type(error), error, own))
        print(text, end="", file=sys.stderr)
        # Who disagrees, and what can't be distributed, is found by all workers alike. One that is torn out of that
        # when the first has left would otherwise go on alone.
        _seat(run).fail(error, text, of_all=isinstance(error, Diverged | UsageError) and run.takes_part)
        return 1
    return 0


def _seat(run: Session) -> Seat:
    assert run.seat is not None, "a session that was started has a seat"
    return run.seat


def _execute(config: RunConfig) -> None:
    sys.argv = [config.script, *config.arguments]
    if config.is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(config.script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(config.script).parent))
        runpy.run_path(config.script, run_name="__main__")


def _below_the_launcher(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's own first frame on."""
    ours = (globals(), runpy.__dict__)
    while frames is not None and any(frames.tb_frame.f_globals is known for known in ours):
        frames = frames.tb_next
    return frames


def _flush_every_line(stream: TextIO) -> None:
    """What a worker printed must be in its log when it is killed."""
    cast("TextIOWrapper", stream).reconfigure(line_buffering=True)


if __name__ == "__main__":
    main(sys.argv[1:])

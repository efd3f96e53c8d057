"""`shoal.run`: workers for a function, from a notebook or any other Python process. The launcher is the command line's.

What the chief prints comes here, as it is printed. An interrupt (Ctrl-C, "interrupt the kernel") ends the run, and so
does the end of this process, however it comes.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import difflib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from shoal.errors import RunFailed, UsageError
from shoal.launch.apart import ENDED, REFUSED, REQUEST
from shoal.launch.function_source import script_for
from shoal.launch.local import Ended
from shoal.launch.plain_data import Travels
from shoal.launch.request import LaunchRequest

_OF_SCRIPTS = ("workers", "least", "auto", "script", "arguments", "is_module")  # what else a Request says
_OF_HOSTS = ("address", "key_file", "ray")
_OPTIONS = tuple(
    field.name for field in dataclasses.fields(LaunchRequest) if field.name not in (*_OF_SCRIPTS, *_OF_HOSTS)
)


def run(
    function: Callable[..., Any],
    n: int | str | tuple[int, int],
    args: Sequence[Any] | Mapping[str, Any] = (),
    **options: Any,
) -> Any:
    """Call `function` on `n` workers that train together; returns what it returned on the chief.

    `n` is a number, or a range such as (2, 6) or "2:6". `args` are the function's arguments: a list, or a dict by their
    names. `options` are those of `shoal run`, by their names: backend="jax", pieces=8, checkpoint="saved", ...

    The function is one of a module, of a notebook, or of the script, which then has the call behind
    `if __name__ == "__main__":`. Arguments and results are plain data: numbers, texts, lists, tuples, dicts, sets,
    paths, numpy arrays.

    RunFailed, with the run's last words, if the run fails; UsageError if something of this can't be used.
    """
    if _is_worker():
        raise UsageError(
            "shoal.run() was called on a worker, which loads the script or module that the function is from. Put the "
            'call behind `if __name__ == "__main__":`. A script that is run with `shoal run` needs no call at all.'
        )
    least, most = _workers(n)
    _check_options(options)
    return _call(function, args, {"workers": most, "least": least, **_as_told(options)}, None)


def run_by_ray(
    function: Callable[..., Any],
    n: int | None,
    args: Sequence[Any] | Mapping[str, Any],
    address: str,
    folder: Path,
    options: Mapping[str, Any],
) -> Any:
    """As `run`, on nodes of the Ray cluster at this address; `folder` is one that all of them see."""
    if _is_worker():
        raise UsageError(
            "shoal.ray.run() was called on a worker, which loads the script or module that the function is from. Put "
            'the call behind `if __name__ == "__main__":`.'
        )
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
        raise UsageError(f"n={n!r}: expected a number of workers, or None: one on each node")
    _check_options(options, "shoal.ray.run()")
    asked = {"workers": n or 0, "ray": address, **_as_told(options)}
    return _call(function, args, asked, folder)


def _call(function: Callable[..., Any], args: Any, asked: Mapping[str, Any], parent: Path | None) -> Any:
    text, data = script_for(function)
    with _folder(parent) as folder:
        script = folder / f"{function.__name__}().py"  # a name that no module has
        request = LaunchRequest(script=str(script), **asked)
        script.write_text(text, encoding="utf-8")
        Travels(folder).write("given", {"data": data, "args": _plain(args), "path": _path(), "argv": sys.argv}, "args")
        (folder / REQUEST).write_bytes(msgspec.json.encode(request))
        _launch(folder)
        return Travels(folder).read("result")


def _is_worker() -> bool:
    session = sys.modules.get("shoal.session")
    return session is not None and bool(session.is_running())


# What was asked for -----------------------------------------------------------------------------------


def _workers(n: Any) -> tuple[int | None, int]:
    match n:
        case bool():
            pass
        case int():
            return None, n
        case (int() as least, int() as most):
            return least, most
        case str():
            with contextlib.suppress(ValueError):
                few, colon, many = n.rpartition(":")
                return (int(few) if colon else None), int(many)
    raise UsageError(f"n={n!r}: expected a number of workers, or a range such as (2, 6)")


def _check_options(options: Mapping[str, Any], caller: str = "shoal.run()") -> None:
    for name in options:
        if name in _OF_HOSTS:
            raise UsageError(
                f"{name}: workers from other hosts can't join a function's run; use `shoal run` for that, or shoal.ray"
            )
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(_OPTIONS)}"
            raise UsageError(f"{caller} has no option {name}; {hint}")


def _as_told(options: Mapping[str, Any]) -> dict[str, Any]:
    """As the command line would have them."""
    told = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    if told.get("staleness") is not None:
        told["staleness"] = str(told["staleness"])
    # A notebook that has imported keras means the backend that it sees.
    keras = sys.modules.get("keras")
    if keras is not None and told.get("backend") is None:
        told["backend"] = keras.backend.backend()
    return told


def _plain(args: Any) -> list[Any] | dict[str, Any]:
    if isinstance(args, Mapping):
        return dict(args)
    if isinstance(args, list | tuple):
        return list(args)
    raise UsageError(f"args={args!r}: expected the function's arguments, as a list or as a dict by their names")


def _path() -> list[str]:
    """Where Python looks for modules here."""
    return [os.path.abspath(folder) for folder in sys.path]


# The run ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    """A new one, in the system's folder of temporary files if nobody says where."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-run-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _launch(folder: Path) -> None:
    """From its start to its good end."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "shoal.launch.apart", str(folder), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    was_interrupted = _relay(process)
    if was_interrupted:
        raise KeyboardInterrupt
    if (refused := folder / REFUSED).exists():
        raise UsageError(refused.read_text(encoding="utf-8"))
    if not (folder / ENDED).exists():
        raise RunFailed(f"the launcher ended with code {process.returncode} and said nothing", process.returncode)
    ended = msgspec.json.decode((folder / ENDED).read_bytes(), type=Ended)
    if ended.code != 0:
        raise RunFailed(ended.said, ended.code)


def _relay(process: subprocess.Popen[bytes]) -> bool:
    """Show what it says until it ends; whether this process was interrupted meanwhile, and ended it."""
    assert process.stdout is not None
    assert process.stderr is not None
    was_interrupted = False
    with selectors.DefaultSelector() as selector, process:
        selector.register(process.stdout, selectors.EVENT_READ, _Relay(sys.stdout))
        selector.register(process.stderr, selectors.EVENT_READ, _Relay(sys.stderr))
        while selector.get_map():
            try:
                for key, _ in selector.select():
                    said = os.read(key.fd, 1 << 16)
                    key.data.write(said)
                    if not said:
                        selector.unregister(key.fileobj)
            except KeyboardInterrupt:
                was_interrupted = True
                process.send_signal(signal.SIGINT)
            except BaseException:
                process.terminate()
                raise
    return was_interrupted


class _Relay:
    """Bytes of a pipe, shown as text where this process shows its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, said: bytes) -> None:
        """No bytes: that was all."""
        self._stream.write(self._decoder.decode(said, final=not said))
        self._stream.flush()

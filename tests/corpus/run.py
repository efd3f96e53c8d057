"""Runs the scripts of the corpus as their users would, plain and with two workers, and prints what came of it.

    cd tests; python -m corpus.run [--only WORD ...] [--backend NAME] [--jobs N] [--keep FOLDER]

A script agrees when it ends as its head says (see header.py): the same numbers to rounding, the same trend, or a
refusal. Numbers alone would not show that each worker trained the whole by itself; so the steps that Shoal says it
divided among the workers must be those that the plain run made. Exits with 1 when a script does something else.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .agreement import differences, other_files, other_trend
from .header import BACKENDS, SCRIPTS, Script, all_scripts

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

LIMIT = 240.0  # seconds for one run; only a broken one takes so long
ONE_THREAD = ("NPROC", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
DIVIDED = re.compile(r"^shoal: .*?(?:nothing was trained|([\d,]+) steps? · [\d,]+ samples?)", re.MULTILINE)
DOCUMENTED = ROOT / "docs" / "troubleshooting.md"


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    code: int | None  # None: it took too long
    stdout: str
    stderr: str
    seconds: float
    folder: Path  # where it ran, with what it wrote
    updates: int | None = None  # that its optimizers made, where a probe counted them

    @property
    def went_well(self) -> bool:
        return self.code == 0

    def last_words(self) -> str:
        if self.code is None:
            return f"did not end within {LIMIT:.0f} s"
        said = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        telling = [line for line in said if re.match(r"[\w.]*(Error|Exception|Refused|Distribute|Diverged)\b", line)]
        return (telling or said or ["no word"])[-1][:300]


@dataclass(frozen=True)
class Row:
    """What came of a script on a backend."""

    script: Script
    backend: str
    plain: Ended
    shoal: Ended | None
    found: str  # rounding, trend, refused, or what went wrong
    why: str = ""

    @property
    def is_as_told(self) -> bool:
        return is_as_told(self.script, self.found)


def is_as_told(script: Script, found: str) -> bool:
    """Or better: what agrees in trend may agree to rounding by luck."""
    return found == script.agrees or (script.agrees == "trend" and found == "rounding")


# Running -------------------------------------------------------------------------------------------------


def run(command: Sequence[str], environ: dict[str, str], folder: Path) -> Ended:
    """In `folder`. The launcher ends what it started when it is ended, as it is when it takes too long."""
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with open(folder / "stdout", "w+") as out, open(folder / "stderr", "w+") as err:
        process = subprocess.Popen(command, env=environ, cwd=work, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        code = None
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.terminate()
        finally:
            _end(process)
    read = partial(Path.read_text, errors="replace")
    return Ended(code, read(folder / "stdout"), read(folder / "stderr"), time.monotonic() - began, work)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_plain(script: Script, backend: str, environ: dict[str, str], folder: Path) -> Ended:
    """`python script.py`, on as many threads as a worker has."""
    counted = folder / "updates"
    environ = _with_backend(environ, script, backend) | {"PROBE": str(counted)} | dict.fromkeys(ONE_THREAD, "1")
    command = [sys.executable, *_words(script)]
    if script.is_notebook:
        command = [sys.executable, "-m", "corpus.cells", str(script.path), "alone"]
    return _with_updates(run(command, _on_path(environ, HERE / "probe", HERE.parent), folder), counted)


def _with_updates(ended: Ended, counted: Path) -> Ended:
    updates = int(counted.read_text()) if counted.exists() else None
    return Ended(ended.code, ended.stdout, ended.stderr, ended.seconds, ended.folder, updates)


def run_shoal(script: Script, backend: str, environ: dict[str, str], folder: Path) -> Ended:
    """`shoal run -n 2 script.py`; a notebook calls `shoal.run` itself."""
    environ = _with_backend(environ, script, backend)
    if script.is_notebook:
        command = [sys.executable, "-m", "corpus.cells", str(script.path)]
        return run(command, _on_path(environ, HERE.parent), folder)
    command = [sys.executable, "-m", "shoal", "run", "-n", "2", "--threads", "1", *_words(script)]
    return run(command, environ, folder)


def _on_path(environ: dict[str, str], *folders: Path) -> dict[str, str]:
    found = [*map(str, folders), environ.get("PYTHONPATH", "")]
    return environ | {"PYTHONPATH": os.pathsep.join(filter(None, found))}


def _words(script: Script) -> list[str]:
    return [str(script.path), *script.arguments]


def _with_backend(environ: dict[str, str], script: Script, backend: str) -> dict[str, str]:
    environ = {name: value for name, value in environ.items() if name != "KERAS_BACKEND"}
    return environ if script.chooses else environ | {"KERAS_BACKEND": backend}


def environment(folder: Path) -> dict[str, str]:
    """Nothing of the user's own is touched but the cache of compiled programs."""
    runtime = folder.parent / "r" / f"{zlib.crc32(folder.name.encode()):x}"  # short: the path of a socket has its limit
    runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        **_on_path(dict(os.environ), ROOT / "src"),
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_STATE_HOME": str(folder / "state"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "jupyter"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_COMPILATION_CACHE_DIR": str(Path.home() / ".cache" / "shoal" / "corpus"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


# Judging -------------------------------------------------------------------------------------------------


def judge(script: Script, plain: Ended, shoal: Ended) -> tuple[str, str]:
    """What was found, in the words of a script's head, and why it is not what it should be."""
    if not shoal.went_well:
        return _refusal(script, shoal)
    if script.agrees == "refused":
        return "trained", "it was to be refused"
    alone = trained_alone(script, plain, shoal)
    if alone:
        return "alone", alone
    why = differences(plain.stdout, shoal.stdout) or other_files(plain.folder, shoal.folder, contents=True)
    if not why:
        return "rounding", ""
    worse = other_trend(plain.stdout, shoal.stdout) or other_files(plain.folder, shoal.folder, contents=False)
    return ("other", worse) if worse else ("trend", why)


def _refusal(script: Script, shoal: Ended) -> tuple[str, str]:
    if script.agrees != "refused" or script.refusal not in shoal.stderr + shoal.stdout:
        return "failed", shoal.last_words()
    if script.refusal not in " ".join(DOCUMENTED.read_text().split()):
        return "refused, undocumented", f"{DOCUMENTED.name} does not say {script.refusal!r}"
    return "refused", ""


def trained_alone(script: Script, plain: Ended, shoal: Ended) -> str:
    """Why the run did not divide the steps that one machine makes; empty if it did."""
    divided = steps_divided(shoal.stderr)
    if divided is None:
        return "the run does not say what it divided"
    steps = (plain.updates or 0) / script.updates
    slack = 1 if script.agrees == "rounding" else 2  # early stopping may stop elsewhere
    if steps / slack <= divided <= steps * slack:
        return ""
    return f"{divided} steps were divided among the workers, plain made {steps:g}"


def steps_divided(stderr: str) -> int | None:
    """What the summaries of its runs say together; None if there is none."""
    found = DIVIDED.findall(stderr)
    return sum(int(steps.replace(",", "") or 0) for steps in found) if found else None


def row(script: Script, backend: str, folder: Path, reuse: Path | None = None) -> Row:
    """Runs a script both ways."""
    place = folder / f"{script.name.replace('/', '-')}-{backend}"
    environ = environment(place)
    plain = _plain_again(script, backend, reuse) if reuse else None
    if plain is None:
        plain = run_plain(script, backend, environ, place / "plain")
        if reuse and plain.went_well:
            _keep(plain, _kept(script, backend, reuse))
    if not plain.went_well:
        return Row(script, backend, plain, None, "fails plain", plain.last_words())
    shoal = run_shoal(script, backend, environ, place / "shoal")
    return Row(script, backend, plain, shoal, *judge(script, plain, shoal))


# Plain runs that are kept ----------------------------------------------------------------------------------


def _kept(script: Script, backend: str, reuse: Path) -> Path:
    """Named by all that decides what a plain run does: the script and the modules beside it."""
    beside = sorted(script.path.parent.glob("*.py")) if script.path.parent != SCRIPTS else [script.path]
    text = b"".join(path.read_bytes() for path in [script.path, *beside])
    return reuse / f"{script.path.stem}-{backend}-{hashlib.sha256(text).hexdigest()[:12]}"


def _keep(ended: Ended, place: Path) -> None:
    shutil.copytree(ended.folder.parent, place, dirs_exist_ok=True)
    (place / "seconds").write_text(str(ended.seconds))


def _plain_again(script: Script, backend: str, reuse: Path) -> Ended | None:
    place = _kept(script, backend, reuse)
    if not (place / "seconds").exists():
        return None
    out, err, seconds = ((place / name).read_text(errors="replace") for name in ("stdout", "stderr", "seconds"))
    return _with_updates(Ended(0, out, err, float(seconds), place / "work"), place / "updates")


# The table -------------------------------------------------------------------------------------------------


def show(row: Row) -> str:
    shoal = f"{row.shoal.seconds:6.1f}" if row.shoal else "     -"
    steps = "-" if row.shoal is None else steps_divided(row.shoal.stderr)
    mark = " " if row.is_as_told else "!"
    line = (
        f"{mark} {row.script.name:34} {row.backend:10} {row.plain.seconds:6.1f} {shoal} "
        f"{'?' if row.plain.updates is None else row.plain.updates:>6} {'?' if steps is None else steps:>6}  "
        f"{row.script.agrees:9} {row.found}"
    )
    return line if row.is_as_told else f"{line}\n    {row.why}"


HEAD = f"  {'script':34} {'backend':10} {'plain':>6} {'shoal':>6} {'update':>6} {'steps':>6}  {'expected':9} found"


def main() -> int:
    parser = argparse.ArgumentParser(description="The corpus, plain and with two workers.")
    parser.add_argument("--only", nargs="*", default=[], help="words of which a script's name must hold one")
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder for what the runs print and write")
    parser.add_argument("--reuse", type=Path, help="a folder of plain runs; of scripts that changed they are made anew")
    options = parser.parse_args()
    chosen = [
        (script, backend)
        for script in all_scripts()
        for backend in script.backends
        if (not options.only or any(word in script.name for word in options.only))
        and options.backend in (None, backend)
    ]
    if not chosen:
        parser.error(f"no script's name holds {' or '.join(options.only)}")
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory(prefix="corpus-") as temporary, ThreadPoolExecutor(options.jobs) as pool:
        folder = options.keep or Path(temporary)
        rows = []
        for done in pool.map(lambda pair: row(*pair, folder, options.reuse), chosen):
            print(show(done), flush=True)
            rows.append(done)
    agreeing = sum(row.is_as_told for row in rows)
    scripts = len({row.script.name for row in rows})
    print(f"{agreeing} of {len(rows)} as expected ({scripts} scripts)")
    return 0 if agreeing == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

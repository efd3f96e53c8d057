"""Is the culprit of a hang named within the stall time, with its stack? Each way to hang, on each backend.

seconds   from when it got stuck to when the culprit was shown, with its stack; the stall time is 2. Others may go on
          for a moment before they wait for it

python bench/hangs.py [--only loop ...] [--backends jax ...] > hangs.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "peers" / "hanging_training.py"
STALL = 2.0
LIMIT = 120.0
# How, and what shows that the right one was named: a place in its code, or that it is stopped.
WAYS = {
    "stop": r"worker-1 \(pid \d+\) is stopped",
    "loop": "in stuck_here",
    "generator": "in stuck_here",
    "loader": "in stuck_here",
    "lock": "in stuck_here",
    "before": "in stuck_here",
    "save": "in stuck_here",
}


def hang(how: str, backend: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "r").mkdir(mode=0o700)
        environ = {**os.environ, "XDG_RUNTIME_DIR": str(home / "r"), "XDG_STATE_HOME": str(home / "state")}
        environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        command = [sys.executable, "-m", "shoal", "run", "-n", "2", "--threads", "1", "--stall", str(STALL)]
        command += ["--no-live", "--backend", backend, str(SCRIPT), how, folder]
        with (home / "log").open("wb") as log:
            run = subprocess.Popen(command, env=environ, stdout=log, stderr=log, cwd=home)
            stopped = None
            try:
                if how == "stop":
                    stopped = _stop(environ)
                    (home / "stuck").write_text(str(time.time()))
                named_at = _until(home / "log", WAYS[how])
            finally:
                if stopped is not None:
                    os.kill(stopped, signal.SIGCONT)
                _end(run)
        said = (home / "log").read_text(errors="replace")
        stuck = float((home / "stuck").read_text()) if (home / "stuck").exists() else None
    waited = re.findall(r"shoal: (?:worker-\d|no worker) (?:has|have) [^\n]*", said)
    seconds = round(named_at - stuck, 1) if named_at is not None and stuck is not None else None
    return {"how": how, "backend": backend, "seconds": seconds, "said": waited[0] if waited else said[-300:]}


def _stop(environ: dict[str, str]) -> int:
    """Stops worker-1 as soon as it trains."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        told = subprocess.run(
            [sys.executable, "-m", "shoal", "status", "--json"],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        for member in [member for run in json.loads(told.stdout or "[]") for member in run.get("members", [])]:
            if member["id"] == "worker-1" and member["state"] == "training" and member["step"] > 5:
                os.kill(member["pid"], signal.SIGSTOP)
                return int(member["pid"])
        time.sleep(0.2)
    raise TimeoutError("it never trains")


def _until(log: Path, what: str) -> float | None:
    """When it was said."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if re.search(what, log.read_text(errors="replace")):
            return time.time()
        time.sleep(0.1)
    return None


def _end(run: subprocess.Popen[bytes]) -> None:
    for _ in range(2):
        if run.poll() is None:
            run.send_signal(signal.SIGINT)
            time.sleep(0.2)
    run.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=list(WAYS))
    parser.add_argument("--backends", nargs="*", default=["jax", "tensorflow", "torch"])
    given = parser.parse_args()
    results = []
    for how in given.only:
        for backend in given.backends:
            results.append(hang(how, backend))
            named = f"{results[-1]['seconds']} s" if results[-1]["seconds"] is not None else "NOT NAMED"
            print(f"{how:<10} {backend:<11} {named:<10} {results[-1]['said']}", file=sys.stderr, flush=True)
    print(json.dumps({"bench": "hangs", "stall": STALL, "hangs": results}, indent=1))


if __name__ == "__main__":
    main()

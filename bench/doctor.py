"""Does `shoal doctor` find what is wrong? Runs with one thing wrong with each, and runs with nothing wrong.

found    what it says of the run when that is over, the worst first. That it is right means: the first finding is of the
         expected kind, and says who, what or how
others   the share of all cores that programs besides the run took. From a tenth on, that cores are shared is true,
         and may stand before what is expected

python bench/doctor.py [--only NAME ...] [--seconds 12] > doctor.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.network import FIRST, Hosts, may_make_hosts

SHOAL = [sys.executable, "-m", "shoal"]
SCRIPT = Path(__file__).parent / "peers" / "doctor_training.py"
CORES = os.cpu_count() or 1
FAVOURED = -15  # a niceness
MUCH = 0.1  # of all cores, by others
LIMIT = 300.0  # seconds for a run
PORT = 4571
RATE = "300mbit"  # of the slow link

BUSY = """
import os, time
os.sched_setaffinity(0, {{1}})
while True:
    if time.time() % {period} < {pause}:
        time.sleep(0.01)
"""

Facts = dict[str, Any]


class Skipped(Exception):
    """This machine does not allow it."""


@dataclass(frozen=True)
class Scene:
    """A run, and what is to be found in it: the word of a finding, or nothing."""

    name: str
    expected: str | None
    wrong: str  # for the script
    options: str
    says: str = ""  # a pattern of what the first finding must say: who it is, what it is called, how
    disturb: Callable[[Home], AbstractContextManager[None]] = lambda home: nullcontext()
    doctor: Callable[[Home], list[str]] = lambda home: []  # before the command


@dataclass(frozen=True)
class Home:
    """Folders of one run."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        return {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.folder / "r"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    def shoal(self, *words: object, before: list[str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [*(before or []), *SHOAL, *map(str, words)]
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=LIMIT, check=False)

    def members(self, host: list[str] | None = None) -> dict[str, Facts]:
        """As `shoal status` tells them."""
        told = self.shoal("status", "--json", before=host).stdout
        return {member["id"]: member for run in json.loads(told or "[]") for member in run.get("members", [])}

    def until_training(self, id: str, host: list[str] | None = None) -> Facts:
        deadline = time.monotonic() + LIMIT / 2
        while time.monotonic() < deadline:
            member = self.members(host).get(id, {})
            if member.get("state") == "training" and member["step"] > 0:
                return member
            time.sleep(0.3)
        raise TimeoutError(f"{id} does not train")


@contextlib.contextmanager
def busy_core(home: Home, loops: int = 1, pause: float = 0.0) -> Iterator[None]:
    """Something else runs on the core of one worker. `pause`: only every other so many seconds."""
    pids = [home.until_training(id)["pid"] for id in ("worker-0", "worker-1")]
    for core, pid in enumerate(pids):
        for thread in psutil.Process(pid).threads():
            os.sched_setaffinity(thread.id, {core})
    busy = BUSY.format(pause=pause, period=2 * pause or 1.0)
    running = [subprocess.Popen([sys.executable, "-c", busy], start_new_session=True) for _ in range(loops)]
    try:
        yield
    finally:
        for loop in running:
            loop.kill()
            loop.wait()


def bursts(home: Home) -> AbstractContextManager[None]:
    """Many things at a time, and then nothing."""
    return busy_core(home, loops=6, pause=1.2)


@contextlib.contextmanager
def slow_server(home: Home) -> Iterator[None]:
    """The only server is stopped for most of each tenth of a second."""
    home.until_training("worker-0")
    server, over = psutil.Process(home.members()["server-0"]["pid"]), threading.Event()

    def hold_up() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):  # the run is over
            while not over.is_set():
                server.suspend()
                time.sleep(0.08)
                server.resume()
                time.sleep(0.02)

    thread = threading.Thread(target=hold_up)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def small_container(home: Home) -> list[str]:
    """The doctor looks at the run from where this little memory is allowed. Not the run itself: it would be killed."""
    limit = 'mount -t tmpfs none /sys/fs/cgroup && echo 500000000 > /sys/fs/cgroup/memory.max && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", limit, "sh"]


UNDISTURBED = [
    Scene(f"undisturbed, {backend}", None, "undisturbed", f"-n 2 --threads 1 --backend {backend}")
    for backend in ("jax", "tensorflow", "torch")
]
SHAPES = r"lately from \((\d+|None), \d+, 8\) to"
TWO = "-n 2 --threads 1 --backend torch --pieces 2"
SCENES = [
    Scene("slow generator", "data", "generator", "-n 2 --threads 1 --backend torch", "worker-0 reads for them"),
    Scene("slow data set", "data", "dataset", "-n 2 --threads 1 --backend jax", "the workers wait"),
    Scene("slow disk of one worker", "data", "disk", "-n 2 --threads 1 --backend torch", "worker-1 on"),
    Scene("sleeping callback", "callbacks", "callback", "-n 2 --threads 1 --backend tensorflow", "SleepyMonitor"),
    *(
        Scene(f"changing shapes, {backend}", "compiling", "shapes", f"-n 2 --threads 1 --backend {backend}", SHAPES)
        for backend in ("jax", "tensorflow")
    ),
    Scene("tiny pieces", "small pieces", "pieces", "-n 2 --threads 1 --backend torch --pieces 64", "of 64 in a step"),
    Scene(
        "many checkpoints",
        "checkpoints",
        "checkpoints",
        "-n 2 --threads 1 --backend torch --checkpoint {folder}/saved --checkpoint-every 100steps",
    ),
    Scene("busy core", "straggler", "undisturbed", TWO, "worker-1 on .* steadily.* had no core", busy_core),
    Scene("core busy in bursts", "straggler", "undisturbed", TWO, "worker-1 on .* in bursts", bursts),
    Scene("uneven pieces", "imbalance", "undisturbed", "-n 2 --threads 1 --backend torch --pieces 3"),
    Scene("too many workers", "cores", "undisturbed", f"-n {2 * CORES} --threads 1 --backend torch"),
    Scene("little memory", "memory", "undisturbed", "-n 2 --threads 1 --backend torch", doctor=small_container),
    Scene("throttled link", "exchange", "link", "", "comes at .* a second"),
    Scene(
        "slow server",
        "servers",
        "undisturbed",
        "-n 1 --threads 1 --backend torch --strategy ps --servers 1 --staleness 1",
        "wait for the servers",
        slow_server,
    ),
    *UNDISTURBED,
    Scene("undisturbed, servers", None, "undisturbed", "-n 1 --threads 1 --backend torch --strategy ps --servers 1"),
    Scene("unequal, balanced", None, "unequal", "-n 2 --threads 1 --backend torch --pieces 8"),
]


def play(scene: Scene, seconds: float) -> Facts:
    """The run, and what the doctor says of it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        (home.folder / "r").mkdir(mode=0o700)
        before, begun = _own_seconds(), psutil.cpu_times()
        try:
            (_over_a_link if scene.wrong == "link" else _here)(scene, home, seconds)
        except Skipped as why:
            return {"scene": scene.name, "skipped": str(why)}
        others = _others(begun, before)
        told = home.shoal("doctor", "--json", before=scene.doctor(home))
        if told.returncode:
            return {"scene": scene.name, "skipped": told.stderr.strip()[-200:]}
        return {"scene": scene.name, "expected": scene.expected, **judged(scene, json.loads(told.stdout), others)}


def judged(scene: Scene, findings: list[Facts], others: float) -> Facts:
    kinds = [finding["kind"] for finding in findings]
    # What is true on a machine that others use, too.
    elsewhere = {"cores"} | ({"straggler"} if any("had no core" in finding["what"] for finding in findings) else set())
    left = [kind for kind in kinds if kind not in elsewhere - {scene.expected}] if others >= MUCH else kinds
    right = left[:1] == [scene.expected] if scene.expected else not left
    if right and scene.expected:
        first = next(finding for finding in findings if finding["kind"] == scene.expected)
        right = re.search(scene.says, first["what"]) is not None
    return {
        "right": right,
        "others": round(others, 2),
        "found": [f"{finding['kind']}, {finding['lost']:.2f}: {finding['what']}" for finding in findings],
    }


def _here(scene: Scene, home: Home, seconds: float) -> None:
    words = scene.options.format(folder=home.folder).split()
    with _running(home, ["run", "--no-live", *words, SCRIPT, scene.wrong, seconds]) as run, scene.disturb(home):
        if run.wait(LIMIT):
            raise Skipped(f"the run failed: {(home.folder / 'log').read_text()[-800:]}")


def _over_a_link(scene: Scene, home: Home, seconds: float) -> None:
    if not may_make_hosts():
        raise Skipped("needs root and network namespaces")
    token, address = home.folder / "token", f"{FIRST}:{PORT}"
    options = ["-n", "1:2", "--threads", 1, "--backend", "torch", "--pieces", 2, "--transport", "tcp", "--no-live"]
    network = ["--address", address, "--key-file", token]
    with Hosts() as hosts:
        here, there = (["ip", "netns", "exec", name] for name in hosts.names)
        slow = home.folder / "the link is slow"
        run = _running(home, ["run", *options, *network, SCRIPT, scene.wrong, seconds, slow], here)
        with run as running, contextlib.ExitStack() as stack:
            home.until_training("worker-0", here)
            guest = Home(home.folder / "guest")
            (guest.folder / "r").mkdir(mode=0o700, parents=True)
            join = ["join", address, "--key-file", token, SCRIPT, scene.wrong, seconds, slow]
            joined = stack.enter_context(_running(guest, join, there))
            home.until_training("worker-1000", here)
            for name in hosts.names:
                throttle = f"tc qdisc add dev cable root tbf rate {RATE} burst 128kb latency 200ms"
                subprocess.run(["ip", "netns", "exec", name, *throttle.split()], check=True, timeout=20)
            slow.touch()
            if running.wait(LIMIT) or joined.wait(LIMIT):
                raise Skipped(f"the run failed: {(home.folder / 'log').read_text()[-800:]}")


@contextlib.contextmanager
def _running(home: Home, words: list[Any], before: list[str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with (home.folder / "log").open("wb") as log:
        command = [*(before or []), *SHOAL, *map(str, words)]
        process = subprocess.Popen(command, env=home.environ, stdout=log, stderr=log, cwd=home.folder)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


def _own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _others(begun: Any, before: float) -> float:
    now = psutil.cpu_times()
    whole = sum(now[:8]) - sum(begun[:8])
    idle = now.idle + now.iowait - begun.idle - begun.iowait
    return max(0.0, (whole - idle - (_own_seconds() - before)) / whole)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--favour", action="store_true", help="runs come before what else this machine does; root")
    given = parser.parse_args()
    if given.favour:
        os.nice(FAVOURED)  # whatever is started from here on has it, too
    results = []
    for scene in SCENES:
        if given.only and not any(word in scene.name for word in given.only):
            continue
        result = play(scene, given.seconds)
        results.append(result)
        word = "skipped" if "skipped" in result else "right" if result["right"] else "WRONG"
        print(f"{scene.name:<28} {scene.expected or 'nothing':<12} {word}", file=sys.stderr)
        for line in result.get("found", [result.get("skipped", "")]):
            print(f"    {line}", file=sys.stderr)
        if "others" in result:
            print(f"    others: {result['others']}", file=sys.stderr, flush=True)
    print(json.dumps({"bench": "doctor", "machine": platform.machine(), "cores": CORES, "scenes": results}, indent=1))


if __name__ == "__main__":
    main()

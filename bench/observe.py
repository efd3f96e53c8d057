"""What it costs to watch a run: samples per second with all that shows what it does, and without.

One run of two workers trains in short slices, in each of which it is watched in one of these ways (harness.py:rounds).
Two runs of one script differ by several percent for as long as they live, so it is compared with itself.

off, again     its workers keep no record, and its launcher, which has the live line, stands still. Alike (A/A)
record         as `shoal run` is without any option: with the record and the live line
everything     the same, with the page open in a headless Chromium, which has no core of its own, and shares the
               workers'. In all other slices the browser and the page's server stand still

The run has a `--trace`, which keeps four times as much of the record. That workers put what they do into the ring at
all is not in the ratios: it takes 0.6 µs of a step (docs/decisions/record.md). CPU seconds are counted by process:
workers, coordinator, launcher, the page's server and the browser.

    python bench/observe.py [--quick] [--models mlp conv] [--backends jax torch] > observe.json
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import shutil
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import psutil
from playwright.sync_api import Playwright, sync_playwright

from contestants import OUR_COORDINATOR, OUR_WORKER, child, cpu_seconds, running, together
from harness import SAME_WITHIN, Facts, Watch, report, rounds, spread
from jobs import BACKENDS, WORKERS, Job, shoal
from shoal.observe.record_files import dropped

# Samples per second, watched over unwatched: how many there must be.
GOALS = {"record": 0.99, "everything": 0.97}
OFF = ("off", "again")
MODELS = ("mlp", "conv")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
SERVER = "shoal.dashboard.process"
RECORD_OFF, RECORD_ON = signal.SIGRTMIN + 1, signal.SIGRTMIN + 2  # peers/switched_keras.py
WAKE, WAKE_BROWSER = 0.6, 2.0  # seconds in which what stood still catches up; a browser has much that is overdue
PACKAGES = ("keras", "jax", "jaxlib", "tensorflow", "torch", "numpy", "msgspec")


class Watched:
    """A run, and who watches it. In between nobody does."""

    def __init__(self, job: Job, browser: list[psutil.Process]) -> None:
        family = job[0].family
        self.workers = [member for member in family if OUR_WORKER in _words(member)]
        self.page = [found] if (found := child(family, SERVER)) else []
        self.browser = browser
        self.launcher = family[:1]
        self.coordinator = [found] if (found := child(family, OUR_COORDINATOR)) else []
        self.cpu: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        if len(self.workers) != WORKERS or not self.page or not self.coordinator:
            raise RuntimeError(f"not all processes of the run were found among {[_words(one) for one in family]}")

    def slice(self, way: str, once: Callable[[], float]) -> float:
        """One slice, watched in this way."""
        is_recorded, is_shown = way not in OFF, way == "everything"
        _tell(self.workers, RECORD_ON if is_recorded else RECORD_OFF)
        _tell(self.launcher, signal.SIGCONT if is_recorded else signal.SIGSTOP)
        _tell([*self.page, *self.browser], signal.SIGCONT if is_shown else signal.SIGSTOP)
        time.sleep(WAKE_BROWSER if is_shown else WAKE)
        before = self._used()
        rate = once()
        for who, seconds in self._used().items():
            self.cpu[way][who] += seconds - before[who]
        return rate

    def wake(self) -> None:
        _tell([*self.launcher, *self.page, *self.browser], signal.SIGCONT)

    def _used(self) -> dict[str, float]:
        groups = ("workers", "coordinator", "launcher", "page", "browser")
        return {name: sum(map(cpu_seconds, getattr(self, name))) for name in groups}


def measure(
    model: str, backend: str, count: int, seconds: float, rng: random.Random, longest: float
) -> dict[str, Facts]:
    """Each way of watching against none."""
    until = time.monotonic() + longest
    with tempfile.TemporaryDirectory(prefix="bench-logs-") as folder, contextlib.ExitStack() as stack:
        logs = Path(folder) / "logs"
        pieces = ("--pieces", str(WORKERS))  # fixed: the run is not to change its mind on the way
        flags = ("--logs", str(logs), "--dashboard", "--trace", f"{folder}/trace.json", *pieces)
        job = shoal(model, backend, flags=flags, script="switched_keras.py")
        stack.enter_context(running(job))
        once = partial(together, job, seconds)
        once()
        browser = open_page(job, stack.enter_context(sync_playwright()), stack)
        watched = Watched(job, browser)
        stack.callback(watched.wake)
        ways = (*OFF, *GOALS)
        rates = rounds({way: partial(watched.slice, way, once) for way in ways}, count, rng, until)
        kept = {"bytes": sum(path.stat().st_size for path in logs.glob("*.spans*")), "dropped": dropped(logs)}
        commands = job[0].facts()["commands"]
    return {way: {**_judged(way, rates, watched.cpu), "kept": kept, "commands": commands} for way in GOALS}


def open_page(job: Job, playwright: Playwright, stack: contextlib.ExitStack) -> list[psutil.Process]:
    """The browser's processes, in which the run's page is open and shows something."""
    address = re.search(r"page: (http://\S+)", job[0].log())
    if address is None:
        raise RuntimeError(f"the run has no page:\n{job[0].log()[-800:]}")
    others = set(psutil.Process().children(recursive=True))
    context = playwright.chromium.launch_persistent_context(
        stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-profile-")),
        executable_path=CHROMIUM,
        headless=True,
        args=list(FLAGS),
    )
    stack.callback(context.close)
    page = context.new_page()
    page.goto(address[1])
    page.wait_for_selector("#timeline path", state="attached")
    return [process for process in psutil.Process().children(recursive=True) if process not in others]


def _judged(way: str, rates: Mapping[str, list[float]], cpu: Mapping[str, Mapping[str, float]]) -> Facts:
    base = [statistics.mean(pair) for pair in zip(*(rates[name] for name in OFF), strict=True)]
    same = [b / a for a, b in zip(*(rates[name] for name in OFF), strict=True)]
    ratios = [watched / off for watched, off in zip(rates[way], base, strict=True)]
    is_void = abs(statistics.median(same) - 1) > SAME_WITHIN
    return {
        "unit": "samples per second",
        "watched": spread(rates[way]),
        "unwatched": spread(base),
        "ratio": spread(ratios),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "cpu_seconds": {who: round(used, 2) for who, used in cpu[way].items()},
        "cpu_seconds_unwatched": {who: round(used, 2) for who, used in cpu["off"].items()},
        "same_against_itself": {"ratio": spread(same), "void": is_void, "allowed": SAME_WITHIN},
        "goal": GOALS[way],
        "reached": statistics.median(ratios) >= GOALS[way] and not is_void,
    }


def _words(process: psutil.Process) -> list[str]:
    try:
        found: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return found


def _tell(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def table(found: dict[str, Facts]) -> list[list[str]]:
    rows = [["what", "watched/s", "unwatched/s", "ratio", "quartiles", "goal", "A/A", "CPU s by others than workers"]]
    for what, facts in found.items():
        check = facts["same_against_itself"]
        others = {who: used for who, used in facts["cpu_seconds"].items() if who != "workers"}
        rows.append(
            [
                what,
                f"{facts['watched']['median']:.4g}",
                f"{facts['unwatched']['median']:.4g}",
                f"{facts['ratio']['median']:.3f}",
                "{:.3f} to {:.3f}".format(*facts["ratio"]["quartiles"]),
                f"at least {facts['goal']}",
                f"{check['ratio']['median']:.3f}{' (void)' if check['void'] else ''}",
                ", ".join(f"{who} {used}" for who, used in others.items()),
            ]
        )
    return rows


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--models", nargs="+", choices=MODELS, default=["mlp"])
    options.add_argument("--backends", nargs="+", choices=BACKENDS, default=["jax"])
    options.add_argument("--rounds", type=int, default=16, help="two slices of each run in each")
    options.add_argument("--seconds", type=float, default=2.0, help="length of a slice: the page draws once in it")
    options.add_argument("--longest", type=float, default=600.0, help="seconds after which no round begins")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="3 rounds: shows that it works")
    given = options.parse_args()
    if CHROMIUM is None:
        options.error("needs a browser: apt-get install chromium")
    if given.quick:
        given.rounds = 3
    watch = Watch()
    rng = random.Random(given.seed)
    found = {
        f"{model}, {backend}: {way}": facts
        for model in given.models
        for backend in given.backends
        for way, facts in measure(model, backend, given.rounds, given.seconds, rng, given.longest).items()
    }
    report({"bench": "observe", "settings": vars(given), "found": found, **watch.facts(PACKAGES)}, table(found))


if __name__ == "__main__":
    main()

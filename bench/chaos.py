"""Kills, stops and drains the processes of real runs, and checks that nothing of the training shows it.

    python bench/chaos.py --seed 7 --events 12 --backend torch --workers 3
    python bench/chaos.py --minutes 5                     # run after run over three backends, each with its own seed

A harm is planned (by a seed, or by a test) and done from outside: SIGKILL, SIGSTOP for longer than the deadline, or
SIGTERM, to whoever is in a role, at a random moment or in a phase of the step, as the victim's status page tells.
Checked at the end: exit code 0, the weights and histories of the undisturbed run, every step committed once and alike
by everyone who was there, every sample counted once per epoch, and nothing left behind.

Who holds the training's state and is the last one to do so is spared: without it there is nothing to go on from.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from chaos_moments import COMING_IN, IN_STEP, Moment, fits
from harness import ROOT, Watch, report, say, significant, spread
from shoal.observe.phases import Activity
from shoal.wire import status_page

SCRIPT = Path(__file__).resolve().parent / "chaos_training.py"
MARK = "SHOAL_CHAOS"  # in the environment of everything that a run starts
LIMIT = 380.0  # seconds for one run; only a broken one takes so long
PATIENCE = 90.0  # seconds until a harm whose moment does not come is given up
LOOK_EVERY = 0.001  # seconds between two looks at the status pages
COUNT_EVERY = 0.01  # seconds between two looks at who is alive
HOLD = -1.0  # as a pace: do not go on
PIECES, BATCH = 6, 12


Who = Literal["chief", "other", "newcomer", "coordinator", "anyone"]


@dataclass(frozen=True)
class Harm:
    """What is done to whom, and when: the first moment at which all of it is true."""

    who: Who = "anyone"
    doing: Moment = None  # what the victim does; None: whatever it does
    step: int = 0  # so many steps, over all fits, have been committed
    act: Literal["kill", "stop", "drain"] = "kill"
    count: int = 1  # victims, at once
    after: float = 0.0  # seconds between the moment and the act
    step_pause: float = 0.02  # seconds after each step until then


@dataclass
class Event:
    """A harm that was done."""

    harm: Harm
    victim: str
    pid: int
    at: float
    step: int  # commits before it
    doing: Activity | None  # the last word on the victim's status page
    lost: float | None = None  # seconds: the gap between the commits around it, less a usual one
    said: list[str] = field(default_factory=list)  # what the run told the user until the next one


@dataclass
class Outcome:
    """What a disturbed run came to."""

    code: int | None
    events: list[Event]
    unfired: list[Harm]
    results: dict[str, dict[str, Any]]  # what the workers that finished wrote
    ledger: Ledger
    output: str
    left: list[str]
    seconds: float
    entries: list[float]  # seconds lost to each worker that was let in

    def faults(self, undisturbed: Outcome) -> list[str]:
        """All that shows the disturbance."""
        found = [f"exit code {self.code}"] if self.code != 0 else []
        found += [f"never done: {harm}" for harm in self.unfired]
        found += self.ledger.faults(sorted(undisturbed.ledger.losses()))
        found += [f"left behind: {thing}" for thing in self.left]
        if not self.results:
            found.append("nobody wrote a result")
        expected = next(iter(undisturbed.results.values()))
        for worker, result in self.results.items():
            odd = [name for name in expected if result.get(name) != expected[name]]
            found += [f"{worker} ended with other {name}" for name in odd]
        if self.ledger.epochs != undisturbed.ledger.epochs:
            found.append("the logs of an epoch differ")
        if self.ledger.losses() != undisturbed.ledger.losses():
            found.append("the losses of steps differ")
        if self.summary != undisturbed.summary:
            found.append(f"the summary says {self.summary!r} instead of {undisturbed.summary!r}")
        return found

    @property
    def summary(self) -> str:
        """What the last line says was trained."""
        said = re.findall(r"^shoal: (.* samples) · ", self.output, re.MULTILINE)
        return said[-1] if said else ""


Key = tuple[int, int, int]  # fit, epoch, batch


class Ledger:
    """What the workers wrote down, read while it grows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.commits: dict[str, list[tuple[float, Key, str]]] = {}  # worker -> when, which step, its loss
        self.epochs: dict[tuple[int, int], set[str]] = {}  # (fit, epoch) -> what was told about it
        self._keys: set[Key] = set()

    @property
    def steps(self) -> int:
        return len(self._keys)

    def read(self) -> None:
        for path in self._folder.glob("*.ledger"):
            begin = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(begin)
                new, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = begin + len(new) + len(newline)
            for line in new.splitlines():
                self._take(path.stem, json.loads(line))

    def _take(self, worker: str, line: Any) -> None:
        if isinstance(line, dict):
            logs = json.dumps(line["logs"], sort_keys=True)
            self.epochs.setdefault((line["fit"], line["epoch"]), set()).add(logs)
            return
        when, fit, epoch, batch, loss = line
        self.commits.setdefault(worker, []).append((when, (fit, epoch, batch), loss))
        self._keys.add((fit, epoch, batch))

    def losses(self) -> dict[Key, set[str]]:
        losses: dict[Key, set[str]] = {}
        for lines in self.commits.values():
            for _, key, loss in lines:
                losses.setdefault(key, set()).add(loss)
        return losses

    def times(self) -> list[float]:
        """When each step was committed by the first who wrote it down, in order."""
        first: dict[Key, float] = {}
        for lines in self.commits.values():
            for when, key, _ in lines:
                first[key] = min(when, first.get(key, when))
        return [first[key] for key in sorted(first)]

    def faults(self, expected: Sequence[Key]) -> list[str]:
        """Every step once and in its order on each worker, alike on all, none missing; every sample once per epoch."""
        found = [f"step {key} was never committed" for key in sorted(set(expected) - self._keys)]
        found += [f"step {key} is one too many" for key in sorted(self._keys - set(expected))]
        for worker, lines in self.commits.items():
            own = [key for _, key, _ in lines]
            begin = expected.index(own[0]) if own[0] in expected else 0
            if own != expected[begin : begin + len(own)]:
                found.append(f"{worker} committed steps twice or out of order")
        found += [f"step {key} gave {len(told)} losses" for key, told in self.losses().items() if len(told) > 1]
        for (fit, epoch), told in self.epochs.items():
            if len(told) > 1:
                found.append(f"fit {fit} epoch {epoch}: the workers' logs differ")
            for name, value in json.loads(next(iter(told))).items():
                if "miscounted" in name and float.fromhex(value) != 0:
                    found.append(f"fit {fit} epoch {epoch}: a sample did not count exactly once ({name})")
        return found


class Scene:
    """A run's processes, as seen from outside."""

    def __init__(self, launcher: int, runtime: Path, ledger: Ledger, workers: int) -> None:
        self._launcher = launcher
        self._runtime = runtime
        self._ledger = ledger
        self._initial = {f"worker-{number}" for number in range(workers)}
        self._ids: dict[int, str] = {}  # pid -> who it is
        self._alive: list[int] = []
        self._counted = 0.0
        self._run: Path | None = None  # the run's folder, once there is one
        self.harmed: set[int] = set()

    def processes(self) -> dict[str, int]:
        """Everyone alive, by id: workers and the coordinator."""
        if time.monotonic() - self._counted > COUNT_EVERY:
            self._alive, self._counted = self._children(), time.monotonic()
        found = {}
        for pid in self._alive:
            if pid not in self._ids and (id := self._identify(pid)):
                self._ids[pid] = id
            if pid in self._ids and pid not in self.harmed:
                found[self._ids[pid]] = pid
        return found

    def doing(self, worker: str) -> Activity:
        """The last word on a worker's status page."""
        self._run = self._run or next(self._runtime.glob("shoal/*"), None)
        read = status_page.read(self._run / f"{worker}.status") if self._run is not None else None
        return read[1] if read is not None else Activity()

    def has(self, harm: Harm) -> bool:
        """Whether there are victims that will do what they are to do once the training goes on."""
        return bool(self._victims(harm, harm.doing if harm.who == "newcomer" else None, random.Random()))

    def somebody_waits(self) -> bool:
        return any(self.doing(id).phase is COMING_IN[-1] for id in self.processes() if id != "coordinator")

    def choose(self, harm: Harm, rng: random.Random) -> dict[str, int]:
        """Victims for whom the moment has come; none if there are not enough."""
        return self._victims(harm, harm.doing, rng)

    def _victims(self, harm: Harm, doing: Moment, rng: random.Random) -> dict[str, int]:
        alive = self.processes()
        if harm.who == "coordinator":
            return {id: pid for id, pid in alive.items() if id == "coordinator"}
        workers = sorted((id for id in alive if id != "coordinator"), key=lambda id: int(id.rpartition("-")[2]))
        holders = [id for id in workers if self._holds(id)]
        able = [id for id in self._in_role(harm, workers, holders) if fits(self.doing(id), doing)]
        rng.shuffle(able)
        chosen: list[str] = []
        for id in able:
            spared = [holder for holder in holders if holder not in chosen and holder != id]
            if len(chosen) < harm.count and spared:
                chosen.append(id)
        return {id: alive[id] for id in chosen} if len(chosen) == harm.count else {}

    def _in_role(self, harm: Harm, workers: list[str], holders: list[str]) -> list[str]:
        match harm.who:
            case "chief":
                return holders[:1]
            case "other":
                return holders[1:]
            case "newcomer":
                return [id for id in workers if id not in holders]
            case _:
                return list(holders if harm.doing else workers)  # only those who train do what can be waited for

    def _holds(self, worker: str) -> bool:
        """Whether this worker has the training's state: it has committed, or all are at the beginning."""
        return worker in self._ledger.commits or (self._ledger.steps == 0 and worker in self._initial)

    def _children(self) -> list[int]:
        found: list[int] = []
        for path in Path(f"/proc/{self._launcher}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue  # the thread, or the launcher, has just ended
        return found

    def _identify(self, pid: int) -> str:
        """Empty for the prefork process, and for one that was just forked and still has the words of its parent."""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            return ""
        if "shoal.launch.coordinator" in words:
            return "coordinator"
        return words[words.index("shoal.launch.worker") + 2] if "shoal.launch.worker" in words else ""


class Chaos:
    """One disturbed run."""

    def __init__(
        self,
        folder: Path,
        harms: Sequence[Harm],
        options: Sequence[str],
        arguments: Sequence[str],
        seed: int = 0,
        environ: Mapping[str, str] = os.environ,
        script: Path = SCRIPT,
    ) -> None:
        """`folder` is new and the run's own; `options` are those of `shoal run`, `arguments` the script's."""
        self._out = folder / "out"
        self._out.mkdir(parents=True)
        self._runtime = folder / "r"
        self._runtime.mkdir(mode=0o700)
        self._folder = folder
        self._harms = list(harms)
        self._rng = random.Random(seed)
        self._ledger = Ledger(self._out)
        self._output: list[tuple[float, str]] = []
        self._held: list[float] = []  # moments at which the training was made to wait
        self._environ = {
            "XDG_CACHE_HOME": str(folder / "cache"),
            **environ,
            "XDG_RUNTIME_DIR": str(self._runtime),
            "XDG_STATE_HOME": str(folder / "state"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CHAOS_SLOW_SAVE": str(self._out / "pace"),
            MARK: str(folder),
        }
        self._command = [sys.executable, "-m", "shoal", "run", *options, str(script), str(self._out), *arguments]
        self._workers = int(options[options.index("-n") + 1].rpartition(":")[2])

    def run(self) -> Outcome:
        begun = time.monotonic()
        shared = set(os.listdir("/dev/shm"))
        events: list[Event] = []
        unfired: list[Harm] = []
        if self._harms:
            self._await([harm.doing for harm in self._harms])
            self._set_pace(self._harms[0].step_pause)
        process = subprocess.Popen(
            self._command, cwd=self._folder, env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        listener = threading.Thread(target=self._listen, args=(process,))
        listener.start()
        try:
            scene = Scene(process.pid, self._runtime, self._ledger, self._workers)
            for number, harm in enumerate(self._harms):
                self._await([later.doing for later in self._harms[number:]])
                done = list(self._wait_and_do(harm, scene, process, begun + LIMIT))
                events += done
                unfired += [] if done else [harm]
            self._await([])
            self._set_pace(0.0)
            process.wait(max(1.0, begun + LIMIT - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            left = [] if process.poll() is None else self._left(shared)
            for orphan in self._marked():
                orphan.kill()
            process.wait()
            listener.join()
        self._ledger.read()
        code = process.returncode if process.returncode is not None and process.returncode >= 0 else None
        outcome = Outcome(
            code,
            events,
            unfired,
            {path.stem: json.loads(path.read_text()) for path in sorted(self._out.glob("*.json"))},
            self._ledger,
            "\n".join(line for _, line in self._output),
            left,
            time.monotonic() - begun,
            [],
        )
        self._tell_losses(outcome)
        return outcome

    # The harm ---------------------------------------------------------------------------------------

    def _wait_and_do(self, harm: Harm, scene: Scene, process: subprocess.Popen[bytes], limit: float) -> Iterator[Event]:
        until = min(limit, time.monotonic() + PATIENCE)
        looked = 0.0
        while process.poll() is None and time.monotonic() < until:
            if time.monotonic() - looked > 0.005:
                self._ledger.read()
                pace = self._pace_before(harm, scene)
                self._set_pace(pace)
                if pace == HOLD:
                    self._held.append(time.monotonic())
                looked = time.monotonic()
            if self._ledger.steps >= harm.step:
                victims = scene.choose(harm, self._rng)
                if victims and (done := self._do(harm, victims, scene)):
                    yield from done
                    return
            time.sleep(LOOK_EVERY)

    def _do(self, harm: Harm, victims: Mapping[str, int], scene: Scene) -> list[Event]:
        """All victims, if each is still where it should be once it can't move; none otherwise."""
        if harm.after:
            time.sleep(harm.after)
        held = {}
        for id, pid in victims.items():
            try:
                os.kill(pid, signal.SIGSTOP)
                held[id] = pid
            except ProcessLookupError:
                continue
        exact = not harm.doing or harm.after or harm.who == "coordinator"
        if len(held) < len(victims) or not (exact or all(fits(scene.doing(id), harm.doing) for id in victims)):
            for pid in held.values():
                os.kill(pid, signal.SIGCONT)
            return []
        now = time.monotonic()
        self._ledger.read()
        self._set_pace(HOLD)  # until the next harm's pace is known: a survivor must not run past its moment
        events = []
        for id, pid in held.items():
            scene.harmed.add(pid)
            if harm.act == "kill":
                os.kill(pid, signal.SIGKILL)
            elif harm.act == "drain":
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)
            doing = scene.doing(id) if id != "coordinator" else None
            events.append(Event(harm, id, pid, now, self._ledger.steps, doing))
        return events

    def _pace_before(self, harm: Harm, scene: Scene) -> float:
        """Fast until the harm's step is near; no step while those whom it needs are still coming."""
        if self._ledger.steps < harm.step - 5:
            return 0.0
        if self._ledger.steps == 0 or scene.has(harm) or (harm.who != "newcomer" and scene.somebody_waits()):
            return harm.step_pause
        return HOLD

    def _set_pace(self, pause: float) -> None:
        path = self._out / "pace"
        if pause == 0.0:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text() != str(pause):
            self._write(path, str(pause))

    def _await(self, phases: Sequence[Moment]) -> None:
        """Phases in which somebody is to be hit: the training waits for it in the one that comes but once."""
        self._write(self._out / "awaited", "\n".join(str(phase) for phase in phases if phase is not None))

    def _write(self, path: Path, text: str) -> None:
        draft = self._out / f".{path.name}"
        draft.write_text(text)
        draft.replace(path)

    # What came of it --------------------------------------------------------------------------------

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._output.append((time.monotonic(), line.decode(errors="replace").rstrip()))

    def _tell_losses(self, outcome: Outcome) -> None:
        times = outcome.ledger.times()
        for event, after in zip(outcome.events, [*outcome.events[1:], None], strict=False):
            end = after.at if after is not None else float("inf")
            event.said = [line for at, line in self._output if event.at <= at < end and line.startswith("shoal:")]
            event.lost = _gap_at(times, event.at, self._held)
        came = [lines[0][0] for worker, lines in outcome.ledger.commits.items() if lines[0][1] != (0, 0, 0)]
        outcome.entries += [gap for at in came if (gap := _gap_at(times, at - 1e-4, self._held)) is not None]

    def _marked(self) -> list[psutil.Process]:
        """Living processes of this run."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self._folder) and process.status() != "zombie":
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def _left(self, shared: set[str]) -> list[str]:
        things = [f"process {process.pid}: {' '.join(process.cmdline())}" for process in self._marked()]
        things += [str(path) for path in self._runtime.glob("shoal/*")]
        return things + [
            f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name not in shared and "shoal" in name
        ]


def _gap_at(times: Sequence[float], at: float, held: Sequence[float]) -> float | None:
    """How much longer the gap between two commits around this moment was than those near it; None if we made it."""
    place = sum(1 for when in times if when <= at)
    if not 0 < place < len(times):
        return None
    if any(times[place - 1] <= when <= times[place] for when in held):
        return None
    gaps = [b - a for a, b in itertools.pairwise(times)]
    near = gaps[max(0, place - 9) : place - 1] + gaps[place : place + 8]
    return max(0.0, gaps[place - 1] - (statistics.median(near) if near else 0.0))


# Plans ----------------------------------------------------------------------------------------------


# How often each.
KINDS = {"phase": 6, "moment": 6, "coming": 3, "again": 2, "two": 2, "coordinator": 2, "stop": 1, "drain": 1}


def random_plan(rng: random.Random, events: int, steps: int) -> list[Harm]:
    """Harms that fall all over the run: its steps, its roles, the phases of a step; some at once, some in a row."""
    harms: list[Harm] = []
    at = sorted(rng.randrange(steps * 3 // 4) for _ in range(events))
    coordinators = drains = 0
    while len(harms) < events:
        step = at[len(harms)]
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        who: Who = rng.choice(("chief", "other", "anyone"))
        match kind:
            case "phase":
                harms.append(Harm(who, rng.choice(IN_STEP), step))
            case "moment":
                harms.append(Harm(who, None, step, after=rng.uniform(0, 0.1)))
            case "coming":
                after = rng.uniform(0, 0.03)
                harms.append(Harm(who, None, step))  # so that somebody comes
                harms.append(Harm("newcomer", rng.choice(COMING_IN), step, after=after, step_pause=0.005))
            case "again":
                harms.append(Harm(who, rng.choice(IN_STEP), step))
                harms.append(Harm("anyone", None, step, after=rng.uniform(0, 0.05)))
            case "two":
                harms.append(Harm("anyone", None, step, count=2, after=rng.uniform(0, 0.05)))
            case "coordinator" if coordinators < 8:
                coordinators += 1
                harms.append(Harm("coordinator", None, step, after=rng.uniform(0, 0.05)))
                harms.append(Harm("anyone", None, step, after=rng.uniform(0, 0.2)))
            case "stop":
                harms.append(Harm(who, None, step, "stop", after=rng.uniform(0, 0.02)))
            case "drain" if not drains:  # nobody is started in the place of one that left
                drains += 1
                harms.append(Harm(who, None, step, "drain", after=rng.uniform(0, 0.02)))
    return harms


def undisturbed(
    folder: Path,
    backend: str,
    arguments: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    more: Sequence[str] = (),
) -> Outcome:
    """The same training on one worker, with the same pieces. `more`: options that change its numbers."""
    options = ["-n", "1", "--pieces", str(PIECES), "--threads", "1", "--backend", backend, *more]
    return Chaos(folder, [], options, arguments, environ=environ).run()


def disturbed_options(backend: str, workers: int, standby: int = 1, timeout: float = 2.0) -> list[str]:
    words = f"-n {workers} --pieces {PIECES} --threads 1 --backend {backend} --timeout {timeout}"
    return f"{words} --max-restarts 1000 --standby {standby}".split()


# The tool -------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--events", type=int, default=15, help="harms per run")
    parser.add_argument("--backend", choices=("jax", "tensorflow", "torch"), help="default: each in turn")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=0.0, help="begin runs until so long; default: one per backend")
    parser.add_argument("--keep", type=Path, default=None, help="a folder for what the runs write")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 20)
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        root = given.keep or Path(temporary)
        return _session(root, seed, given)


def _session(root: Path, seed: int, given: argparse.Namespace) -> int:
    watch = Watch()
    epochs, steps, fits = 4, 40, 2
    arguments = f"--fits {fits} --epochs {epochs} --steps {steps} --batch {BATCH} --validate".split()
    environ = {**os.environ, "XDG_CACHE_HOME": str(root / "cache")}
    backends = [given.backend] if given.backend else ["torch", "jax", "tensorflow"]
    witnesses: dict[str, Outcome] = {}
    runs: list[dict[str, Any]] = []
    until = time.monotonic() + given.minutes * 60
    while len(runs) < len(backends) or time.monotonic() < until:
        backend = backends[len(runs) % len(backends)]
        if backend not in witnesses:
            witnesses[backend] = undisturbed(root / f"undisturbed-{backend}", backend, arguments, environ)
        number = seed + len(runs)
        harms = random_plan(random.Random(number), given.events, fits * epochs * steps)
        options = disturbed_options(backend, given.workers)
        outcome = Chaos(root / f"run-{number}", harms, options, arguments, number, environ).run()
        faults = outcome.faults(witnesses[backend])
        runs.append({"seed": number, "backend": backend, "faults": faults, **_facts(outcome)})
        say(f"seed {number} {backend}: {len(outcome.events)} harms, {outcome.seconds:.0f} s, {faults or 'no fault'}")
        if faults:
            say(outcome.output[-6000:])
    _report(seed, runs, watch)
    return 1 if any(run["faults"] for run in runs) else 0


def _told(event: Event) -> dict[str, Any]:
    told = asdict(event)
    told["harm"]["doing"], told["doing"] = str(event.harm.doing or ""), str(event.doing or "")
    return told


def _facts(outcome: Outcome) -> dict[str, Any]:
    return {
        "code": outcome.code,
        "seconds": round(outcome.seconds, 1),
        "events": [_told(event) for event in outcome.events],
        "entries": outcome.entries,
    }


def _report(seed: int, runs: list[dict[str, Any]], watch: Watch) -> None:
    events = [event for run in runs for event in run["events"]]
    kinds: dict[str, list[float]] = {}
    for event in events:
        harm = event["harm"]
        role = "coordinator" if event["victim"] == "coordinator" else harm["who"]
        kind = f"{harm['act']} {role}" + (f" ({harm['doing']})" if harm["doing"] in IN_STEP else "")
        if event["lost"] is not None:
            kinds.setdefault(kind, []).append(event["lost"])
    kinds["a worker let in"] = [lost for run in runs for lost in run["entries"]]
    kinds = {kind: lost for kind, lost in sorted(kinds.items()) if lost}
    table = [["harm", "events", "median s lost", "99th percentile", "worst"]]
    for kind, lost in kinds.items():
        ordered = sorted(lost)
        high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        table.append([kind, str(len(lost)), *(f"{x:.3f}" for x in (statistics.median(lost), high, ordered[-1]))])
    kills, stops, drains = (sum(event["harm"]["act"] == act for event in events) for act in ("kill", "stop", "drain"))
    faults = [f"seed {run['seed']}: {fault}" for run in runs for fault in run["faults"]]
    summary = {"runs": len(runs), "kills": kills, "stops": stops, "drains": drains, "faults": faults}
    told = f"{len(runs)} runs, {kills} kills, {stops} stops, {drains} drains, {len(faults)} faults"
    table.append([told, "", "", "", ""])
    lost = {kind: spread([significant(x) for x in values]) for kind, values in kinds.items()}
    facts = watch.facts(["keras", "jax", "tensorflow", "torch"])
    report({"bench": "chaos", "seed": seed, "summary": summary, "lost": lost, "runs": runs, **facts}, table)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "bench"))
    sys.exit(main())

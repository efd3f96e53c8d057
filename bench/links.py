"""Step time and bytes with each codec and with local SGD between two hosts, beside torch DDP (and its fp16 hook).

The hosts are network namespaces with a cable between them, which `tc tbf` limits (needs root). Ours and DDP are started
in them once for each network and number of workers. Then all methods take turns at all speeds of the cable: a pass is
every speed in a random order, and at each every method in a random order, the next pass the reverse. A ratio is of two
slices of one pass and one speed, except where it compares two speeds. Without a codec there are two, of which one is
measured against the other (A/A).

    of none     time of a step over that without a codec
    unshaped    rate of local SGD over its own rate when the cable has no limit
    bytes       what the first host's interface has sent, per step

On one host, with two workers and shared memory, `auto` is measured beside no codec only.

    python bench/links.py [--quick] [--rates 100 1000 0] [--networks large conv] [--methods none bf16 ...] > links.json
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from contestants import Processes, started
from harness import ROOT, SAME_WITHIN, Facts, Watch, report, say, spread
from jobs import PEERS, PYTHON, placed, worker_of_ours
from peers.turns import OURS, PEER

sys.path.append(str(ROOT))
from tests.network import FIRST, Hosts

NONE, AGAIN, AUTO = "none", "none again", "auto"
DDP = ("ddp", "ddp fp16")
LOCAL = ("local:50", "local:50:int8", "local:50:streaming:5", "local:50:int8:streaming:5")
METHODS = (NONE, AGAIN, "bf16", "int8", "topk:0.01", "lowrank:4", *LOCAL, AUTO, *DDP)
SHARED = (NONE, AGAIN, AUTO)  # what is measured on one host
EACH = {"large": (2, 1), "conv": (2,)}  # workers of a host
BATCH = {"large": 64, "conv": 8}  # of all workers together
PASSES = {"large": 4, "conv": 2}
SKIPPED = 2  # steps at the beginning of a slice
UNTIL_CHOSEN = 14  # the same with auto, which measures for 8 steps before it changes anything
FEWEST, MOST = 4, 150  # steps of a slice
PORTS = {OURS: 4567, PEER: 4571}
PATIENCE = 240.0  # seconds within which all are started, and within which a slice is over
GOALS = {"bf16": 0.55, "int8": 0.33}  # of the step without a codec, at 100 Mbit/s with 2 x 2 workers
LOCAL_GOAL, AUTO_GOAL = 0.95, 1.02
PACKAGES = ("keras", "torch", "numpy")


class Slice(NamedTuple):
    """What one turn has found."""

    pass_: int
    rate: int  # Mbit/s; 0: no limit
    method: str
    seconds: float  # of a step
    sent: float  # bytes of a step


def limit(hosts: Hosts, mbit: int) -> None:
    """Both directions, to so many Mbit/s; 0: no limit."""
    for name in hosts.names:
        subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "del", "dev", "cable", "root"], capture_output=True)
        if mbit:
            shape = f"tc qdisc add dev cable root tbf rate {mbit}mbit burst 256kb latency 300ms"
            subprocess.run(["ip", "netns", "exec", name, *shape.split()], check=True)


class Job:
    """Ours and DDP, started and waiting for their turns."""

    def __init__(self, folder: Path, processes: Sequence[Processes], workers: int) -> None:
        self._folder = folder
        self._processes = processes
        self._workers = workers
        self._turns = 0

    def train(self, method: str, steps: int) -> Facts:
        """A slice of so many steps, and what it says of a step."""
        who = PEER if method in DDP else OURS
        self._write(who, method, steps, UNTIL_CHOSEN if method == AUTO else SKIPPED)
        answer = self._folder / f"{who}-{self._turns}"
        until = time.monotonic() + PATIENCE
        while not answer.exists():
            for processes in self._processes:
                processes.check_alive()
            if time.monotonic() > until:
                logs = "\n".join(processes.log_end() for processes in self._processes)
                raise RuntimeError(f"{method}: no answer after {PATIENCE:.0f} s\n{logs}")
            time.sleep(0.02)
        found: Facts = json.loads(answer.read_text())
        return found

    def end(self) -> None:
        """Everyone leaves by itself."""
        self._write("all", "end", 0, 0)
        until = time.monotonic() + 20.0
        for processes in self._processes:
            while any(one.poll() is None for one in processes.started) and time.monotonic() < until:
                time.sleep(0.1)

    def _write(self, who: str, method: str, steps: int, skipped: int) -> None:
        self._turns += 1
        wish = {"who": who, "method": method, "steps": steps, "skipped": skipped, "workers": self._workers}
        part = self._folder / "part"
        part.write_text(json.dumps(wish))
        part.rename(self._folder / f"turn-{self._turns}")


@contextmanager
def job_on(names: Sequence[str], each: int, network: str, batch: int, methods: Sequence[str]) -> Iterator[Job]:
    """On these hosts, with so many workers on each."""
    with tempfile.TemporaryDirectory(prefix="bench-links-") as home, ExitStack() as stack:
        folder = Path(home)
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        words = [str(folder), network, str(batch)]
        ours = [*worker_of_ours(PORTS[OURS], str(key)), str(PEERS / "links_training.py"), *words]
        commands = {OURS: placed(ours, names, each, (FIRST, PORTS[OURS]))}
        if set(DDP) & set(methods):
            argv = [PYTHON, str(PEERS / "links_ddp.py"), *words]
            commands[PEER] = placed(argv, names, each, (FIRST, PORTS[PEER]))
        processes = [stack.enter_context(started(who, argv)) for who, argv in commands.items()]
        job = Job(folder, processes, each * len(names))
        yield job
        job.end()


def steps_of_slices(job: Job, methods: Sequence[str], seconds: float) -> dict[str, int]:
    """How many steps fill a slice at this speed of the cable, and no less than are worth counting."""
    found = {}
    for method in methods:
        took = job.train(method, FEWEST)["seconds"]
        found[method] = max(FEWEST, min(MOST, round(seconds / took)))
    return found


def measured(
    hosts: Hosts | None, job: Job, methods: Sequence[str], rates: Sequence[int], given: argparse.Namespace, passes: int
) -> list[Slice]:
    """All methods in turns, at all speeds. `hosts`: None where there is no cable."""
    rng = random.Random(given.seed)
    steps: dict[int, dict[str, int]] = {}
    for rate in rates:
        if hosts is not None:
            limit(hosts, rate)
        steps[rate] = steps_of_slices(job, methods, given.seconds)
    found = []
    plan: list[tuple[int, list[str]]] = []
    for number in range(passes):
        if number % 2:
            plan = [(rate, order[::-1]) for rate, order in reversed(plan)]
        else:
            plan = [(rate, rng.sample(list(methods), len(methods))) for rate in rng.sample(list(rates), len(rates))]
        for rate, order in plan:
            if hosts is not None:
                limit(hosts, rate)
            for method in order:
                told = job.train(method, steps[rate][method])
                found.append(Slice(number, rate, method, told["seconds"], told["bytes"]))
            shown = ", ".join(f"{one.method} {1e3 * one.seconds:.0f}" for one in found[-len(order) :])
            say(f"pass {number + 1}, {f'{rate} Mbit/s' if rate else 'no limit'}, ms per step: {shown}")
    return found


def judged(where: str, each: int, network: str, slices: Sequence[Slice], goals: Mapping[str, float]) -> list[Facts]:
    """A row for each speed and method."""
    by = {(one.pass_, one.rate, one.method): one for one in slices}
    passes = sorted({one.pass_ for one in slices})
    rows = []
    for rate in dict.fromkeys(sorted({one.rate for one in slices}, key=lambda rate: rate or 10**9)):
        base = {
            turn: statistics.mean(by[turn, rate, name].seconds for name in (NONE, AGAIN) if (turn, rate, name) in by)
            for turn in passes
        }
        same = [by[turn, rate, AGAIN].seconds / by[turn, rate, NONE].seconds for turn in passes]
        void = abs(statistics.median(same) - 1) > SAME_WITHIN
        for method in dict.fromkeys(one.method for one in slices):
            mine = [by[turn, rate, method] for turn in passes]
            row: Facts = {
                "where": f"{rate} Mbit/s" if rate else where,
                "network": network,
                "workers": f"{1 if where == 'shared memory' else 2} x {each}",
                "method": method,
                "ms_per_step": spread([1e3 * one.seconds for one in mine]),
                "bytes_per_step": round(statistics.median(one.sent for one in mine)),
                "of_none": spread([one.seconds / base[one.pass_] for one in mine]),
                "same_against_itself": {"ratio": spread(same), "void": void, "allowed": SAME_WITHIN},
            }
            if rate and (0, 0, method) in by:
                row["of_unshaped"] = spread([by[one.pass_, 0, method].seconds / one.seconds for one in mine])
            rows.append(row | _goal(row, method, rate, each, goals))
    return rows


def _goal(row: Facts, method: str, rate: int, each: int, goals: Mapping[str, float]) -> Facts:
    void = row["same_against_itself"]["void"]
    share = row["of_none"]["median"]
    if method == AUTO:
        return {"goal": f"at most {AUTO_GOAL} of none", "reached": share <= AUTO_GOAL and not void}
    if method in goals and rate == 100 and each == 2:
        return {"goal": f"at most {goals[method]} of none", "reached": share <= goals[method] and not void}
    if method in LOCAL and "of_unshaped" in row:
        reached = row["of_unshaped"]["median"] >= LOCAL_GOAL and not void
        return {"goal": f"at least {LOCAL_GOAL} of unshaped", "reached": reached}
    return {}


def table(rows: Sequence[Facts]) -> list[list[str]]:
    head = ["network", "link", "workers", "method", "ms per step", "of none", "quartiles", "of unshaped", "A/A"]
    lines = [[*head, "MB per host and step", "goal"]]
    for row in rows:
        check = row["same_against_itself"]
        word = "void" if check["void"] else "reached" if row.get("reached") else "missed"
        goal = f"{row['goal']}: {word}" if "goal" in row else ""
        unshaped = f"{row['of_unshaped']['median']:.3f}" if "of_unshaped" in row else ""
        lines.append(
            [
                row["network"],
                row["where"],
                row["workers"],
                row["method"],
                f"{row['ms_per_step']['median']:.1f}",
                f"{row['of_none']['median']:.3f}",
                "{:.3f} to {:.3f}".format(*row["of_none"]["quartiles"]),
                unshaped,
                f"{check['ratio']['median']:.3f}{' VOID' if check['void'] else ''}",
                f"{row['bytes_per_step'] / 1e6:.3f}",
                goal,
            ]
        )
    return lines


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument(
        "--rates", type=int, nargs="*", default=[100, 1000, 0], help="Mbit/s; 0: no limit; none: one host only"
    )
    options.add_argument("--workers", type=int, nargs="*", help="of each host  [default: 2 and 1; conv: 2]")
    options.add_argument("--networks", nargs="*", choices=tuple(EACH), default=list(EACH))
    options.add_argument("--methods", nargs="*", default=list(METHODS), help="none and none again are always there")
    options.add_argument("--batch", type=int, help="of all workers together  [default: 64; conv: 8]")
    options.add_argument("--passes", type=int, help="[default: 4; conv: 2]")
    options.add_argument("--seconds", type=float, default=1.5, help="length of a slice, at least; of 4 steps at least")
    options.add_argument("--shared-passes", type=int, default=16, help="on one host; 0: not at all")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument(
        "--quick", action="store_true", help="the large network, 2 x 2 workers, 100 Mbit/s and no limit"
    )
    given = options.parse_args()
    if given.quick:
        given.networks, given.rates, given.workers = ["large"], [100, 0], [2]
        given.shared_passes = min(given.shared_passes, 8)
    methods = list(dict.fromkeys([NONE, AGAIN, *given.methods]))
    watch = Watch()
    rows: list[Facts] = []
    for network in given.networks:
        batch = given.batch or BATCH[network]
        for each in (given.workers or EACH[network]) if given.rates else ():
            say(f"{network}, 2 x {each} workers")
            with Hosts() as hosts, job_on(hosts.names, each, network, batch, methods) as job:
                slices = measured(hosts, job, methods, given.rates, given, given.passes or PASSES[network])
            rows += judged("no limit", each, network, slices, GOALS if network == "large" else {})
        if given.shared_passes and network == "large":
            say(f"{network}, one host with 2 workers")
            with Hosts() as hosts, job_on(hosts.names[:1], 2, network, batch, SHARED) as job:
                slices = measured(None, job, SHARED, [0], given, given.shared_passes)
            rows += judged("shared memory", 2, network, slices, {})
    result = {"bench": "links", "settings": vars(given), "found": rows, **watch.facts(PACKAGES)}
    report(result, table(rows))


if __name__ == "__main__":
    main()

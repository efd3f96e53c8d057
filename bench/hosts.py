"""Two hosts: ours beside torch DDP (gloo) over links of several speeds, and the bytes that leave a host in a step.

The hosts are network namespaces with a cable between them, which `tc tbf` limits (needs root). Ours and DDP are started
in them once for each number of workers, with the same variables and cores, and take turns at each speed of the cable.

    times as fast   our samples per second over DDP's, by the speed of the link and the workers of a host
    bytes           what the interface has sent, per host and step, over the limit: 2 (h - 1) / h gradients, and 5 %

    python bench/hosts.py [--quick] [--rates 100 1000 0] [--workers 1 2] [--counted 1 2 4] [--hosts 2 3] > hosts.json
"""

from __future__ import annotations

import argparse
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

from contestants import Contestant, restless, running, together
from harness import ROOT, Facts, Watch, report, same_against_itself, say, tournament
from jobs import Job, on_hosts
from links import limit
from peers.models import CLASSES, HIDDEN, SHAPES

sys.path.append(str(ROOT))
from tests.network import FIRST, SENT, Hosts

PEER = "torch-ddp"
MODEL = "large"
PORTS = {"shoal": 4567, PEER: 4571}
GOALS = {1: 1.0, 2: 1.8}  # times as fast as DDP, by the workers of a host
SLACK = 1.05  # of the bytes
SLICE = {100: 2.0}  # seconds, where one is not enough for two steps
PATIENT = 300.0  # Mbit/s under which a slice is so long that half as many pairs must do
STILL = 0.5  # seconds without a word on the cable after which a step is over, beats left out
BEATS = 20_000  # bytes in that time that are no step
COUNTED_SECONDS = 2.0
PACKAGES = ("keras", "torch", "numpy")


def gradient_bytes() -> int:
    """Of the model that is trained: 4 bytes for each of its parameters."""
    widths = (*SHAPES[MODEL], *HIDDEN[MODEL], CLASSES)
    return 4 * sum(before * after + after for before, after in pairwise(widths))


class Cables:
    """What each host has sent so far."""

    def __init__(self, hosts: Hosts) -> None:
        self._names = hosts.names

    def sent(self) -> list[int]:
        read = [subprocess.run(["ip", "netns", "exec", name, "cat", str(SENT)], **_TEXT) for name in self._names]
        return [int(done.stdout) for done in read]

    def when_still(self) -> list[int]:
        """The same, as soon as nothing but beats is under way."""
        before, until = self.sent(), time.monotonic() + 60.0
        while time.monotonic() < until:
            time.sleep(STILL)
            now = self.sent()
            if max(b - a for a, b in zip(before, now, strict=True)) < BEATS:
                return now
            before = now
        raise RuntimeError("the workers still send after 60 s of rest")


_TEXT = {"check": True, "capture_output": True, "text": True, "timeout": 20}


def count_bytes(job: Contestant, cables: Cables, each: int) -> Facts:
    """Bytes that a host sends in a step. Workers stand still before and after, at the same point of a step."""
    together([job], COUNTED_SECONDS)  # the first steps find out who computes what
    before, steps = cables.when_still(), job.steps
    together([job], COUNTED_SECONDS)
    sent = [b - a for a, b in zip(before, cables.when_still(), strict=True)]
    steps = job.steps - steps
    hosts, size = len(sent), gradient_bytes()
    least = 2 * (hosts - 1) / hosts * size
    most = max(sent) / steps
    say(f"{job.name}: {most / 1e6:.2f} MB per host and step, {most / least:.3f} of the least")
    return {
        "hosts": hosts,
        "workers_per_host": each,
        "steps": steps,
        "bytes_per_host_and_step": [round(bytes_sent / steps) for bytes_sent in sent],
        "gradient_bytes": size,
        "over_least": {"found": round(most / least, 4), "goal": SLACK, "reached": most / least <= SLACK},
    }


@contextmanager
def jobs_on_hosts(hosts: Hosts, each: int, names: tuple[str, ...]) -> Iterator[dict[str, Job]]:
    """Of these contestants, all started and at rest."""
    with tempfile.TemporaryDirectory(prefix="bench-hosts-") as folder:
        key = Path(folder) / "key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        jobs = {name: on_hosts(name, MODEL, hosts.names, each, (FIRST, PORTS[name]), str(key)) for name in names}
        with running([contestant for job in jobs.values() for contestant in job]):
            yield jobs


def duel(jobs: dict[str, Job], rate: int, each: int, given: argparse.Namespace, rng: random.Random) -> Facts:
    """Ours and DDP in turns, over a link that has its speed already."""
    seconds = max(given.seconds, SLICE.get(rate, 0.0))
    pairs = max(2, given.pairs // 2) if rate and rate < PATIENT else given.pairs
    ours, peer = (partial(together, jobs[name], seconds) for name in ("shoal", PEER))
    ours()
    peer()
    check = same_against_itself(ours, ours, max(2, pairs // 2), rng)
    found = tournament(ours, {PEER: peer}, pairs, rng, say)[PEER]
    void = ["A/A is not 1.00"] if check["void"] else []
    void += [f"{name} works while paused" for name in restless([*jobs["shoal"], *jobs[PEER]])]
    say(
        f"{rate or 'unlimited'} Mbit/s, 2 x {each}: {found.ratio:.2f} times as fast, A/A {check['ratio']['median']:.3f}"
    )
    return {
        "mbit": rate or None,
        "workers_per_host": each,
        "unit": "samples per second, all workers together; a ratio is ours over DDP's",
        PEER: found.facts(),
        "ms_per_step": {
            name: round(1000 * jobs[name][0].samples_per_step / statistics.median(rates), 1)
            for name, rates in (("shoal", found.ours), (PEER, found.other))
        },
        "same_against_itself": check,
        "void": void,
        "times_as_fast": {
            "found": round(found.ratio, 3),
            "goal": GOALS.get(each),
            "reached": None if each not in GOALS else found.ratio >= GOALS[each] and not void,
        },
    }


def measure(
    count: int, each: int, given: argparse.Namespace, rng: random.Random
) -> tuple[list[Facts], list[Facts], list[Facts]]:
    """On so many hosts, with so many workers on each: duels if there are two, bytes, and the contestants' facts."""
    races = count == 2 and each in given.workers
    names = ("shoal", PEER) if races else ("shoal",)
    with Hosts(count) as hosts:
        cables = Cables(hosts)
        with jobs_on_hosts(hosts, each, names) as jobs:
            counted = [count_bytes(jobs[name][0], cables, each) | {"of": name} for name in names]
            duels = []
            for rate in given.rates if races else ():
                limit(hosts, rate)
                duels.append(duel(jobs, rate, each, given, rng))
            return duels, counted if each in given.counted else [], [job[0].facts() for job in jobs.values()]


def table(duels: list[Facts], counted: list[Facts]) -> list[list[str]]:
    rows = [["link", "hosts x workers", "ours, ms per step", "DDP", "times as fast", "quartiles", "A/A", "goal"]]
    for found in duels:
        ratio, goal = found[PEER]["ratio"], found["times_as_fast"]["goal"]
        link = f"{found['mbit']} Mbit/s" if found["mbit"] else "unlimited"
        rows.append(
            [
                link,
                f"2 x {found['workers_per_host']}",
                str(found["ms_per_step"]["shoal"]),
                str(found["ms_per_step"][PEER]),
                f"{ratio['median']:.2f}",
                "{:.2f} to {:.2f}".format(*ratio["quartiles"]),
                f"{found['same_against_itself']['ratio']['median']:.3f}",
                f"{goal}" if goal else "",
            ]
        )
        rows += [[link, f"VOID: {reason}", *[""] * 6] for reason in found["void"]]
    for found in counted:
        over, sent = found["over_least"], max(found["bytes_per_host_and_step"])
        megabytes = f"{sent / 1e6:.2f} MB per host and step"
        goal = f"at most {over['goal']}" if found["of"] == "shoal" else ""
        least = f"{over['found']:.3f} of the least"
        rows.append(
            [found["of"], f"{found['hosts']} x {found['workers_per_host']}", megabytes, "", least, "", "", goal]
        )
    return rows


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--rates", type=int, nargs="*", default=[100, 1000, 0], help="Mbit/s; 0: no limit")
    options.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="of each host, beside DDP")
    options.add_argument("--counted", type=int, nargs="*", default=[1, 2, 4], help="of each host, for the bytes")
    options.add_argument("--hosts", type=int, nargs="*", default=[2, 3], help="on which bytes are counted")
    options.add_argument("--pairs", type=int, default=8)
    options.add_argument("--seconds", type=float, default=1.2, help="length of a slice; 2 at 100 Mbit/s")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="2 pairs: shows that it works, and counts bytes")
    given = options.parse_args()
    if given.quick:
        given.pairs, given.seconds = 2, 0.5
    watch = Watch()
    rng = random.Random(given.seed)
    duels: list[Facts] = []
    counted: list[Facts] = []
    contestants: list[Facts] = []
    sizes = [(2, each) for each in sorted({*given.workers, *given.counted})]
    sizes += [(count, each) for count in given.hosts if count != 2 for each in given.counted]
    for count, each in sizes:
        for known, found in zip((duels, counted, contestants), measure(count, each, given, rng), strict=True):
            known += found
    result = {"bench": "hosts", "settings": vars(given), "speed": duels, "bytes": counted, "contestants": contestants}
    report({**result, **watch.facts(PACKAGES)}, table(duels, counted))


if __name__ == "__main__":
    main()

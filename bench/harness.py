"""How every bench measures: slices in random ABBA order, one ratio per pair, medians and spreads, A/A first.

A slice is a callable that does the work once and returns a rate (samples/s, bytes/s, 1/seconds: more is better).
A ratio is ours over the other's, from two slices that ran one right after the other, so that the slow drift of a
shared machine cancels. All is void when a thing against itself (A/A) is not 1.00 within a few percent.

    watch = Watch()
    check = same_against_itself(ours, ours, pairs=10, rng=rng)
    duels = tournament(ours, {"gloo": gloo, "memcpy": memcpy}, pairs=10, rng=rng)
    peers = {name: duel.facts() for name, duel in duels.items()}
    report({"bench": "allreduce", "check": check, "peers": peers, **watch.facts(["torch"])}, table)
"""

from __future__ import annotations

import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

Slice = Callable[[], float]
Facts = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
SAME_WITHIN = 0.03  # how far an A/A median may lie from 1.00


def spread(values: Sequence[float]) -> Facts:
    """Median, quartiles, extremes and count."""
    ordered = sorted(values) if len(values) > 1 else [*values, *values]
    low, middle, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return {
        "median": significant(middle),
        "quartiles": [significant(low), significant(high)],
        "range": [significant(ordered[0]), significant(ordered[-1])],
        "n": len(values),
    }


def significant(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


@dataclass
class Duel:
    """Paired rates of ours and another's."""

    ours: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.ours, self.other, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return statistics.median(self.ratios)

    def facts(self) -> Facts:
        return {
            "ours": spread(self.ours),
            "rate": spread(self.other),
            "ratio": spread(self.ratios),
            "ratios": [significant(r) for r in self.ratios],
        }


def tournament(
    ours: Slice,
    others: Mapping[str, Slice],
    pairs: int,
    rng: random.Random,
    told: Callable[[str], None] | None = None,
) -> dict[str, Duel]:
    """Ours against each of the others, at least `pairs` pairs each.

    A block is ours-other-other-ours or the reverse, drawn at random: two pairs, whose order effects cancel. The
    others take turns in a random order, so that a regular disturbance does not always hit the same one.
    """
    duels = {name: Duel() for name in others}
    for turn in range((pairs + 1) // 2):
        for name in rng.sample(list(others), len(others)):
            duel = duels[name]
            for side in rng.choice(("ABBA", "BAAB")):
                if side == "A":
                    duel.ours.append(ours())
                else:
                    duel.other.append(others[name]())
            if told:
                told(f"turn {turn + 1}: {name}: {duel.ratios[-2]:.3f} {duel.ratios[-1]:.3f}")
    return duels


def same_against_itself(
    ours: Slice, again: Slice, pairs: int, rng: random.Random, within: float = SAME_WITHIN
) -> Facts:
    """The A/A check. `again` is a second instance of ours, or ours itself; `void`: throw everything away."""
    duel = tournament(ours, {"again": again}, pairs, rng)["again"]
    return {**duel.facts(), "void": abs(duel.ratio - 1) > within, "allowed": within}


def rounds(
    slices: Mapping[str, Slice], count: int, rng: random.Random, until: float = float("inf")
) -> dict[str, list[float]]:
    """Rates of many that are compared with one another: for each, one a round. None begins after `until` (monotonic).

    A round is all of them in a random order, and then in the reverse order: what drifts evenly cancels out within it.
    The one that the others are compared with is measured once for all.
    """
    found: dict[str, list[float]] = {name: [] for name in slices}
    for turn in range(count):
        if time.monotonic() > until:
            break
        order = rng.sample(list(slices), len(slices))
        rates = dict.fromkeys(slices, 0.0)
        for name in (*order, *reversed(order)):
            rates[name] += slices[name]() / 2
        for name, rate in rates.items():
            found[name].append(rate)
        say(f"round {turn + 1}: {', '.join(f'{name} {rate:.4g}' for name, rate in rates.items())}")
    return found


class Watch:
    """What the machine was like while we measured, and what else it did."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._date = datetime.now(UTC)
        self._load = os.getloadavg()[0]
        self._busy = _busy_seconds()
        self._own = _own_seconds()

    def facts(self, packages: Sequence[str] = ()) -> Facts:
        """Date, machine, versions, and how many cores others kept busy. Call when all children are gone."""
        wall = time.monotonic() - self._begun
        others = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        return {
            "date": self._date.isoformat(timespec="seconds"),
            "seconds": round(wall),
            "machine": {
                "cores": os.cpu_count(),
                "cpu": _cpu_model(),
                "memory_gib": round(psutil.virtual_memory().total / 2**30),
                "kernel": platform.release(),
                "load_before": round(self._load, 2),
                "cores_busy_with_others": round(max(0.0, others / wall), 2),
            },
            "versions": {"python": platform.python_version(), **{p: _version(p) for p in packages}},
            "commit": _commit(),
            "command": " ".join(["python", *sys.argv]),
        }


def report(result: Facts, table: Sequence[Sequence[str]]) -> None:
    """The facts as JSON on stdout, the table for people on stderr."""
    print(json.dumps(result, indent=2))
    say("")
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _busy_seconds() -> float:
    """CPU seconds that anyone has used, time stolen by the host included."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _own_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit measured, with a + when files differ from it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()

"""How long things take, and how fast memory is."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from shoal.hook.backends import registry
from shoal.planning.facts import LinkFacts

_LEAST, _MOST = 3, 30  # times that something is done
_SECONDS = 0.25  # in which it is done again and again
_BUFFER = 32 << 20  # bytes: more than a core's cache holds
_ECHOES = 200
_ECHO = """
import os
while said := os.read(0, 80):
    os.write(1, said)
"""


def timed(act: Callable[[], object]) -> float:
    """Seconds that this takes where nobody else uses the processor: the lower quartile of several times. The first is
    not counted: programs are compiled in it. On the host, time in which others had the core is not counted either.
    """
    return timed_with_first(act)[1]


def timed_with_first(act: Callable[[], object]) -> tuple[float, float]:
    """The same, behind what the first time took."""
    on_host = registry.current().is_on_host()
    began = time.perf_counter()
    act()
    first = time.perf_counter() - began
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < _LEAST or (len(taken) < _MOST and time.perf_counter() - began < _SECONDS):
        at, used = time.perf_counter(), time.process_time()
        act()
        wall, own = time.perf_counter() - at, time.process_time() - used
        taken.append(min(wall, own) if on_host else wall)
    return first, sorted(taken)[len(taken) // 4]


def measured_link() -> LinkFacts:
    """Between processes of this host, and of this process's memory."""
    one, other = np.ones(_BUFFER // 4, np.float32), np.ones(_BUFFER // 4, np.float32)
    copying = _BUFFER / timed(lambda: np.copyto(other, one))
    adding = _BUFFER / timed(lambda: np.add(one, other, out=other))
    return LinkFacts(_echoed(), copying, adding)


def _echoed() -> float:
    """Seconds from one process to another: half of what an echo takes."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        taken = []
        for _ in range(_ECHOES):
            at = time.perf_counter()
            process.stdin.write(bytes(80))
            process.stdout.read(80)
            taken.append(time.perf_counter() - at)
        process.stdin.close()
    return median(taken) / 2

"""How fast codecs are beside memcpy, on one core: the share of memcpy's speed at which they encode and decode.

    python bench/codecs.py [--floats 2621440]

Slices of a tenth of a second in random order, the median of the ratios of neighbours. Bytes are those of float32.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from shoal.codecs.choice import codec_of
from shoal.codecs.rounding import BF16, INT8
from shoal.codecs.shapes import ArrayShape

SLICE, PAIRS = 0.1, 12


def speed(work: Callable[[], object]) -> float:
    """Calls per second, of a slice."""
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() - begun < SLICE:
        work()
        calls += 1
    return calls / (time.perf_counter() - begun)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--floats", type=int, default=2560 * 1024)
    given = options.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = given.floats // 1024
    values = np.random.default_rng(0).standard_normal((rows, 1024)).astype(np.float32)
    flat, target = values.reshape(-1), np.empty(values.size, np.float32)
    copy = lambda: np.copyto(target, flat)  # noqa: E731
    works: dict[str, tuple[Callable[[], object], int]] = {"memcpy again": (copy, flat.nbytes)}
    for rounding in (BF16, INT8):
        records = np.zeros(rounding.records(flat.size), rounding.record)
        works[f"{rounding.name} encode"] = (lambda r=rounding, out=records: r.encode(flat, out), records.nbytes)
        works[f"{rounding.name} add"] = (lambda r=rounding, out=records: r.add(out, out, out.copy()), records.nbytes)
        works[f"{rounding.name} decode"] = (lambda r=rounding, out=records: r.decode(out, target), records.nbytes)
    shape = (ArrayShape("float32", values.size, values.shape),)
    for word in ("topk:0.01", "topk:0.01:int8", "lowrank:4"):
        codec = codec_of(word, "bench")
        sent, state = codec.encode([values], None)
        size = sum(array.nbytes for array in sent)
        works[f"{word} encode"] = (lambda c=codec, s=state: c.encode([values], s), size)
        works[f"{word} decode"] = (lambda c=codec, p=sent: c.decode(p, shape), size)
    print(
        f"{flat.nbytes / 1e6:.1f} MB of float32, one core\n\n| | share of memcpy | ms | bytes of 1 |\n|---|---|---|---|"
    )
    for name, (work, size) in works.items():
        work()
        ratios, rates = [], []
        for _ in range(PAIRS):
            order = random.sample(["copy", "work"], 2)
            found = {each: speed(copy if each == "copy" else work) for each in order}
            ratios.append(found["work"] / found["copy"])
            rates.append(found["work"])
        print(f"| {name} | {median(ratios):.2f} | {1e3 / median(rates):.2f} | {size / flat.nbytes:.3f} |", flush=True)


if __name__ == "__main__":
    main()

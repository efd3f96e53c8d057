"""Do more workers read more? Samples that take a millisecond each to read, on one worker and on several.

Reading waits and does not compute, as from a disk or a network, so two cores are enough to compare one worker with
four: what is measured is whether the workers read side by side. Each kind of data is trained in the same script, once
on one worker and once on several, in turns.

rate     samples per second of a training, without its first steps
times    rate on several workers over that on one, by pairs of runs
rows     the part of all rows that each worker read; 1/N if nobody reads what another computes

python bench/data.py [--workers 4] [--pairs 3] [--kinds stream grain …] > data.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import Watch, report, say, spread

SHOAL = [sys.executable, "-m", "shoal"]
SCRIPT = Path(__file__).parent / "peers" / "data_training.py"
KINDS = ("stream", "grain", "hugging_face", "grain_map", "loader", "rows")
LIMIT = 300.0  # seconds for a run

Facts = dict[str, Any]


def measure(kind: str, workers: int, pieces: int, backend: str) -> Facts:
    """One training. What all of its workers say, together."""
    with tempfile.TemporaryDirectory() as folder:
        options = f"run -n {workers} --pieces {pieces} --threads 1 --no-live --backend {backend}".split()
        subprocess.run([*SHOAL, *options, SCRIPT, folder, kind], check=True, timeout=LIMIT, capture_output=True)
        told = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    assert len(told) == workers, f"{len(told)} of {workers} workers came to the end"
    assert len({one["weights"] for one in told}) == 1, "the workers' weights differ"
    return {
        "rate": min(one["rate"] for one in told),
        "rows": [one["rows"] for one in told],
        "weights": told[0]["weights"],
    }


def compared(kind: str, workers: int, pairs: int, backend: str) -> Facts:
    """One worker and several, in turns."""
    ones, severals = [], []
    for number in range(pairs):
        for count in (1, workers) if number % 2 == 0 else (workers, 1):
            found = measure(kind, count, workers, backend)
            (ones if count == 1 else severals).append(found)
            say(f"{kind}: {count} workers: {found['rate']:.0f} samples/s, rows {max(found['rows']):.3f} of all")
    return {
        "one": spread([one["rate"] for one in ones]),
        "several": spread([one["rate"] for one in severals]),
        "times": spread([many["rate"] / one["rate"] for one, many in zip(ones, severals, strict=True)]),
        "rows": max(rows for one in severals for rows in one["rows"]),
        "same_bits": len({one["weights"] for one in (*ones, *severals)}) == 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--backend", default="torch")
    options = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    watch = Watch()
    found = {kind: compared(kind, options.workers, options.pairs, options.backend) for kind in options.kinds}
    result = {
        "bench": "data",
        "workers": options.workers,
        "kinds": found,
        **watch.facts(["keras", "torch", "grain", "datasets"]),
    }
    table = [["data", "samples/s, 1 worker", f"{options.workers} workers", "times", "rows per worker", "same bits"]]
    table += [
        [
            kind,
            f"{one['one']['median']:.0f}",
            f"{one['several']['median']:.0f}",
            f"{one['times']['median']:.2f}",
            f"{one['rows']:.3f}",
            "yes" if one["same_bits"] else "NO",
        ]
        for kind, one in found.items()
    ]
    report(result, table)


if __name__ == "__main__":
    main()

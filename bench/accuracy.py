"""Whether training with stale weights ends as well as synchronous training: accuracy on unseen data, several seeds.

The same number of samples, the same batch size and learning rate, three workers. The margin was fixed before the first
run: a mode is as good if its mean over the seeds is at most 0.01 below the synchronous one's.

    python bench/accuracy.py [--quick] [--seeds 4] > accuracy.json
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import ROOT, Facts, Watch, report, say, significant

MARGIN = 0.01
MODES = {
    "synchronous": ["--pieces", "3"],
    "staleness 4": ["--strategy", "ps", "--servers", "1", "--staleness", "4"],
    "asynchronous": ["--strategy", "ps", "--servers", "1", "--staleness", "inf"],
}
TASKS = ("digits", "synthetic")
PACKAGES = ("keras", "jax", "numpy", "scikit-learn")


def accuracy(task: str, mode: str, seed: int, folder: Path) -> float:
    out = folder / f"{task}-{mode}-{seed}"
    launch = [sys.executable, "-m", "shoal", "run", "-n", "3", "--threads", "1", "--backend", "jax", *MODES[mode]]
    script = [str(ROOT / "bench/peers/accuracy_training.py"), task, str(seed), str(out)]
    subprocess.run([*launch, *script], check=True, capture_output=True, timeout=600)
    return float(out.read_text())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument("--quick", action="store_true", help="1 seed: shows that it works, no more")
    given = options.parse_args()
    seeds = 1 if given.quick else given.seeds
    watch = Watch()
    found: dict[str, dict[str, list[float]]] = {task: {mode: [] for mode in MODES} for task in TASKS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            for task in TASKS:
                for mode in MODES:
                    found[task][mode].append(accuracy(task, mode, seed, Path(folder)))
                    say(f"{task}, seed {seed}, {mode}: {found[task][mode][-1]:.4f}")
    facts: Facts = {}
    table = [["task", "mode", "mean accuracy", "against synchronous"]]
    for task, modes in found.items():
        base = statistics.mean(modes["synchronous"])
        for mode, values in modes.items():
            mean = statistics.mean(values)
            facts[f"{task}, {mode}"] = {
                "each": values,
                "mean": significant(mean),
                "difference": significant(mean - base),
                "reached": mean >= base - MARGIN,
            }
            table.append([task, mode, f"{mean:.4f}", f"{mean - base:+.4f}"])
    report({"bench": "accuracy", "margin": MARGIN, "seeds": seeds, "found": facts, **watch.facts(PACKAGES)}, table)


if __name__ == "__main__":
    main()

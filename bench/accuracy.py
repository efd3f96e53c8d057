"""Whether training with stale weights ends as well as synchronous training: accuracy on unseen data, several seeds.

The same number of samples, the same batch size and learning rate, three workers. A seed is that of the data's order, of
its division into seen and unseen, and of the first weights, alike for all modes. The margin was fixed before the first
run: a mode is as good if, at the end, its mean over the seeds is at most 0.01 below the synchronous one's. With stale
weights a model learns later at first. The means after every epoch tell how much later, and `behind` how many epochs
that is at the end: from the first after which the synchronous mean is within the margin of its last one to the first
after which this mode's is.

    python bench/accuracy.py [--quick] [--seeds 4] > accuracy.json       (about 4 minutes)
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from contestants import Command, run_to_end
from harness import Facts, Watch, report, say, significant
from jobs import PEERS, QUIET, launch_ours

WORKERS = 3
CORES = 2
MARGIN = 0.01
SYNCHRONOUS = "synchronous"
MODES = {
    SYNCHRONOUS: ("--pieces", str(WORKERS)),
    "staleness 4": ("--strategy", "ps", "--servers", "1", "--staleness", "4"),
    "asynchronous": ("--strategy", "ps", "--servers", "1", "--staleness", "inf"),
}
TASKS = ("digits", "synthetic")
PATIENCE = 120.0  # seconds for one training
PACKAGES = ("keras", "jax", "numpy", "scikit-learn")


def command(task: str, mode: str, seed: int, out: str) -> Command:
    script = [str(PEERS / "accuracy_training.py"), task, str(seed), out]
    return Command([*launch_ours(WORKERS, "jax"), *MODES[mode], *script], QUIET, range(CORES))


def accuracies(task: str, mode: str, seed: int, folder: Path) -> list[float]:
    """After every epoch."""
    out = folder / f"{task}-{mode}-{seed}"
    run_to_end(f"{task}, {mode}, seed {seed}", command(task, mode, seed, str(out)), PATIENCE)
    found: list[float] = json.loads(out.read_text())
    return found


def compared(runs: Sequence[Sequence[float]], synchronous: Sequence[Sequence[float]]) -> Facts:
    """A mode against the synchronous one, seed by seed."""
    values = [run[-1] for run in runs]
    differences = [mine[-1] - its[-1] for mine, its in zip(runs, synchronous, strict=True)]
    difference = statistics.mean(differences)
    enough = means(synchronous)[-1] - MARGIN
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else None
    return {
        "each": [significant(value) for value in values],
        "mean": significant(statistics.mean(values)),
        "after_every_epoch": [round(mean, 4) for mean in means(runs)],
        "behind": reaches(means(runs), enough) - reaches(means(synchronous), enough),
        "difference": round(difference, 4),
        "standard_error": None if error is None else round(error, 4),
        "goal": f"at least {-MARGIN}",
        "reached": difference >= -MARGIN,
    }


def means(runs: Sequence[Sequence[float]]) -> list[float]:
    """After every epoch, over all seeds."""
    return [statistics.mean(epoch) for epoch in zip(*runs, strict=True)]


def reaches(means: Sequence[float], enough: float) -> int:
    """The first epoch after which there is enough; one more than there are, if that is none."""
    return next((epoch for epoch, mean in enumerate(means, 1) if mean >= enough), len(means) + 1)


def table(found: dict[str, dict[str, Facts]]) -> list[list[str]]:
    rows = [["task", "mode", "mean accuracy", "against synchronous", "standard error", "epochs behind", ""]]
    for task, modes in found.items():
        for mode, facts in modes.items():
            error = facts["standard_error"]
            rows.append(
                [
                    task,
                    mode,
                    f"{facts['mean']:.4f}",
                    f"{facts['difference']:+.4f}",
                    "" if error is None or mode == SYNCHRONOUS else f"{error:.4f}",
                    str(facts["behind"]),
                    "" if mode == SYNCHRONOUS else "reached" if facts["reached"] else "MISSED",
                ]
            )
    return rows


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument("--quick", action="store_true", help="1 seed: shows that it works, no more")
    given = options.parse_args()
    if given.quick:
        given.seeds = 1
    watch = Watch()
    runs: dict[str, dict[str, list[list[float]]]] = {task: {mode: [] for mode in MODES} for task in TASKS}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for seed in range(given.seeds):
            for task in TASKS:
                for mode in MODES:
                    begun = time.monotonic()
                    runs[task][mode].append(accuracies(task, mode, seed, Path(folder)))
                    took = time.monotonic() - begun
                    say(f"{task}, seed {seed}, {mode}: {runs[task][mode][-1][-1]:.4f} ({took:.0f} s)")
    found = {
        task: {mode: compared(values, modes[SYNCHRONOUS]) for mode, values in modes.items()}
        for task, modes in runs.items()
    }
    result = {
        "bench": "accuracy",
        "settings": vars(given),
        "commands": {mode: str(command("TASK", mode, 0, "FILE")) for mode in MODES},
        "margin": MARGIN,
        "found": found,
        **watch.facts(PACKAGES),
    }
    report(result, table(found))


if __name__ == "__main__":
    main()

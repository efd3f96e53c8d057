"""How many runs of the simulator one core plays in a minute: the goal is at least 1,000 in each mode.

python bench/simulator.py [--runs 200] > simulator.json
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness import Facts, Watch, report, spread

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.simulator.elastic import play as play_elastic
from tests.simulator.elastic import random_plan as elastic_plan
from tests.simulator.paced_plans import random_paced
from tests.simulator.plan import Plan

GOAL = 1000


def on_servers(seed: int) -> Plan:
    return dataclasses.replace(elastic_plan(seed), servers=2, bound=0, parts=1, restarts=3)


SLICES = 8
MODES: dict[str, Callable[[int], object]] = {
    "training with all-reduce": lambda seed: play_elastic(elastic_plan(seed)),
    "parameter servers, at each worker's own pace": lambda seed: play_elastic(random_paced(seed)),
    "parameter servers, all together": lambda seed: play_elastic(on_servers(seed)),
}


def measure(play: Callable[[int], object], runs: int) -> Facts:
    """Runs a minute, by processor time, in slices that play different seeds."""
    rates = []
    for part in range(SLICES):
        began = time.process_time()
        for seed in range(part * runs, (part + 1) * runs):
            play(seed)
        rates.append(60.0 * runs / (time.process_time() - began))
    rate = spread(rates)
    return {"runs_a_minute": rate, "goal": GOAL, "reached": rate["median"] >= GOAL}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=200, help="in all, of each mode")
    given = options.parse_args()
    watch = Watch()
    found = {name: measure(play, max(1, given.runs // SLICES)) for name, play in MODES.items()}
    table = [["mode", "runs a minute", "goal"]]
    table += [[name, f"{facts['runs_a_minute']['median']:,.0f}", f"{GOAL:,}"] for name, facts in found.items()]
    report({"bench": "simulator", "modes": found, **watch.facts(["numpy", "msgspec"])}, table)


if __name__ == "__main__":
    main()

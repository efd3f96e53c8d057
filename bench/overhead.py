"""What Shoal costs where it can't help: one worker against plain Keras, the time to the first step, and being ready
for failures that do not happen.

Steady state: `shoal run -n 1` against `python script.py`, both on the same core with one thread.
Fault tolerance: `shoal run -n 2`, which goes on when a worker is lost, against the same with `--fail-fast`.
Start: from the start of the process to the end of the first training step, `shoal run -n 2` against plain
Keras with the same script and the same arguments; plain Keras has both cores. Cold: nothing compiled is kept from
before. Warm: both find their compiled programs in JAX's cache, which Shoal sets up and plain Keras is told of.

    python bench/overhead.py [--quick] [--models mlp conv] [--what steady tolerance start] > overhead.json
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
from functools import partial

from contestants import running, together
from harness import Duel, Facts, Watch, report, same_against_itself, say, spread, tournament
from jobs import WORKERS, Job, isolated, plain, shoal
from peers.models import SAMPLES_PER_WORKER

# Our time over the base line's: how much it may be, and how far the base line may be from itself.
GOALS = {
    "steady": (1.01, 0.01),
    "fault tolerance": (1 / 0.98, 0.01),
    "cold start": (1.3, 0.05),
    "warm start": (1.3, 0.05),
}
MODELS = ("mlp", "conv")
WHAT = ("steady", "tolerance", "start")
PIECES = ("--pieces", str(WORKERS))  # fixed: neither side is to change its mind on the way
PLAIN = "plain Keras"
FAIL_FAST = "--fail-fast"
PACKAGES = ("keras", "jax", "jaxlib", "tensorflow", "numpy")


def steady(model: str, pairs: int, seconds: float, rng: random.Random) -> Facts:
    """Seconds per step while training goes on."""
    base, again = isolated(model, "jax", jobs=1), isolated(model, "jax", jobs=1)
    ours = shoal(model, "jax", workers=1)
    with running([*base, *again, *ours]):
        ours_once, base_once, again_once = (partial(together, job, seconds) for job in (ours, base, again))
        for warm_up in (ours_once, base_once, again_once):
            warm_up()
        check = same_against_itself(base_once, again_once, pairs, rng, within=GOALS["steady"][1])
        duel = tournament(ours_once, {PLAIN: base_once}, pairs, rng, say)[PLAIN]
        contestants = [contestant.facts() for contestant in (*ours, *base)]
    cpu_ours, cpu_base = (facts["cpu_ms_per_sample"] for facts in contestants)
    found = verdict("steady", duel, check, work=SAMPLES_PER_WORKER)
    return {**found, "cpu_ratio": round(cpu_ours / cpu_base, 4), "contestants": contestants}


def tolerance(model: str, pairs: int, seconds: float, rng: random.Random) -> Facts:
    """Seconds per step of a run that would go on after a loss, and of one that would end."""
    base, again = (shoal(model, "jax", flags=[FAIL_FAST, *PIECES]) for _ in range(2))
    ours = shoal(model, "jax", flags=PIECES)
    with running([*base, *again, *ours]):
        ours_once, base_once, again_once = (partial(together, job, seconds) for job in (ours, base, again))
        for warm_up in (ours_once, base_once, again_once):
            warm_up()
        check = same_against_itself(base_once, again_once, pairs, rng, within=GOALS["fault tolerance"][1])
        duel = tournament(ours_once, {FAIL_FAST: base_once}, pairs, rng, say)[FAIL_FAST]
        contestants = [contestant.facts() for contestant in (*ours, *base)]
    return {**verdict("fault tolerance", duel, check, SAMPLES_PER_WORKER * WORKERS), "contestants": contestants}


def start(model: str, state: str, pairs: int, rng: random.Random) -> Facts:
    """Seconds from the start of the process to the end of the first step; `state` is cold or warm."""
    what = f"{state} start"

    def our_job(cache: str) -> Job:
        return shoal(model, "jax", env={"XDG_CACHE_HOME": cache})

    def plain_job(cache: str) -> Job:
        told = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        return plain(model, "jax", env=told if state == "warm" else {})

    with tempfile.TemporaryDirectory(prefix="bench-cache-") as kept:

        def ours() -> float:
            if state == "cold":
                shutil.rmtree(f"{kept}/ours", ignore_errors=True)
            return first_step(our_job(f"{kept}/ours"))

        def base() -> float:
            return first_step(plain_job(f"{kept}/plain"))

        for warm_up in (ours, base):  # brings files into the page cache and fills the warm start's caches
            warm_up()
        check = same_against_itself(base, base, pairs, rng, within=GOALS[what][1])
        duel = tournament(ours, {PLAIN: base}, pairs, rng, say)[PLAIN]
    commands = [str(job[0].commands[0]) for job in (our_job("CACHE"), plain_job("CACHE"))]
    return {**verdict(what, duel, check, work=1), "commands": commands}


def first_step(job: Job) -> float:
    """Start a job, stop it after its first step. Returns one over the seconds that step was away."""
    with running(job):
        return 1 / job[0].seconds_to_first_step


def verdict(what: str, duel: Duel, check: Facts, work: int) -> Facts:
    """Rates turned into seconds for `work`, and the ratio of times against its goal."""
    goal, _ = GOALS[what]
    ratios = [1 / ratio for ratio in duel.ratios]
    return {
        "unit": "seconds to the end of the first step" if what.endswith("start") else "seconds per step",
        "ours": spread([work / rate for rate in duel.ours]),
        "base": spread([work / rate for rate in duel.other]),
        "ratio": spread(ratios),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "same_against_itself": check,
        "goal": goal,
        "reached": statistics.median(ratios) <= goal and not check["void"],
    }


def table(found: dict[str, Facts]) -> list[list[str]]:
    rows = [["what", "ours, s", "base, s", "ours / base", "quartiles", "goal", "base / base"]]
    for what, facts in found.items():
        check = facts["same_against_itself"]
        rows.append(
            [
                what,
                f"{facts['ours']['median']:.4g}",
                f"{facts['base']['median']:.4g}",
                f"{facts['ratio']['median']:.3f}",
                "{:.3f} to {:.3f}".format(*facts["ratio"]["quartiles"]),
                f"at most {facts['goal']:.4g}",
                f"{check['ratio']['median']:.3f}{' (void)' if check['void'] else ''}",
            ]
        )
    return rows


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--what", nargs="+", choices=WHAT, default=list(WHAT))
    options.add_argument("--pairs", type=int, default=24, help="of steady slices; a third as many of starts")
    options.add_argument("--seconds", type=float, default=2.0, help="length of a steady slice")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="4 pairs of 1 s, 2 of starts: shows that it works")
    given = options.parse_args()
    if given.quick:
        given.pairs, given.seconds = 4, 1.0
    starts = max(2, given.pairs // 3)
    watch = Watch()
    rng = random.Random(given.seed)
    found = {}
    for model in given.models:
        if "steady" in given.what:
            found[f"{model}, steady"] = steady(model, given.pairs, given.seconds, rng)
        if "tolerance" in given.what:
            found[f"{model}, fault tolerance"] = tolerance(model, given.pairs, given.seconds, rng)
        for state in ("cold", "warm") if "start" in given.what else ():
            found[f"{model}, {state} start"] = start(model, state, starts, rng)
    report({"bench": "overhead", "settings": vars(given), "found": found, **watch.facts(PACKAGES)}, table(found))


if __name__ == "__main__":
    main()

"""What Shoal costs where it can't help: one worker against plain Keras, and the time to the first step.

Steady state: `shoal run -n 1` against `python script.py`, both on the same core with one thread.
Start: from the start of the process to the end of the first training step, `shoal run -n 2` against plain
Keras with the same script and the same arguments; plain Keras has both cores. Cold: no compiled program is kept
from before. Warm: each side finds its own in JAX's compilation cache (plain Keras has none unless told; here it is).

    python bench/overhead.py [--quick] [--models mlp conv] > overhead.json
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from contestants import Contestant, running, together
from harness import Duel, Facts, Watch, report, same_against_itself, say, spread, tournament
from jobs import isolated, plain, shoal

GOALS = {"steady": 1.01, "cold start": 1.3, "warm start": 1.3}  # ours over plain Keras's time, at most
MODELS = ("mlp", "conv")
PACKAGES = ("keras", "jax", "jaxlib", "tensorflow", "numpy")


def steady(model: str, pairs: int, seconds: float, rng: random.Random) -> Facts:
    """Seconds per step, ours over plain Keras's, while training goes on."""
    base, again = isolated(model, "jax", jobs=1), isolated(model, "jax", jobs=1)
    ours = shoal(model, "jax", workers=1)
    with running([*base, *again, *ours]):
        slices = [partial(together, job, seconds) for job in (ours, base, again)]
        for warm_up in slices:
            warm_up()
        ours_once, base_once, again_once = slices
        check = same_against_itself(base_once, again_once, pairs, rng)
        duel = tournament(ours_once, {"plain Keras": base_once}, pairs, rng, say)["plain Keras"]
        return {
            "unit": "samples per second",
            **verdict("steady", duel, check),
            "contestants": [contestant.facts() for contestant in (*ours, *base)],
        }


def start(model: str, state: str, pairs: int, rng: random.Random) -> Facts:
    """Seconds from the start of the process to the end of the first step, ours over plain Keras's."""
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as folder:
        cache = Path(folder)
        make_ours = partial(shoal, model, "jax")
        make_plain = partial(plain, model, "jax")
        ours = partial(first_step, make_ours, state, cache / "ours")
        base = partial(first_step, make_plain, state, cache / "plain")
        for warm_up in (ours, base):  # files into the page cache, and for the warm start programs into JAX's
            warm_up()
        check = same_against_itself(base, base, pairs, rng)
        duel = tournament(ours, {"plain Keras": base}, pairs, rng, say)["plain Keras"]
    shown = [str(command) for job in (make_ours(), make_plain()) for c in job for command in c.commands]
    return {"unit": "1 / seconds to the first step", **verdict(f"{state} start", duel, check), "commands": shown}


def first_step(make: Callable[..., list[Contestant]], state: str, cache: Path) -> float:
    """Start a job, stop it after its first step. Returns one over the seconds it took to get there."""
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as fresh:
        folder = str(cache) if state == "warm" else fresh
        keep = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        (job,) = make(env=keep)
        with running([job]):
            return 1 / job.seconds_to_first_step


def verdict(what: str, duel: Duel, check: Facts) -> Facts:
    times = [1 / ratio for ratio in duel.ratios]
    overhead = spread(times)
    return {
        "ours": spread(duel.ours),
        "plain": spread(duel.other),
        "time_ratio": overhead,
        "time_ratios": [round(time, 4) for time in times],
        "same_against_itself": check,
        "goal": GOALS[what],
        "reached": overhead["median"] <= GOALS[what] and not check["void"],
    }


def table(found: dict[str, Facts]) -> list[list[str]]:
    rows = [["what", "ours / plain, in time", "quartiles", "goal", "plain against itself"]]
    for what, facts in found.items():
        ratio, check = facts["time_ratio"], facts["same_against_itself"]
        rows.append(
            [
                what,
                f"{ratio['median']:.3f}",
                "{:.3f} to {:.3f}".format(*ratio["quartiles"]),
                f"{facts['goal']}",
                f"{check['ratio']['median']:.3f}{' (void)' if check['void'] else ''}",
            ]
        )
    return rows


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--pairs", type=int, default=24, help="of steady slices; a third as many starts")
    options.add_argument("--seconds", type=float, default=2.0, help="length of a steady slice")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="4 pairs of 1 s, 2 starts: shows that it works")
    given = options.parse_args()
    if given.quick:
        given.pairs, given.seconds = 4, 1.0
    starts = max(2, given.pairs // 3)
    watch = Watch()
    rng = random.Random(given.seed)
    found = {}
    for model in given.models:
        found[f"{model}, steady"] = steady(model, given.pairs, given.seconds, rng)
        found[f"{model}, cold start"] = start(model, "cold", starts, rng)
        found[f"{model}, warm start"] = start(model, "warm", starts, rng)
    report({"bench": "overhead", "settings": vars(given), **found, **watch.facts(PACKAGES)}, table(found))


if __name__ == "__main__":
    main()

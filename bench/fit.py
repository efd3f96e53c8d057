"""Training speed of `shoal run -n 2`, one core per worker, against its ceiling and its peers.

The ceiling is two plain Keras jobs that know nothing of each other, one core each, at the same time: what we
would reach if the exchange were free. Scaling efficiency is ours over the sum of the two. Peers train the same
models; where a peer's arithmetic is not our backend's, the ratio compares the backends as well.

    python bench/fit.py [--quick] [--models mlp conv gan dense-gan] [--backend jax] [--peers torch-ddp ...] > fit.json
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain

from contestants import Contestant, restless, running, together
from harness import Facts, Watch, report, same_against_itself, say, spread, tournament
from jobs import BACKENDS, PEER_JOBS, Job, isolated, shoal

GOALS = {"mlp": 0.85, "conv": 0.95, "gan": 0.85, "dense-gan": 0.85}  # scaling efficiency
OURS_ONLY = ("gan", "dense-gan")  # what peers have no script for: only the ceiling is measured beside it
CEILING = "two isolated jobs"
PACKAGES = ("keras", "jax", "jaxlib", "tensorflow", "torch", "numpy")


def measure(model: str, given: argparse.Namespace, rng: random.Random) -> Facts:
    """All contestants on one model, interleaved; first ours against a second instance of ours."""
    makers: dict[str, Callable[[], Job]] = {CEILING: partial(isolated, model, given.backend)}
    makers |= {name: partial(PEER_JOBS[name], model) for name in given.peers if model not in OURS_ONLY}
    jobs: dict[str, Job] = {}
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        for name, make in makers.items():
            try:
                job = make()
                stack.enter_context(running(job))
                jobs[name] = job
            except RuntimeError as error:
                if name == CEILING:
                    raise
                skipped[name] = str(error)
                say(f"skipped: {error}")
        # Ours comes last: it gives up on a member that does not come to an exchange for minutes.
        ours = shoal(model, given.backend)
        stack.enter_context(running(ours))
        ours_once = partial(together, ours, given.seconds)
        others = {name: partial(together, job, given.seconds) for name, job in jobs.items()}
        for warm_up in (ours_once, *others.values()):
            warm_up()
        second = shoal(model, given.backend)
        with running(second):
            second_once = partial(together, second, given.seconds)
            second_once()
            check = same_against_itself(ours_once, second_once, given.pairs, rng)
        duels = tournament(ours_once, others, given.pairs, rng, say)
        facts = {name: {**duel.facts(), **facts_of(jobs[name])} for name, duel in duels.items()}
        all_ours = list(chain.from_iterable(duel.ours for duel in duels.values()))
        efficiency = duels[CEILING].ratio
        void = ["A/A is not 1.00"] if check["void"] else []
        void += [f"{name} works while paused" for name in restless([*ours, *chain(*jobs.values())])]
        return {
            "unit": "samples per second, both workers together; a ratio is ours over the other's",
            "ours": {"rate": spread(all_ours), **facts_of(ours)},
            "limit": facts.pop(CEILING),
            "peers": facts,
            "skipped": skipped,
            "same_against_itself": check,
            "void": void,
            "scaling_efficiency": {
                "median": round(efficiency, 3),
                "goal": GOALS[model],
                "reached": efficiency >= GOALS[model] and not void,
            },
        }


def facts_of(job: Sequence[Contestant]) -> Facts:
    return {"contestants": [contestant.facts() for contestant in job]}


def table(models: dict[str, Facts]) -> list[list[str]]:
    rows = [["model", "contestant", "samples/s", "ours / it", "quartiles", "CPU ms/sample", "CPU while paused"]]
    for model, found in models.items():
        for name, facts in {"shoal": found["ours"], CEILING: found["limit"], **found["peers"]}.items():
            ratio, contestants = facts.get("ratio"), facts["contestants"]
            rows.append(
                [
                    model,
                    name,
                    f"{facts['rate']['median']:.0f}",
                    f"{ratio['median']:.3f}" if ratio else "",
                    "{:.3f} to {:.3f}".format(*ratio["quartiles"]) if ratio else "",
                    f"{statistics.mean(c['cpu_ms_per_sample'] for c in contestants):.3g}",
                    f"{max(c['cpu_share_while_paused'] or 0 for c in contestants):.1%}",
                ]
            )
        rows += [[model, name, "skipped", "", "", "", ""] for name in found["skipped"]]
        check = found["same_against_itself"]
        quartiles = "{:.3f} to {:.3f}".format(*check["ratio"]["quartiles"])
        rows.append([model, "shoal again (A/A)", "", f"{check['ratio']['median']:.3f}", quartiles, "", ""])
        rows += [[model, f"VOID: {reason}", "", "", "", "", ""] for reason in found["void"]]
    return rows


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--models", nargs="+", choices=tuple(GOALS), default=list(GOALS))
    options.add_argument("--backend", choices=BACKENDS, default="jax", help="ours and the ceiling's")
    options.add_argument("--peers", nargs="*", choices=tuple(PEER_JOBS), default=list(PEER_JOBS))
    options.add_argument("--pairs", type=int, default=16)
    options.add_argument("--seconds", type=float, default=2.0, help="length of a slice")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="4 pairs of 1 s: shows that it works, no more")
    given = options.parse_args()
    if given.quick:
        given.pairs, given.seconds = 4, 1.0
    watch = Watch()
    rng = random.Random(given.seed)
    models = {model: measure(model, given, rng) for model in given.models}
    report({"bench": "fit", "settings": vars(given), "models": models, **watch.facts(PACKAGES)}, table(models))


if __name__ == "__main__":
    main()

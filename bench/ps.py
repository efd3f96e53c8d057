"""Parameter servers: how fast a push and a pull are, and how fast two workers train with them.

    transfer   a push and a pull of 100 MB between a worker and a server, a process and a core each (bench/pair.py),
               over memcpy of as many bytes on one core
    training   the network of 10.5 M parameters, 2 workers and 1 server, asynchronous, 64 samples per worker and step;
               against legacy ParameterServerStrategy, our all-reduce, and two plain Keras jobs that know nothing of
               each other, which is the ceiling
    replicas   the same with 2 servers and every shard on both, over every shard on one
    straggler  the same with 1 server and one of the workers slowed down to a quarter: asynchronous and with a staleness
               of at most 4, against synchronous training in which the fast one waits (torch DDP, and our all-reduce
               with as many pieces as workers)

Samples are those of all workers: without a step in common each worker has a gate of its own (peers/gate.py). The legacy
peer locks up now and then: it is then started anew, and how often that was is told.

    python bench/ps.py [--quick] [--parts transfer training replicas straggler] > ps.json       (about 12 minutes)
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain

from contestants import restless, running, slowed, together
from fit import facts_of
from harness import Duel, Facts, Watch, report, same_against_itself, say, significant, spread, tournament
from jobs import WORKERS, Job, isolated, served, shoal, tf_keras_ps, torch_ddp
from pair import BYTES, Pair
from straggler import SLOW, worker_of

MODEL = "mlp"
ASYNCHRONOUS = ("--servers", "1", "--staleness", "inf")
BOUNDED = ("--servers", "1", "--staleness", "4")
TWICE = ("--servers", "2", "--replicas", "2", "--staleness", "inf")
ONCE = ("--servers", "2", "--replicas", "1", "--staleness", "inf")
CEILING, LEGACY, ALLREDUCE, DDP = "two isolated jobs", "tf-keras-ps", "shoal, all-reduce", "torch-ddp"
PIPELINED = "shoal, two updates at a time"
GOALS = {
    "transfer": "push and pull over memcpy of as many bytes",
    "training": "ours over legacy ParameterServerStrategy",
    "replicas": "with a replica over without",
}
LEAST = {"transfer": 0.25, "training": 4.0, "replicas": 0.5}
RESTARTS = 2  # of the legacy peer; if it locks up more often there is no comparison
PACKAGES = ("keras", "jax", "jaxlib", "torch", "numpy")

Maker = Callable[[], Job]


def transfer(given: argparse.Namespace, rng: random.Random) -> Facts:
    """One push and one pull at a time, and for comparison two updates at a time."""
    with Pair(ahead=1) as ours, Pair(ahead=1) as again, Pair(ahead=2) as pipelined:
        once = partial(ours.exchange, given.seconds / 2)
        check = same_against_itself(once, partial(again.exchange, given.seconds / 2), given.pairs, rng)
        others = {
            "memcpy": partial(ours.memcpy, given.seconds / 2),
            PIPELINED: partial(pipelined.exchange, given.seconds / 2),
        }
        duels = tournament(once, others, given.pairs, rng, say)
        counts = {"one update at a time": ours.facts(), "two updates at a time": pipelined.facts()}
    facts = {name: duel.facts() for name, duel in duels.items()}
    void = ["A/A is not 1.00"] if check["void"] else []
    return {
        "unit": "bytes per second, both ways together; memcpy: bytes copied per second",
        "bytes": BYTES,
        "ours": {"rate": spread(all_of_ours(duels)), "counts": counts},
        "milliseconds": significant(1e3 * 2 * BYTES / spread(all_of_ours(duels))["median"]),
        "limit": facts["memcpy"],
        "over_memcpy_of_half_as_many": significant(duels["memcpy"].ratio / 2),  # of what one way moves
        "others": {PIPELINED: facts[PIPELINED]},
        "same_against_itself": check,
        "void": void,
        "goal": verdict("transfer", duels["memcpy"].ratio, void),
    }


def training(given: argparse.Namespace, rng: random.Random) -> Facts:
    """Asynchronous training against the peer, the ceiling, and ourselves without servers."""
    others: dict[str, Maker] = {
        CEILING: partial(isolated, MODEL, "jax"),
        LEGACY: partial(tf_keras_ps, MODEL),
        ALLREDUCE: partial(shoal, MODEL, "jax"),
    }
    found, duels = compare(partial(served, MODEL, ASYNCHRONOUS), others, given, rng)
    rates = found.pop("others")
    limit = rates.pop(CEILING)
    if LEGACY in duels:
        found["goal"] = verdict("training", duels[LEGACY].ratio, found["void"])
        # What no system that computes as Keras does could exceed. Both were measured against ours, turn by turn.
        pairs = zip(duels[LEGACY].ratios, duels[CEILING].ratios, strict=True)
        found["limit_over_peer"] = spread([over_legacy / of_ceiling for over_legacy, of_ceiling in pairs])
    return {**found, "limit": limit, "peers": {LEGACY: rates.pop(LEGACY)} if LEGACY in rates else {}, "others": rates}


def replicas(given: argparse.Namespace, rng: random.Random) -> Facts:
    """What a second copy of every shard costs."""
    without = "without a replica"
    found, duels = compare(partial(served, MODEL, TWICE), {without: partial(served, MODEL, ONCE)}, given, rng)
    limit = found.pop("others")[without]
    return {**found, "limit": limit, "goal": verdict("replicas", duels[without].ratio, found["void"])}


def compare(
    make: Maker, makers: Mapping[str, Maker], given: argparse.Namespace, rng: random.Random
) -> tuple[Facts, dict[str, Duel]]:
    """Ours against all others, interleaved; first ours against a second instance of ours."""
    jobs: dict[str, Job] = {}
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        for name, make_other in makers.items():
            try:
                job = make_other()
                stack.enter_context(running(job))
                jobs[name] = job
            except RuntimeError as error:
                if name != LEGACY:
                    raise
                skipped[name] = str(error)
                say(f"skipped: {error}")
        ours = make()
        stack.enter_context(running(ours))
        ours_once = partial(together, ours, given.seconds)
        others = {name: partial(together, job, given.seconds) for name, job in jobs.items()}
        restarts: list[str] = []
        if LEGACY in jobs:
            others[LEGACY] = partial(started_anew, jobs[LEGACY], given.seconds, restarts)
        for warm_up in (ours_once, *others.values()):
            warm_up()
        second = make()
        with running(second):
            second_once = partial(together, second, given.seconds)
            second_once()
            check = same_against_itself(ours_once, second_once, given.pairs, rng)
        duels = tournament(ours_once, others, given.pairs, rng, say)
        void = ["A/A is not 1.00"] if check["void"] else []
        void += [f"{name} works while paused" for name in restless([*ours, *chain(*jobs.values())])]
        facts = {
            "unit": "samples per second, both workers together; a ratio is ours over the other's",
            "ours": {"rate": spread(all_of_ours(duels)), **facts_of(ours)},
            "others": {name: {**duel.facts(), **facts_of(jobs[name])} for name, duel in duels.items()},
            "skipped": skipped,
            "started_anew": restarts,
            "same_against_itself": check,
            "void": void,
        }
        return facts, duels


def started_anew(job: Job, seconds: float, restarts: list[str]) -> float:
    """A slice of a peer that may lock up: it is then started again, and `restarts` gets the reason."""
    try:
        return together(job, seconds)
    except RuntimeError as error:
        if len(restarts) == RESTARTS:
            raise
        restarts.append(str(error).splitlines()[0])
        say(f"started anew: {restarts[-1]}")
    for contestant in job:
        contestant.stop()
        contestant.start()
    together(job, seconds)  # its first ones are slower
    return together(job, seconds)


def straggler(given: argparse.Namespace, rng: random.Random) -> Facts:
    """One of two workers at a quarter of its speed: who waits for it, and who does not."""
    apart, peer = isolated(MODEL, "jax"), torch_ddp(MODEL)
    equal = shoal(MODEL, "jax", flags=("--pieces", str(WORKERS)))
    bounded, ours = served(MODEL, BOUNDED), served(MODEL, ASYNCHRONOUS)
    jobs = {CEILING: apart, DDP: peer, ALLREDUCE: equal, "staleness 4": bounded}
    everybody = [*chain(*jobs.values()), *ours]
    with ExitStack() as stack:
        stack.enter_context(running(everybody))
        slow = [apart[1].family[0], peer[0].family[1], *(worker_of(job[0]) for job in (equal, bounded, ours))]
        how = stack.enter_context(slowed(slow, SLOW))
        ours_once = partial(together, ours, given.seconds)
        others = {name: partial(together, job, given.seconds) for name, job in jobs.items()}
        for warm_up in (ours_once, *others.values()):
            warm_up()
        check = same_against_itself(ours_once, ours_once, max(2, given.pairs // 2), rng)
        duels = tournament(ours_once, others, max(2, given.pairs - 2), rng, say)
        void = ["A/A is not 1.00"] if check["void"] else []
        void += [f"{name} works while paused" for name in restless(everybody)]
        facts = {name: {**duel.facts(), **facts_of(jobs[name])} for name, duel in duels.items()}
        ours_facts = facts_of(ours)
    synchronous = {name: duels[name] for name in (DDP, ALLREDUCE)}
    within = duels["staleness 4"]
    return {
        "unit": "samples per second, both workers together; a ratio is ours, asynchronous, over the other's",
        "how": how,
        "ours": {"rate": spread(all_of_ours(duels)), **ours_facts},
        "limit": facts.pop(CEILING),
        "peers": {DDP: facts.pop(DDP)},
        "others": facts,
        # Both were measured against ours, asynchronous, at about the same time.
        "staleness_4_over_synchronous": {
            name: spread([b / a for a, b in zip(within.ratios, duel.ratios, strict=True)])
            for name, duel in synchronous.items()
        },
        "same_against_itself": check,
        "void": void,
    }


def all_of_ours(duels: Mapping[str, Duel]) -> list[float]:
    return list(chain.from_iterable(duel.ours for duel in duels.values()))


def verdict(part: str, ratio: float, void: list[str]) -> Facts:
    return {
        "what": GOALS[part],
        "found": significant(ratio),
        "goal": f"at least {LEAST[part]}",
        "reached": ratio >= LEAST[part] and not void,
    }


PARTS: dict[str, Callable[[argparse.Namespace, random.Random], Facts]] = {
    "transfer": transfer,
    "training": training,
    "replicas": replicas,
    "straggler": straggler,
}


def table(parts: Mapping[str, Facts]) -> list[list[str]]:
    rows = [["part", "what", "rate", "ours / it", "quartiles", ""]]
    for part, found in parts.items():
        unit = 1e9 if part == "transfer" else 1.0  # GB/s
        named = {
            "ours": found["ours"],
            "limit": found.get("limit"),
            **found.get("peers", {}),
            **found.get("others", {}),
        }
        for name, facts in named.items():
            if facts is not None:
                ratio = facts.get("ratio")
                rate = f"{facts['rate']['median'] / unit:.4g}"
                rows.append([part, name, rate, *_ratio(ratio), ""])
        if "limit_over_peer" in found:
            rows.append([part, f"limit over {LEGACY}", "", *_ratio(found["limit_over_peer"]), ""])
        for name, ratio in found.get("staleness_4_over_synchronous", {}).items():
            rows.append([part, f"staleness 4 over {name}", "", *_ratio(ratio), ""])
        rows.append([part, "ours again (A/A)", "", *_ratio(found["same_against_itself"]["ratio"]), ""])
        if "goal" in found:
            goal = found["goal"]
            reached = "void" if found["void"] else "reached" if goal["reached"] else "MISSED"
            rows.append([part, goal["what"], "", str(goal["found"]), goal["goal"], reached])
        rows += [[part, f"skipped: {name}", "", "", "", ""] for name in found.get("skipped", {})]
        rows += [[part, f"started anew: {reason}", "", "", "", ""] for reason in found.get("started_anew", ())]
        rows += [[part, f"VOID: {reason}", "", "", "", ""] for reason in found["void"]]
    return rows


def _ratio(ratio: Facts | None) -> list[str]:
    if ratio is None:
        return ["", ""]
    return [f"{ratio['median']:.3f}", "{:.3f} to {:.3f}".format(*ratio["quartiles"])]


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    options.add_argument("--pairs", type=int, default=10)
    options.add_argument("--seconds", type=float, default=2.0, help="length of a slice of training; a transfer's: half")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="2 pairs of 1 s: shows that it works, no more")
    given = options.parse_args()
    if given.quick:
        given.pairs, given.seconds = 2, 1.0
    watch = Watch()
    rng = random.Random(given.seed)
    parts = {part: PARTS[part](given, rng) for part in given.parts}
    goals = {part: found["goal"] for part, found in parts.items() if "goal" in found}
    result = {"bench": "ps", "settings": vars(given), **parts, "goals": goals, **watch.facts(PACKAGES)}
    report(result, table(parts))


if __name__ == "__main__":
    main()

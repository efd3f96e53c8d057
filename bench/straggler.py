"""Two workers, one of which gets a quarter of its core: how much of their summed speed is used.

The ceiling is two plain Keras jobs that know nothing of each other, the second one slowed down in the same way, at
the same time: their speeds, added. Equal shares of a batch reach 0.40 of it at best, since the fast one waits. The
peer, torch DDP, shares equally.

    share      our samples per second over the ceiling's, and the peer's over the ceiling's
    steps      from the moment a worker is slowed down, or is no longer, to the first of three steps in a row that
               take no more than a quarter longer than those after it has settled
    same bits  the digest of the weights after 100 steps, with a worker slowed down on the way and without

    python bench/straggler.py [--quick] [--models conv mlp] > straggler.json
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

import psutil

from contestants import Contestant, Stamped, child, restless, running, slowed, stamped, together
from harness import Duel, Facts, Watch, report, same_against_itself, say, spread, tournament
from jobs import WORKERS, isolated, shoal, stamped_shoal, torch_ddp
from peers.models import STEPS_PER_EPOCH
from peers.stamps import Stamp

SLOW = 0.25  # of a core
SECOND = "worker-1"  # the one that is slowed down, on core 1
SAMPLES = {"conv": 64, "mlp": 256}  # per worker
# Every piece costs a gradient, however few its samples. The mlp's has 42 MB: 5 is the fewest that allow 4 to 1.
PIECES = {"conv": 16, "mlp": 5}
GOALS = {"share": 0.92, "steps": 10}
CLOSE = 1.25  # a step no longer than this many usual ones is a usual one
IN_A_ROW = 3
SETTLED = 20  # steps
ADAPT = 60  # steps in which a change is sure to be over
CEILING = "two isolated jobs"
PEER = "torch-ddp"
PACKAGES = ("keras", "jax", "jaxlib", "torch", "numpy")


def shares(model: str, given: argparse.Namespace, rng: random.Random) -> Facts:
    """Throughput with a slow worker: ours, the ceiling's, the peer's."""
    samples = SAMPLES[model]
    flags = ["--pieces", str(given.pieces or PIECES[model])]
    apart = isolated(model, "jax", samples=samples)
    peer = torch_ddp(model, samples)
    ours = shoal(model, "jax", flags=flags, samples=samples)
    speeds: list[list[float]] = []

    def ceiling() -> float:
        for contestant in apart:
            contestant.go(given.seconds)
        speeds.append([contestant.rate() for contestant in apart])
        return sum(speeds[-1])

    with ExitStack() as stack:
        stack.enter_context(running([*apart, *peer, *ours]))
        slow = [worker_of(ours[0]), apart[1].family[0], peer[0].family[1]]
        how = stack.enter_context(slowed(slow, SLOW))
        ours_once, peer_once = (partial(together, job, given.seconds) for job in (ours, peer))
        together(ours, given.adapt)
        ceiling()
        peer_once()
        check = same_against_itself(ours_once, ours_once, max(2, given.pairs // 2), rng)
        speeds.clear()
        duels = tournament(ours_once, {CEILING: ceiling, PEER: peer_once}, given.pairs, rng, say)
        void = ["A/A is not 1.00"] if check["void"] else []
        void += [f"{name} works while paused" for name in restless([*ours, *apart, *peer])]
        contestants = [contestant.facts() for contestant in (*ours, *apart, *peer)]
    found = duels[CEILING].ratio
    return {
        "unit": "samples per second",
        "how": how,
        "speeds": {"fast": spread([fast for fast, _ in speeds]), "slow": spread([slow for _, slow in speeds])},
        "slow_over_fast": spread([slow / fast for fast, slow in speeds]),
        "limit": duels[CEILING].facts(),
        "peer": duels[PEER].facts(),
        "peer_share": spread(peer_shares(duels)),
        "contestants": contestants,
        "same_against_itself": check,
        "void": void,
        "share": {"found": round(found, 3), "goal": GOALS["share"], "reached": found >= GOALS["share"] and not void},
    }


def peer_shares(duels: dict[str, Duel]) -> list[float]:
    """The peer's part of the ceiling: both were measured against ours."""
    pairs = zip(duels[CEILING].ratios, duels[PEER].ratios, strict=True)
    return [of_ceiling / over_peer for of_ceiling, over_peer in pairs]


def worker_of(job: Contestant | Stamped) -> psutil.Process:
    found = child(job.family, SECOND)
    if found is None:
        raise RuntimeError(f"{job.name} has no {SECOND}")
    return found


def changes(model: str, given: argparse.Namespace) -> Facts:
    """How many steps it takes until the shares fit again."""
    down: list[int] = []
    up: list[int] = []
    flags = ("--pieces", str(given.pieces or PIECES[model]))
    with stamped(stamped_shoal(model, WORKERS, SAMPLES[model], flags)) as job:
        for _ in range(given.changes):
            with slowed([worker_of(job)], SLOW):
                at = time.monotonic()
                job.wait_steps(ADAPT)
                down.append(steps_to_settle(job.stamps[job.training()[0]], at))
            at = time.monotonic()
            job.wait_steps(ADAPT)
            up.append(steps_to_settle(job.stamps[job.training()[0]], at))
            say(f"{model}: rebalanced after {down[-1]} and {up[-1]} steps")
    median = statistics.median(down + up)
    return {
        "slowed_down": spread(down),
        "no_longer": spread(up),
        "median": {"found": median, "goal": GOALS["steps"], "reached": median <= GOALS["steps"]},
    }


def steps_to_settle(stamps: list[Stamp], changed: float) -> int:
    """Steps after the change until they take as long as they will. The step in which it came is not counted."""
    times = [stamp.at for stamp in stamps if stamp.at > changed]
    gaps = [b - a for a, b in pairwise(times)]
    usual = CLOSE * statistics.median(gaps[-SETTLED:])
    settled = [i for i in range(len(gaps) - IN_A_ROW) if all(gap <= usual for gap in gaps[i : i + IN_A_ROW])]
    return settled[0] if settled else len(gaps)


def digests(model: str, given: argparse.Namespace) -> Facts:
    """The weights' bits after an epoch, undisturbed and with a worker that is slow for half of it."""
    found = {}
    for name in ("undisturbed", "slowed down"):
        flags = ("--pieces", str(given.pieces or PIECES[model]))
        words = ("--epochs", "1", "--digest", "{stamps}/digest")
        job = stamped_shoal(model, WORKERS, SAMPLES[model], flags, words)
        with stamped(job), ExitStack() as stack:
            if name == "slowed down":
                stack.enter_context(slowed([worker_of(job)], SLOW))
            job.wait_end(10 * STEPS_PER_EPOCH)
            found[name] = (job.folder / "digest").read_text()
    return {"digests": found, "same": len(set(found.values())) == 1}


def table(models: dict[str, Facts]) -> list[list[str]]:
    rows = [["model", "what", "found", "quartiles", "goal"]]
    for model, facts in models.items():
        found = facts["shares"]
        peer, check = found["peer_share"], found["same_against_itself"]["ratio"]
        ratios = {
            "slow / fast, isolated": (found["slow_over_fast"], f"{SLOW}"),
            "ours / ceiling": (found["limit"]["ratio"], f"at least {GOALS['share']}"),
            "torch DDP / ceiling": (peer, ""),
            "ours / torch DDP": (found["peer"]["ratio"], ""),
            "ours / ours (A/A)": (check, "1.00"),
        }
        for name, (ratio, goal) in ratios.items():
            rows.append([model, name, f"{ratio['median']:.3f}", "{:.3f} to {:.3f}".format(*ratio["quartiles"]), goal])
        steps = facts["changes"]
        for name in ("slowed_down", "no_longer"):
            most = f"at most {GOALS['steps']}"
            quartiles = "{:g} to {:g}".format(*steps[name]["quartiles"])
            rows.append([model, f"steps, {name.replace('_', ' ')}", f"{steps[name]['median']:g}", quartiles, most])
        rows.append([model, "same bits", "yes" if facts["digests"]["same"] else "NO", "", "yes"])
        rows += [[model, f"VOID: {reason}", "", "", ""] for reason in found["void"]]
    return rows


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--models", nargs="+", choices=tuple(SAMPLES), default=list(SAMPLES))
    options.add_argument("--pieces", type=int, help="of a batch; by default what suits the model")
    options.add_argument("--pairs", type=int, default=12)
    options.add_argument("--seconds", type=float, default=3.0, help="length of a slice")
    options.add_argument("--changes", type=int, default=5, help="times that a worker is slowed down")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="2 pairs of 2 s, 1 change: shows that it works, no more")
    given = options.parse_args()
    given.adapt = 15.0
    if given.quick:
        given.pairs, given.seconds, given.changes = 2, 2.0, 1
    watch = Watch()
    rng = random.Random(given.seed)
    models = {}
    for model in given.models:
        models[model] = {
            "shares": shares(model, given, rng),
            "changes": changes(model, given),
            "digests": digests(model, given),
        }
    report({"bench": "straggler", "settings": vars(given), "models": models, **watch.facts(PACKAGES)}, table(models))


if __name__ == "__main__":
    main()

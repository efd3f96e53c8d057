"""Training speed of `shoal run -n 2`, one core per worker, against its ceiling and its peers, interleaved in one run.

The ceiling is two plain Keras jobs that know nothing of each other, one core each, at the same time: what we would reach
if the exchange were free. Scaling efficiency is ours over the sum of the two. Peers train the same models.

    python bench/fit.py [--quick] [--models mlp conv] [--backend jax] [--peers torch-ddp ...] > fit.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path

from contestants import GATE, Command, Contestant, free_port, running, together
from harness import ROOT, Facts, Watch, report, same_against_itself, say, spread, tournament
from peers.models import SAMPLES_PER_WORKER

PEERS = Path(__file__).resolve().parent / "peers"
PYTHON = os.path.abspath(sys.executable)  # not resolved: a link is what makes a virtual environment
WORKERS = 2
GOALS = {"mlp": 0.85, "conv": 0.95}  # scaling efficiency
ONE_THREAD = {
    "jax": {"NPROC": "1"},
    "tensorflow": {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"},
    "torch": {"OMP_NUM_THREADS": "1"},
}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def script(name: str, model: str, python: str = PYTHON) -> list[str]:
    return [python, str(PEERS / name), "--model", model, "--gate", GATE]


def shoal(model: str, backend: str) -> list[Contestant]:
    argv = [PYTHON, "-m", "shoal", "run", "-n", str(WORKERS), "--threads", "1", "--backend", backend]
    argv += [*script("plain_keras.py", model)[1:], "--workers", str(WORKERS)]
    return [Contestant("shoal", [Command(argv, QUIET, range(WORKERS))], SAMPLES_PER_WORKER * WORKERS)]


def isolated(model: str, backend: str) -> list[Contestant]:
    env = {"KERAS_BACKEND": backend, **ONE_THREAD[backend], **QUIET}
    argv = script("plain_keras.py", model)
    return [
        Contestant(f"isolated job {core}", [Command(argv, env, [core])], SAMPLES_PER_WORKER) for core in range(WORKERS)
    ]


def torch_ddp(model: str) -> list[Contestant]:
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(WORKERS)}
    commands = [
        Command(script("torch_ddp.py", model), {**meet, "RANK": str(rank), **ONE_THREAD["torch"]}, [rank])
        for rank in range(WORKERS)
    ]
    return [Contestant("torch-ddp", commands, SAMPLES_PER_WORKER * WORKERS)]


def keras_data_parallel(model: str) -> list[Contestant]:
    env = {"KERAS_BACKEND": "jax", "XLA_FLAGS": f"--xla_force_host_platform_device_count={WORKERS}", **QUIET}
    command = Command(script("keras_data_parallel.py", model), env, range(WORKERS))
    return [Contestant("keras-data-parallel", [command], SAMPLES_PER_WORKER * WORKERS)]


def tf_keras_mwms(model: str) -> list[Contestant]:
    argv = script("tf_keras_mwms.py", model, python=tf_keras_environment())
    cluster = {"worker": [f"127.0.0.1:{free_port()}" for _ in range(WORKERS)]}
    commands = [
        Command(
            argv,
            {
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}}),
                **ONE_THREAD["tensorflow"],
                **QUIET,
            },
            [rank],
        )
        for rank in range(WORKERS)
    ]
    return [Contestant("tf-keras-mwms", commands, SAMPLES_PER_WORKER * WORKERS)]


PEER_JOBS: dict[str, Callable[[str], list[Contestant]]] = {
    "torch-ddp": torch_ddp,
    "keras-data-parallel": keras_data_parallel,
    "tf-keras-mwms": tf_keras_mwms,
}


def tf_keras_environment() -> str:
    """The Python of the legacy peer's own environment, made on first use. Raises RuntimeError when that fails."""
    home = ROOT / ".venv-tf-keras"
    python = home / "bin" / "python"
    done = home / "complete"
    if not done.exists():
        say(f"installing the legacy peer into {home.name} (once, some minutes)")
        install = [str(python), "-m", "pip", "install", "-q", "-r", str(PEERS / "requirements-tf-keras.txt")]
        for step in ([PYTHON, "-m", "venv", "--clear", str(home)], install):
            ended = subprocess.run(step, capture_output=True, text=True)
            if ended.returncode:
                raise RuntimeError(f"{' '.join(step)}: {ended.stderr.strip().splitlines()[-1:]}")
        done.touch()
    return str(python)


def measure(model: str, given: argparse.Namespace, rng: random.Random) -> Facts:
    """All contestants on one model."""
    others: dict[str, list[Contestant]] = {"isolated": isolated(model, given.backend)}
    skipped = {}
    with ExitStack() as stack:
        for name in given.peers:
            try:
                others[name] = PEER_JOBS[name](model)
            except RuntimeError as error:
                skipped[name] = str(error)
                say(f"{name}: skipped: {error}")
        for name in list(others):
            try:
                stack.enter_context(running(others[name]))
            except RuntimeError as error:
                if name == "isolated":
                    raise
                skipped[name] = str(error)
                del others[name]
                say(f"skipped: {error}")
        ours = shoal(model, given.backend)
        stack.enter_context(running(ours))
        slices = {name: partial(together, group, given.seconds) for name, group in others.items()}
        our_slice = partial(together, ours, given.seconds)
        for warm in (our_slice, *slices.values()):
            warm()
        again = shoal(model, given.backend)
        with running(again):
            again_slice = partial(together, again, given.seconds)
            again_slice()
            check = same_against_itself(our_slice, again_slice, given.pairs, rng)
        duels = tournament(our_slice, slices, given.pairs, rng, say)
    limit = duels.pop("isolated")
    return {
        "unit": "samples per second, 2 workers together",
        "ours": {"rate": spread([*limit.ours, *chain(*(d.ours for d in duels.values()))]), **facts_of(ours)},
        "limit": {**limit.facts(), **facts_of(others["isolated"])},
        "peers": {name: {**duel.facts(), **facts_of(others[name])} for name, duel in duels.items()},
        "skipped": skipped,
        "same_against_itself": check,
        "goal": {"scaling_efficiency": GOALS[model], "reached": limit.ratio >= GOALS[model] and not check["void"]},
    }


def facts_of(group: Sequence[Contestant]) -> Facts:
    return {"processes": [contestant.facts() for contestant in group]}


def table(models: dict[str, Facts]) -> list[list[str]]:
    rows = [["model", "contestant", "samples/s", "ours / it", "quartiles", "paused CPU"]]
    for model, found in models.items():
        listed = {"shoal": {**found["ours"], "ratio": None}, "two isolated jobs": found["limit"], **found["peers"]}
        for name, facts in listed.items():
            ratio = facts["ratio"]
            rows.append([
                model,
                name,
                f"{facts['rate']['median']:.0f}",
                f"{ratio['median']:.3f}" if ratio else "",
                "{:.3f} to {:.3f}".format(*ratio["quartiles"]) if ratio else "",
                f"{max(p['cpu_share_while_paused'] or 0 for p in facts['processes']):.3f}",
            ])  # fmt: skip
        rows += [[model, name, "skipped", "", "", ""] for name in found["skipped"]]
        check = found["same_against_itself"]
        verdict = "VOID" if check["void"] else "A/A holds"
        rows.append([model, f"shoal again ({verdict})", "", f"{check['ratio']['median']:.3f}", "", ""])
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", nargs="+", choices=sorted(GOALS), default=["mlp", "conv"])
    options.add_argument("--backend", choices=sorted(ONE_THREAD), default="jax", help="of ours and of the ceiling")
    options.add_argument("--peers", nargs="*", choices=sorted(PEER_JOBS), default=list(PEER_JOBS))
    options.add_argument("--pairs", type=int, default=16)
    options.add_argument("--seconds", type=float, default=2.0, help="length of a slice")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="4 pairs of 1 s: to see that it works, not to quote")
    given = options.parse_args()
    if given.quick:
        given.pairs, given.seconds = 4, 1.0
    watch = Watch()
    rng = random.Random(given.seed)
    models = {model: measure(model, given, rng) for model in given.models}
    packages = ["keras", "jax", "jaxlib", "tensorflow", "torch", "numpy"]
    result = {"bench": "fit", "settings": vars(given), "models": models, **watch.facts(packages)}
    report(result, table(models))


if __name__ == "__main__":
    main()

"""What `shoal plan` predicts against what steps take, and the plan that it chooses against the best: on two workers.

A case is a model, the workers' speeds (equal, or the second one with half of a core) and what each worker may use of
the memory: as much as it wants, or too little for the plan that is chosen then. In each case the plans that are
expected to be fastest are run, and the best of each kind. Memory only takes plans away, so a case with little of it
needs few runs of its own. The plan that was chosen and the one that was fastest are run once more before they are
compared: the fastest of many is also the luckiest.

    chosen over best   time of a step of the plan chosen, over that of the fastest that was run
    error              of the prediction, made before and after the runs, over the middle of the steps' times
    search             seconds from facts to a ranking, for 4 and 8 unequal workers

    python bench/plan.py [--quick] [--backend torch] [--models mlp wide cnn transformer] [--top 5] > plan.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from contestants import Command, child, slowed, started
from harness import ROOT, Facts, Watch, report, say, significant

STEPS, FIRST = 40, 12
MODELS = ("mlp", "wide", "cnn", "transformer")


def model_of(name: str) -> tuple[Any, Any, Any, int]:
    """A compiled model, its data and its batch size."""
    import keras
    import numpy as np
    from keras import layers

    rng = np.random.default_rng(1)
    batch = {"mlp": 256, "wide": 64, "cnn": 64, "transformer": 32}[name]
    count = batch * STEPS
    if name == "mlp":
        x = rng.normal(size=(count, 512)).astype("float32")
        body: list[Any] = [layers.Input((512,)), *(layers.Dense(512, "relu") for _ in range(6))]
    elif name == "wide":
        x = rng.normal(size=(count, 1024)).astype("float32")
        body = [layers.Input((1024,)), *(layers.Dense(2048, "relu") for _ in range(3))]
    elif name == "cnn":
        x = rng.normal(size=(count, 24, 24, 3)).astype("float32")
        body = [layers.Input((24, 24, 3))]
        for filters in (32, 48, 64):
            body += [layers.Conv2D(filters, 3, padding="same", activation="relu"), layers.BatchNormalization()]
        body += [layers.GlobalAveragePooling2D(), layers.Dense(256, "relu")]
    else:
        x = rng.integers(0, 1000, size=(count, 48))
    if name == "transformer":
        tokens = layers.Input((48,))
        hidden = layers.Embedding(1000, 128)(tokens)
        for _ in range(4):
            hidden = hidden + layers.MultiHeadAttention(4, 32)(hidden, hidden)
            hidden = layers.LayerNormalization()(hidden)
            hidden = layers.LayerNormalization()(hidden + layers.Dense(128)(layers.Dense(512, "relu")(hidden)))
        model = keras.Model(tokens, layers.Dense(10)(layers.GlobalAveragePooling1D()(hidden)))
    else:
        model = keras.Sequential([*body, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    return model, x, rng.integers(0, 10, count), batch


def train(name: str, out: Path) -> None:
    """On a worker, and in the process that plans."""
    from shoal.session import Session

    model, x, y, batch = model_of(name)
    at: list[float] = []
    count = Session.count

    def counted(self: Any, *given: Any) -> None:  # no callback, which would have to be shown all weights
        at.append(time.perf_counter())
        count(self, *given)

    Session.count = counted  # type: ignore[method-assign]
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0)
    times = [after - before for before, after in zip(at[FIRST:], at[FIRST + 1 :], strict=False)]
    (out / f"{os.getpid()}.json").write_text(json.dumps(statistics.median(times)))


SLOW = 0.5  # of a core, for the second of two unequal workers
SPEEDS = {"equal": (1.0, 1.0), "unequal": (1.0, SLOW)}
GOALS = {"chosen_over_best": 1.05, "median_error": 0.10, "search_seconds": 5.0}
LIMIT = 180.0  # seconds for a run

Plan = dict[str, Any]  # as `shoal plan --json` tells it


def planned(backend: str, name: str, speeds: Sequence[float]) -> dict[str, Plan]:
    """By name, what is predicted of each plan, in the order of the ranking."""
    words = ["plan", "-n", "2", "--threads", "1", "--backend", backend, "--json"]
    words += ["--speeds", ",".join(map(str, speeds)), __file__, "--train", name, "--out", os.devnull]
    command = [sys.executable, "-m", "shoal", *words]
    told = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, timeout=LIMIT)
    return {one["plan"]: one for one in json.loads(told.stdout)["plans"]}


def trained(backend: str, name: str, flags: str, speeds: Sequence[float]) -> float:
    """Seconds of a step."""
    with tempfile.TemporaryDirectory(prefix="bench-plan-") as folder, ExitStack() as stack:
        words = ["run", "-n", "2", "--threads", "1", "--backend", backend, "--no-live", *flags.split()]
        argv = [sys.executable, "-m", "shoal", *words, __file__, "--train", name, "--out", folder]
        command = Command(argv, {}, sorted(os.sched_getaffinity(0)))
        job = stack.enter_context(started(f"{name}, {flags}", [command]))
        if speeds[1] != 1.0:
            until = time.monotonic() + LIMIT
            while (second := child(job.family(), "worker-1")) is None:
                job.check_alive()
                if time.monotonic() > until:
                    raise RuntimeError(f"{job.name}: has no second worker\n{job.log_end()}")
                time.sleep(0.02)
            stack.enter_context(slowed([second], speeds[1]))
        try:
            failed = job.started[0].wait(LIMIT)
        except subprocess.TimeoutExpired:
            failed = True
        if failed:
            raise RuntimeError(f"{job.name}: failed, or did not end\n{job.log_end()}")
        return max(json.loads(path.read_text()) for path in Path(folder).glob("*.json"))


def ordered(plans: Iterable[Plan], memory: float) -> list[str]:
    """The names of those that fit, in the order in which the product ranks them."""
    from shoal.planning import ranking
    from shoal.planning.candidates import Kind, PlanCandidate
    from shoal.planning.replay import Prediction

    known = []
    for one in plans:
        candidate = PlanCandidate(Kind(one["kind"]), one["pieces"], one["stages"], one["mesh"])
        expected = Prediction(one["step_seconds"], tuple(one["busy"]), one["moved_bytes"], tuple(one["memory_bytes"]))
        if max(one["memory_bytes"]) <= memory:
            known.append((one["plan"], ranking.Ranked(candidate, expected, True)))
    names = {id(ranked): plan for plan, ranked in known}
    return [names[id(one)] for one in ranking._ordered([ranked for _, ranked in known])] if known else []


def less_memory(plans: dict[str, Plan], first: str) -> float | None:
    """So little that the first plan does not fit, and half of those do that need less; None if none does."""
    needs = sorted({max(one["memory_bytes"]) for one in plans.values()})
    smaller = [one for one in needs if one < max(plans[first]["memory_bytes"])]
    return smaller[len(smaller) // 2] if smaller else None


class Runs:
    """One model on workers of these speeds: what was predicted, and what steps took."""

    def __init__(self, backend: str, name: str, speeds: Sequence[float], until: float) -> None:
        self._about = backend, name
        self._speeds = speeds
        self._until = until
        self.plans = planned(backend, name, speeds)
        self.took: dict[str, list[float]] = {}

    def run(self, plan: str) -> None:
        took = trained(*self._about, self.plans[plan]["flags"], self._speeds)
        self.took.setdefault(plan, []).append(took)
        expected = 1e3 * self.plans[plan]["step_seconds"]
        say(f"{self._about[1]} {self._speeds}: {plan}: {1e3 * took:.1f} ms, expected {expected:.1f} ms")

    def case(self, memory: float, top: int) -> Facts:
        """The choice with so much memory, and what is best."""
        order = ordered(self.plans.values(), memory)
        of_kind = {self.plans[plan]["kind"]: plan for plan in reversed(order)}
        wanted = dict.fromkeys([*order[:top], *of_kind.values()])
        for plan in wanted:
            if plan not in self.took and (time.monotonic() < self._until or plan == order[0]):
                self.run(plan)
        ran = [plan for plan in order if plan in self.took]
        first, best = order[0], min(ran, key=self.seconds)
        for plan in (best, first):
            if best != first and len(self.took[plan]) == 1:
                self.run(plan)
        best = min((plan for plan in ran if len(self.took[plan]) > 1 or plan in (first, best)), key=self.seconds)
        return {
            "memory_mb": None if memory == float("inf") else round(memory / 1e6),
            "candidates": len(order),
            "run": len(ran),
            "chosen": first,
            "best": best,
            "chosen_over_best": significant(self.seconds(first) / self.seconds(best)),
        }

    def seconds(self, plan: str) -> float:
        return statistics.mean(self.took[plan])

    def errors(self) -> dict[str, Facts]:
        """Of each plan that was run. It is planned once more: what is predicted differs from call to call, too."""
        after = planned(*self._about, self._speeds)
        rows = {}
        for plan in self.took:
            told = [plans[plan]["step_seconds"] for plans in (self.plans, after) if plan in plans]
            expected, took = statistics.mean(told), self.seconds(plan)
            rows[plan] = {
                "predicted_ms": significant(1e3 * expected),
                "real_ms": significant(1e3 * took),
                "error": significant(expected / took - 1.0, 3),
            }
        return rows


def cases_of(backend: str, name: str, which: str, given: argparse.Namespace, until: float) -> tuple[list[Facts], Facts]:
    runs = Runs(backend, name, SPEEDS[which], until)
    about = {"model": name, "workers": which, "speeds": SPEEDS[which]}
    cases = [about | runs.case(float("inf"), given.top)]
    memory = less_memory(runs.plans, cases[0]["chosen"])
    if memory is not None:
        cases.append(about | runs.case(memory, given.top))
    for case in cases:
        say(f"{name}, {which}, {case['memory_mb'] or 'any'} MB: chosen over best {case['chosen_over_best']}")
    return cases, runs.errors()


def search_seconds() -> dict[str, float]:
    """From facts to a ranking, by the number of workers."""
    sys.path.append(str(ROOT))
    from tests.planning.made_up import Layer, facts_of

    from shoal.planning.ranking import rank

    found = {}
    for workers in (4, 8):
        facts = facts_of([Layer()] * 16, tuple(1.0 - 0.1 * rank for rank in range(workers)), batch=256)
        began = time.perf_counter()
        rank(facts)
        found[f"{workers} workers"] = significant(time.perf_counter() - began, 3)
    return found


def table(cases: Sequence[Facts], errors: dict[str, dict[str, Facts]]) -> list[list[str]]:
    lines = [["model, workers", "plan", "predicted", "real", "error"]]
    for name, of_plans in errors.items():
        for plan, row in of_plans.items():
            times = [f"{row[which]} ms" for which in ("predicted_ms", "real_ms")]
            lines.append([name, plan, *times, f"{100 * row['error']:+.1f} %"])
    lines.append(["model, workers, memory", "chosen", "best", "run of", "chosen over best"])
    for case in cases:
        where = f"{case['model']}, {case['workers']}, {case['memory_mb'] or 'any'} MB"
        count = f"{case['run']} of {case['candidates']}"
        lines.append([where, case["chosen"], case["best"], count, f"{case['chosen_over_best']:.3f}"])
    return lines


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--workers", nargs="+", default=list(SPEEDS), choices=tuple(SPEEDS))
    parser.add_argument("--top", type=int, default=5, help="plans that are run in a case, beside the best of each kind")
    parser.add_argument("--minutes", type=float, default=28.0, help="after which only plans that are chosen are run")
    parser.add_argument("--quick", action="store_true", help="two models, the first two plans and one of each kind")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.train, given.out)
        return
    if given.quick:
        given.models, given.top = given.models[:2], 2
    watch = Watch()
    until = time.monotonic() + 60 * given.minutes
    cases: list[Facts] = []
    errors: dict[str, Facts] = {}
    for name in given.models:
        for which in given.workers:
            found, of_plans = cases_of(given.backend, name, which, given, until)
            cases += found
            errors[f"{name}, {which}"] = of_plans
    off = [abs(row["error"]) for of_plans in errors.values() for row in of_plans.values()]
    search = search_seconds()
    reached = {
        "chosen_over_best": max(case["chosen_over_best"] for case in cases),
        "median_error": significant(statistics.median(off), 3),
        "search_seconds": max(search.values()),
    }
    facts = {
        "bench": "plan",
        "settings": {key: value for key, value in vars(given).items() if key not in ("train", "out")},
        "cases": cases,
        "errors": errors,
        "worst_error": significant(max(off), 3),
        "search": search,
        "goals": {
            name: {"found": found, "goal": GOALS[name], "reached": found <= GOALS[name]}
            for name, found in reached.items()
        },
    }
    lines = table(cases, errors)
    lines.append(["all", "median of the errors", "", "", f"{100 * reached['median_error']:.1f} %"])
    report({**facts, **watch.facts([given.backend])}, lines)


if __name__ == "__main__":
    main()

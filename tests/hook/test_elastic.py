"""Killed, stopped or failing workers leave no trace in a training: same bits, every step and sample once, nothing left.

Each scene is one real run, and its harms come one after the other while it goes on (bench/chaos.py). A harm waits for
its moment, and the training waits for the harms: no scene depends on how fast this machine is.
"""

from __future__ import annotations

import csv
import os
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chaos import Chaos, Harm, Outcome, disturbed_options, random_plan, undisturbed
from chaos_moments import BETWEEN_FITS, IN_STEP, SAVING, fits
from shoal.observe.phases import Activity, Phase

from .runs import QUICKLY_COMPILED

SEED = 4
TWO_FITS, STEPS = "--fits 2 --epochs 5 --steps 20 --validate", 200
IN_EVERY_PHASE = [
    # Before the first step has been committed.
    Harm("other", Phase.BUILDING),
    Harm("other", Phase.TAKING_WEIGHTS),
    Harm("chief", Phase.COMPUTING),
    # Those who come in their place. The first makes another one start, which the next harm finds.
    Harm("newcomer", Phase.JOINING, 1),
    Harm("newcomer", Phase.STARTING, 1),
    Harm("newcomer", Phase.BUILDING, 1),
    Harm("newcomer", Phase.TRACING, 1),
    Harm("newcomer", Phase.JOINING, 3, after=0.01),
    # Every phase of a step.
    *(Harm(who, phase, 8 + 2 * place) for place, phase in enumerate(IN_STEP) for who in ("chief", "other")),
    # Several at once, and again while the others are still coming together.
    Harm("anyone", None, 26, count=2),
    Harm("other", Phase.EXCHANGING, 30),
    Harm("anyone", None, 30, after=0.02),
    # Between the steps.
    Harm("other", Phase.EVALUATING, 35, step_pause=0.001),
    Harm("chief", Phase.EVALUATING, 55, step_pause=0.001),
    Harm("chief", BETWEEN_FITS, 90, step_pause=0.001),
    # The coordinator: alone, before a worker, and when somebody is let in.
    Harm("coordinator", None, 110),
    Harm("coordinator", None, 115, after=0.01),
    Harm("chief", Phase.EXCHANGING, 115),
    Harm("newcomer", Phase.JOINING, 120, after=0.005),
    Harm("coordinator", None, 120),
    # The last step.
    Harm("other", Phase.EXCHANGING, STEPS - 1, step_pause=0.3),
]
WHILE_FILES_ARE_WRITTEN = [
    Harm("chief", Phase.CALLBACKS, 10),
    Harm("chief", Phase.EVALUATING, 20, step_pause=0.001),
    Harm("other", Phase.EXCHANGING, 45),
    Harm("chief", Phase.APPLYING, 60),
    Harm("coordinator", None, 65),
    Harm("chief", Phase.READING, 79),
    Harm("newcomer", Phase.JOINING, 80, after=0.01),
    Harm("chief", SAVING, 120, after=0.1, step_pause=0.001),
]
STOPS_TOO = [
    # Before the first view.
    Harm("coordinator"),
    Harm("coordinator", after=2.0),
    Harm("other", Phase.STARTING),
    Harm("chief", Phase.COMPUTING, 3, act="stop"),
    *(Harm("anyone", phase, 20 + 8 * place) for place, phase in enumerate(IN_STEP)),
    Harm("coordinator", None, 56),
    Harm("coordinator", None, 57, act="stop"),
    Harm("other", Phase.EXCHANGING, 65, act="stop"),
    Harm("chief", Phase.EXCHANGING, 65),
    Harm("anyone", Phase.EVALUATING, 70, step_pause=0.001),
]
IN_SLICES = [
    *(Harm(who, Phase.APPLYING, 3 + 8 * n, after=0.003 * n) for n, who in enumerate(("other", "chief", "anyone"))),
    *(Harm("anyone", Phase.APPLYING, 40 + 10 * n) for n in range(5)),
    Harm("anyone", Phase.APPLYING, 100, count=2),
    Harm("newcomer", Phase.JOINING, 110),
    Harm("chief", Phase.APPLYING, 120, act="stop"),
    Harm("other", Phase.EXCHANGING, 140),
    Harm("chief", Phase.APPLYING, STEPS - 1, step_pause=0.3),
]
WITH_CODECS = [
    Harm("chief", Phase.COMPUTING),
    *(Harm(who, phase, 10 + 8 * place) for place, phase in enumerate(IN_STEP) for who in ("chief", "other")),
    Harm("anyone", None, 60, count=2),
    Harm("other", Phase.EXCHANGING, 70),
    Harm("anyone", None, 70, after=0.02),
    Harm("newcomer", Phase.JOINING, 75, after=0.01),
    Harm("other", Phase.EXCHANGING, 99, step_pause=0.3),
]
AT_RANDOM = [harm for harm in random_plan(random.Random(SEED), 12, STEPS) if harm.act == "kill"]


class Scenes:
    """A folder for runs; each kind of training is done once without harm, for comparison."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **QUICKLY_COMPILED}
        self._undisturbed: dict[tuple[str, ...], Outcome] = {}

    def undisturbed(self, backend: str, arguments: str, more: str = "") -> Outcome:
        key = (backend, arguments, more)
        if key not in self._undisturbed:
            folder = self.folder / f"u{len(self._undisturbed)}"
            outcome = undisturbed(folder, backend, arguments.split(), self._environ, more.split())
            assert outcome.code == 0, outcome.output
            self._undisturbed[key] = outcome
        return self._undisturbed[key]

    def run(self, name: str, harms: Sequence[Harm], options: Sequence[str], arguments: str) -> Outcome:
        return Chaos(self.folder / name, harms, options, arguments.split(), SEED, self._environ).run()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenes]:
    return Scenes(tmp_path_factory.mktemp("e"))


def assert_no_trace(outcome: Outcome, witness: Outcome) -> None:
    faults = outcome.faults(witness)
    events = "\n".join(f"{e.step:4} {e.victim} {e.harm.act} {e.doing}" for e in outcome.events)
    assert not faults, f"seed {SEED}: {faults}\n{events}\n{outcome.output[-8000:]}"


@pytest.mark.timeout(400)
def test_kills_in_every_phase_and_role_leave_no_trace(scenes: Scenes) -> None:
    options = disturbed_options("torch", workers=4)
    outcome = scenes.run("phases", IN_EVERY_PHASE, options, TWO_FITS)
    assert_no_trace(outcome, scenes.undisturbed("torch", TWO_FITS))
    died_doing = [event.doing or Activity() for event in outcome.events]
    for harm in IN_EVERY_PHASE:
        assert harm.after or any(fits(doing, harm.doing) for doing in died_doing), harm
    assert [event.step for event in outcome.events[:3]] == [0, 0, 0]
    assert outcome.events[-1].step == STEPS - 1


@pytest.mark.full  # tests/hook/test_files.py kills chiefs in the middle of files, too
@pytest.mark.timeout(400)
def test_files_are_whole_although_the_chief_that_wrote_them_was_killed(scenes: Scenes) -> None:
    training = "--epochs 6 --steps 20 --validate --callbacks --save"
    outcome = scenes.run(
        "files", WHILE_FILES_ARE_WRITTEN, disturbed_options("torch", workers=3), f"{training} --sliced"
    )
    assert_no_trace(outcome, scenes.undisturbed("torch", training))
    assert all(result["saved"] for result in outcome.results.values())
    with (scenes.folder / "files" / "out" / "log.csv").open() as file:
        assert [int(row["epoch"]) for row in csv.DictReader(file)] == list(range(6))


@pytest.mark.full  # tests/launch/test_failures.py stops workers of a run that trains nothing
@pytest.mark.timeout(400)
def test_stopped_workers_are_replaced_and_leave_no_trace(scenes: Scenes) -> None:
    training = "--fits 2 --epochs 2 --steps 30 --validate"
    outcome = scenes.run("stops", STOPS_TOO, disturbed_options("tensorflow", workers=3), f"{training} --sliced")
    assert_no_trace(outcome, scenes.undisturbed("tensorflow", training))
    assert outcome.output.count("its process is stopped") == 2


@pytest.mark.full
@pytest.mark.timeout(400)
def test_workers_killed_in_the_middle_of_a_sliced_update_leave_no_trace(scenes: Scenes) -> None:
    outcome = scenes.run("sliced", IN_SLICES, disturbed_options("jax", workers=4), f"{TWO_FITS} --sliced")
    assert_no_trace(outcome, scenes.undisturbed("jax", TWO_FITS))
    assert sum(event.doing is not None and event.doing.phase is Phase.APPLYING for event in outcome.events) >= 6


@pytest.mark.full
@pytest.mark.timeout(400)
def test_kills_at_random_moments_over_tcp_with_a_stream_in_shards_leave_no_trace(scenes: Scenes) -> None:
    options = [*disturbed_options("jax", workers=3, standby=2), "--transport", "tcp"]
    outcome = scenes.run("tcp", AT_RANDOM, options, f"{TWO_FITS} --stream")
    assert_no_trace(outcome, scenes.undisturbed("jax", f"{TWO_FITS} --stream"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("backend", "codec"),
    [
        pytest.param(backend, codec, marks=pytest.mark.full)
        for backend in ("torch", "jax", "tensorflow")
        for codec in ("bf16", "int8", "topk:0.1", "topk:0.1:int8", "lowrank:2")
    ],
)
def test_kills_leave_no_trace_with_codecs_either(scenes: Scenes, backend: str, codec: str) -> None:
    """What a codec has left out outlives who computed it."""
    training, compress = "--epochs 5 --steps 20 --width 600", f"--compress {codec}"
    options = [*disturbed_options(backend, workers=3, standby=2), *compress.split()]
    outcome = scenes.run(f"codec-{backend}-{codec.replace(':', '-')}", WITH_CODECS, options, training)
    assert_no_trace(outcome, scenes.undisturbed(backend, training, compress))


@pytest.mark.full  # tests/hook/test_caught.py goes on after errors, with the same bits
def test_an_error_on_one_worker_does_not_end_the_run_and_is_told(scenes: Scenes) -> None:
    training = "--epochs 2 --steps 30"
    error = " --raise-on worker-1 --raise-at 0 0 7"
    outcome = scenes.run("error", [], disturbed_options("torch", workers=2), training + error)
    assert_no_trace(outcome, scenes.undisturbed("torch", training))
    assert "worker-1 raised ArithmeticError: the numbers do not add up at step 8" in outcome.output


def test_an_error_on_all_workers_ends_the_run_at_once_and_is_told(scenes: Scenes) -> None:
    error = "--epochs 2 --steps 30 --raise-on all --raise-at 0 0 7"
    outcome = scenes.run("errors", [], disturbed_options("torch", workers=2), error)
    assert outcome.code == 1
    assert not outcome.left
    assert re.search(
        r"the run ended: worker-[01] and worker-[01] raised ArithmeticError: the numbers do not add up", outcome.output
    )
    assert outcome.ledger.steps == 8


@pytest.mark.full
def test_the_scenes_above_kill_at_least_sixty_processes() -> None:
    plans = (IN_EVERY_PHASE, WHILE_FILES_ARE_WRITTEN, STOPS_TOO, AT_RANDOM)
    assert sum(harm.count for plan in plans for harm in plan if harm.act == "kill") >= 60

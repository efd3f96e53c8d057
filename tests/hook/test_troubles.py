"""A training that goes wrong on one worker ends everywhere, and says where and why."""

from __future__ import annotations

import re

import pytest

from .runs import Trainings, succeeded

TROUBLES = {
    "bit_flip": (
        "-n 3 --check-every 2",
        r"weights of worker-1 differ from the others' before step 6: 2 of 3 workers agree",
    ),
    "other_model": ("-n 2", r"model of worker-1 has other variables"),
    "other_data": ("-n 2", r"the data of worker-1 differs from the chief's.*fixed seed"),
    "other_calls": ("-n 2", r"(?s)worker-[01].*evaluate.*fit|worker-[01].*fit.*evaluate"),
    "raises": (
        "-n 2 --fail-fast",
        r"(?s)worker-1 raised ArithmeticError: the numbers do not add up at step 5.*in fail\n",
    ),
    "bad_sample": (
        "-n 2 --pieces 16",
        r"(all 2 workers|worker-\d and worker-\d) raised ArithmeticError: a pixel is negative at .*"
        r"\(computing piece \d+: sample 13\)",  # a third may have come in the place of the first
    ),
    "caught_on_one": (
        "-n 2",
        r"worker-0 raised ArithmeticError: worker-1 has left this call with ArithmeticError: the numbers do not add "
        r"up; its script caught that and went on, which ends the call on all workers at step 5",
    ),
    "caught_and_over": ("-n 2", r"worker-0 raised ArithmeticError: worker-1 has left this call with ArithmeticError"),
    "caught_before_a_file": (
        "-n 2",
        r"worker-1 raised ArithmeticError: worker-0 has left this call with .*waiting for the chief to save_weights",
    ),
    "a_file_that_can_not_be_written": (
        "-n 2",
        r"(?s)(all 2 workers|worker-\d) raised FileNotFoundError: .*/nowhere/second.keras",
    ),
    "caught_by_a_server": (
        "-n 1 --strategy ps --servers 1 --max-restarts 1",
        r"server-\d.* raised CannotServe: CannotDistribute: a server can't make its own Forgetful",
    ),
    "dies": ("-n 2 --fail-fast", r"worker-1 .*(was killed by SIGKILL).* at step 5"),
    "stops": ("-n 2 --fail-fast --timeout 2", r"worker-1 .*silent for \d\.\d s \(deadline 2\.0 s\) at step 5.*stopped"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_on_one_worker_ends_the_run_and_is_named(trainings: Trainings, trouble: str) -> None:
    options, expected = TROUBLES[trouble]
    backend = "torch" if trouble == "bad_sample" else "jax"  # its step looks at the values
    result = trainings.shoal(backend, options, "troubles.py", trouble)
    assert result.returncode == 1, result.stderr
    assert re.search(expected, result.stderr), result.stderr
    assert not trainings.leftovers()


def test_what_a_script_leaves_to_chance_is_alike_on_all_workers(trainings: Trainings) -> None:
    succeeded(trainings.shoal("jax", "-n 2 --check-every 1", "troubles.py", "nothing"))

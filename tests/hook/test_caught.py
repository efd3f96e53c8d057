"""A fit that raises, and whose error the script catches, is over on all workers; the next one is trained by all.

Tuners do that: a trial that fails is one of many.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .runs import Trainings, full, succeeded

SCENES = {  # what every process catches
    "at_the_end_of_an_epoch": "ValueError",
    "after_a_batch": "TooBad",
    "bad_data": "OSError",
    "bad_arguments": "ValueError",
    "bad_model": "ZeroDivisionError",
    "on_one_worker": "KeyError",
    "on_one_worker_before_it_begins": "KeyError",
    "in_an_evaluation": "ValueError",
    "in_a_fit_that_evaluates": "ValueError",
    "on_one_worker_when_it_is_over": None,  # the others have finished it
}
ALONE = [scene for scene in SCENES if "on_one_worker" in scene]


def caught(trainings: Trainings, options: str, *scenes: str) -> dict[str, list[dict[str, Any]]]:
    """What every worker told, and servers that came to the script's end before the run was over.

    On PyTorch, which compiles nothing: it is the same on all backends.
    """
    folder = trainings.folder / f"caught{options.replace(' ', '')}"
    folder.mkdir()
    succeeded(trainings.shoal("torch", f"-n 2 --threads 1 {options}", "caught.py", folder, *scenes))
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    for member, told in found.items():
        for one in told:
            scene = one["scene"]
            kinds, text = one["caught"] or ([], "")
            assert SCENES[scene] is None or SCENES[scene] in kinds, (member, one)
            if member != "worker-1" and scene in ALONE and kinds:
                assert kinds[1:3] == ["RaisedElsewhere", "ShoalError"]
                assert text.startswith("worker-1 has left this call with KeyError: 'a key'; its script caught that")
    assert [one["losses"] for one in found["worker-0"]] == [one["losses"] for one in found["worker-1"]]
    return found


@pytest.mark.timeout(200)
def test_synchronous_training_goes_on_after_errors_with_the_same_bits_with_and_without_servers(
    trainings: Trainings,
) -> None:
    own = caught(trainings, "", *SCENES)
    served = caught(trainings, "--strategy ps --servers 2 --staleness 0", *SCENES)
    assert [one["losses"] for one in own["worker-0"]] == [one["losses"] for one in served["worker-0"]]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("bound", ["2", full("inf")])
def test_asynchronous_training_goes_on_after_errors(trainings: Trainings, bound: str) -> None:
    found = caught(trainings, f"--strategy ps --servers 1 --staleness {bound}", *SCENES)
    losses = [one["losses"][0] for one in found["worker-0"]]
    assert losses == sorted(losses, reverse=True)  # the weights, and the optimizer on the servers, go on

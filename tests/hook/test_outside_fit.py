"""Training that does not go through Shoal is refused, and the line of the script is named."""

from __future__ import annotations

import json

import pytest

from shoal.hook.patching.script_line import users_line

from .runs import BACKENDS, Trainings, succeeded


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_optimizer_that_is_applied_outside_of_fit_is_refused_where_it_stands(
    trainings: Trainings, backend: str
) -> None:
    out = trainings.folder / f"{backend}.json"
    run = trainings.shoal(backend, "-n 2", "outside_fit.py", out)
    succeeded(run)
    answers, lines = json.loads(out.read_text())
    assert len(answers) >= 6
    silent = {name: said for name, said in answers.items() if "outside of fit() would train each worker's" not in said}
    assert not silent
    assert all("`train_step`" in said and "@shoal.step" in said for said in answers.values())
    elsewhere = {name: line for name, line in lines.items() if not line.endswith("# here")}
    assert not elsewhere
    assert run.stderr.count("each worker does that by itself") == (backend == "torch")


def test_the_users_line_is_the_innermost_that_is_no_librarys() -> None:
    keras, torch = "/v/lib/python3.11/site-packages/keras/src/a.py", "/v/lib/python3.11/site-packages/torch/b.py"
    assert users_line([(keras, 1), ("/home/me/step.py", 2), (torch, 3), ("/home/me/train.py", 4)]) == (
        "/home/me/step.py",
        2,
    )
    installed = "/v/lib/python3.11/site-packages/lab/train.py"
    assert users_line([(keras, 1), ("<frozen runpy>", 2), (installed, 3)]) == (installed, 3)
    assert users_line([(keras, 1), (torch, 2), (json.__file__, 3)]) is None

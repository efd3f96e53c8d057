"""What Keras would import for everybody comes when it is used."""

from __future__ import annotations

from .runs import Trainings, succeeded


def test_what_few_scripts_use_is_imported_when_it_is_used_and_is_then_the_same(trainings: Trainings) -> None:
    plain = trainings.plain("torch", "late_imports.py")
    ours = trainings.shoal("torch", "-n 2", "late_imports.py")
    succeeded(plain)
    succeeded(ours)
    assert "imported before: ['torch._dynamo', 'tensorflow', 'sklearn'" in plain.stdout  # and JAX, after Keras 3.12
    assert "imported before: []" in ours.stdout
    assert "'sympy'" not in ours.stdout.partition("imported by each worker:")[2].partition("]")[0], "once for all"
    assert ours.stdout.split("then:")[1] == plain.stdout.split("then:")[1]

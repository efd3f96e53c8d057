"""A script's models train in the run, whatever it imports first. (test_on_import.py has the many ways to import.)"""

from __future__ import annotations

import json

from .runs import Trainings, succeeded


def test_a_script_that_imports_tensorflow_first_trains_in_the_run_and_the_chief_saves(trainings: Trainings) -> None:
    succeeded(trainings.shoal("tensorflow", "-n 2", "tensorflow_first.py", trainings.folder / "told"))
    chief, other = (json.loads((trainings.folder / f"told.{rank}").read_text()) for rank in (0, 1))
    assert chief == [[4, 8], [f"{number}.keras" for number in range(5)]]
    assert other == [[4, 8], []]

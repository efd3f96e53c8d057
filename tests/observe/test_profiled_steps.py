"""Which steps are profiled."""

from __future__ import annotations

import pytest

from shoal.observe.phases import Activity, Phase
from shoal.observe.profiled_steps import ProfiledSteps, ProfileSwitch
from shoal.observe.recorder import Moment


def turns(steps: ProfiledSteps, *moments: tuple[Phase, int]) -> list[bool | None]:
    switch = ProfileSwitch(steps)
    return [switch.hear(Moment(step, Activity(phase), False, 0.0)) for phase, step in moments]


def test_steps_are_named_by_one_number_or_two() -> None:
    assert ProfiledSteps.parse("7") == ProfiledSteps(7, 7)
    assert ProfiledSteps.parse("7:9") == ProfiledSteps(7, 9)
    assert [str(ProfiledSteps(7, 7)), str(ProfiledSteps(7, 9))] == ["step 7", "steps 7 to 9"]


@pytest.mark.parametrize("text", ["", "x", "-1", "5:", "9:7", "0:100", "1.5"])
def test_what_are_no_steps_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        ProfiledSteps.parse(text)


def test_it_is_on_from_the_first_step_to_the_last_and_only_once() -> None:
    steps = ProfiledSteps(2, 3)
    assert turns(
        steps,
        (Phase.COMPUTING, 1),
        (Phase.CALLBACKS, 2),
        (Phase.READING, 2),
        (Phase.COMPUTING, 2),
        (Phase.COMPUTING, 3),
        (Phase.CALLBACKS, 4),
        (Phase.READING, 2),  # of another fit
    ) == [None, None, True, None, None, False, None]


def test_it_goes_off_when_the_fit_is_over_and_comes_late_for_one_who_comes_late() -> None:
    assert turns(ProfiledSteps(2, 9), (Phase.COMPUTING, 5), (Phase.SCRIPT, 6)) == [True, False]
    assert turns(ProfiledSteps(2, 9), (Phase.COMPUTING, 12)) == [None]


def test_a_worker_that_takes_turns_with_others_is_profiled_in_its_next_step_if_none_of_these_is_its_own() -> None:
    assert turns(ProfiledSteps(2, 3), (Phase.COMPUTING, 1), (Phase.COMPUTING, 4), (Phase.CALLBACKS, 5)) == [
        *(None, True, False),
    ]

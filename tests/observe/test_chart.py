"""A run's chart is bounded, and outlives its writer."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from shoal.observe.chart import CHART, MOST_POINTS, Chart, ChartPoint, Thinning, read, shown


def point(at: float) -> ChartPoint:
    return ChartPoint(at, int(at), 10.0, 2, {"loss": 0.5})


def test_a_run_of_days_has_as_many_points_as_one_of_an_hour_and_keeps_its_beginning(tmp_path: Path) -> None:
    chart = Chart(tmp_path)
    for second in range(4 * MOST_POINTS):
        if chart.is_due(second):
            chart.add(point(second))
    kept = read(tmp_path)
    assert MOST_POINTS / 2 <= len(kept) <= MOST_POINTS
    assert kept[0].at < 10
    assert kept[-1].at > 4 * MOST_POINTS - 10
    gaps = {after.at - before.at for before, after in itertools.pairwise(kept)}
    assert max(gaps) <= 8


def test_a_coordinator_that_takes_anothers_place_goes_on_with_its_chart(tmp_path: Path) -> None:
    Chart(tmp_path).add(point(1.0))
    with (tmp_path / CHART).open("ab") as file:
        file.write(b'[2.0,"cut of')
    chart = Chart(tmp_path)
    assert not chart.is_due(1.5)
    assert chart.is_due(2.1)


def test_a_clock_that_is_set_back_does_not_stop_the_chart() -> None:
    thinning = Thinning()
    thinning.add(point(100.0))
    assert thinning.is_due(50.0)


def test_what_can_not_be_written_fails_nobody(tmp_path: Path) -> None:
    Chart(tmp_path / "gone").add(point(1.0))
    assert read(tmp_path / "gone") == []


def test_of_logs_only_numbers_are_shown_and_not_too_many() -> None:
    logs = {"loss": 1.5, "n": 2, "nan": math.nan, "text": "x", **{f"m{i}": 0.0 for i in range(100)}}
    found = shown(logs)
    assert (found["loss"], found["n"], found["nan"], "text" in found) == (1.5, 2.0, None, False)
    assert len(found) == 16

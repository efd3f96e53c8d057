"""The figures as Prometheus reads them: read by its own library."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from shoal.cluster.messages import RunOutcome
from shoal.dashboard.facts import PageFacts, page_facts
from shoal.dashboard.metrics import metrics

from .scene import gathered, reply, worker


def parsed(runs: list[PageFacts]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics(runs))
        for sample in family.samples
    }


def test_prometheus_reads_every_figure_of_every_run() -> None:
    live = page_facts(gathered(reply(worker(0, logs={"loss": 0.25, "bad": None}), worker(1, "lost"), losses=1)))
    over = page_facts(gathered(reply(worker(0, "finished"), ended=RunOutcome(True, "done")), False))
    found = parsed([live, msgspec.structs.replace(over, run='a"b\\c\nd')])
    assert found["shoal_run_up", (("run", "r1"),)] == 1.0
    assert found["shoal_run_up", (("run", 'a"b\\c\nd'),)] == 0.0
    assert found["shoal_samples_per_second", (("run", "r1"),)] == 512.0
    assert found["shoal_samples_per_second", (("run", 'a"b\\c\nd'),)] == 0.0
    assert found["shoal_losses_total", (("run", "r1"),)] == 1.0
    assert found["shoal_log", (("name", "loss"), ("run", "r1"))] == 0.25
    assert found["shoal_members", (("role", "worker"), ("run", "r1"), ("state", "lost"))] == 1.0
    assert found["shoal_member_time_share", (("member", "worker-0"), ("run", "r1"), ("use", "waiting"))] == 0.25
    assert not any(name == "shoal_log" and ("name", "bad") in labels for name, labels in found)


def test_nothing_to_tell_is_no_error() -> None:
    assert metrics([]) == ""


def test_the_grafana_dashboard_asks_for_figures_that_there_are() -> None:
    board = json.loads((Path(__file__).parents[2] / "examples" / "grafana.json").read_text())
    live = page_facts(gathered(reply(worker(0, logs={"loss": 0.25}))))
    known = {name for name, _ in parsed([live])}
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert asked
    for expression in asked:
        assert any(name in expression for name in known), expression

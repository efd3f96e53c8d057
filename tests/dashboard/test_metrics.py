"""The figures as Prometheus reads them: read by its own library."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from shoal.cluster.messages import RunOutcome
from shoal.dashboard.facts import PageFacts, page_facts
from shoal.dashboard.metrics import metrics
from shoal.observe.counters import WorkerFigures

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
    assert found["shoal_run_uptime_seconds", (("run", "r1"),)] == 61.0
    assert found["shoal_step", (("run", "r1"),)] == 40.0
    assert found["shoal_member_memory_bytes", (("member", "worker-0"), ("run", "r1"))] == 3e8
    assert found["shoal_member_silent_seconds", (("member", "worker-0"), ("run", "r1"))] == 0.1
    assert not any(("member", "worker-1") in labels for _, labels in found), "who is lost has no figures any more"
    kinds = {family.name: family.type for family in text_string_to_metric_families(metrics([live]))}
    assert kinds.pop("shoal_losses") == "counter"
    assert set(kinds.values()) == {"gauge"}
    assert found["shoal_log", (("name", "loss"), ("run", "r1"))] == 0.25
    assert found["shoal_members", (("role", "worker"), ("run", "r1"), ("state", "lost"))] == 1.0
    assert found["shoal_member_time_share", (("member", "worker-0"), ("run", "r1"), ("use", "waiting"))] == 0.25
    assert not any(name == "shoal_log" and ("name", "bad") in labels for name, labels in found)


def test_how_stale_updates_are_is_told_of_those_who_know() -> None:
    stale = msgspec.structs.replace(worker(0), counted=WorkerFigures(aged=4, staleness=6))
    found = parsed([page_facts(gathered(reply(stale, worker(1))))])
    told = {labels: value for (name, labels), value in found.items() if name == "shoal_member_staleness"}
    assert told == {(("member", "worker-0"), ("run", "r1")): 1.5}


def test_nothing_to_tell_is_no_error() -> None:
    assert metrics([]) == ""


BOARD = json.loads((Path(__file__).parents[2] / "examples" / "grafana.json").read_text())


def test_the_grafana_dashboard_asks_for_figures_and_labels_that_there_are() -> None:
    known: dict[str, set[str]] = {}
    for name, labels in parsed([page_facts(gathered(reply(worker(0, logs={"loss": 0.25}))))]):
        known.setdefault(name, set()).update(label for label, _ in labels)
    asked = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])]
    asked += [variable["query"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"]
    assert len(asked) > 5
    for expression in asked:
        names = re.findall(r"\bshoal_\w+", expression)
        assert names, expression
        for name in names:
            assert name in known, f"{name} is not served: {expression}"
        for name, braces in re.findall(r"\b(shoal_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)\s*=", braces)) <= known[name], expression
    shown = "".join(json.dumps(panel) for panel in BOARD["panels"])
    for label in re.findall(r"\{\{(\w+)\}\}", shown):  # in legends
        assert any(label in labels for labels in known.values()), label


def test_the_grafana_dashboard_has_what_grafana_needs_to_import_it() -> None:
    """As its own schema says: panels with a place that is free, sources by a variable that the board has."""
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= BOARD.keys()
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)\}?", json.dumps(BOARD))) <= variables | {"__rate_interval", "__interval"}
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        refs = {target["refId"] for target in panel["targets"]}
        assert len(refs) == len(panel["targets"])
        assert "" not in refs

"""A run whose members' spans go to a collector; and what becomes of one whose collector is not there."""

from __future__ import annotations

from tests.otel.receiver import attributes, collecting

from .launched import World

# What a fit would tell, without keras, which takes longer to import than all of this.
TRAINS = """
    for step in range(30):
        say(step, "COMPUTING", "piece 1")
        time.sleep(0.02)
        say(step, "EXCHANGING")
        me.count(64, 2)
"""


def test_the_spans_of_all_members_arrive_with_the_run_s_end(world: World) -> None:
    with collecting() as collector:
        run = world.run(TRAINS, "-n", 2, "--otel", "--no-live", OTEL_EXPORTER_OTLP_ENDPOINT=collector.address)
        assert run.wait() == 0, run.err
    workers = {about["shoal.member"]: name for name, about in collector.resources.items()}
    for worker in ("worker-0", "worker-1"):
        told = [
            attributes(span)["shoal.step"] for span in collector.by_resource[workers[worker]] if span.name == "step"
        ]
        assert sorted(told) == list(range(30))
    happened = {span.name for span in collector.by_resource[workers["the run"]]}
    assert {"run", "step", "process", "view"} <= happened
    assert f"spans of 2 members were sent to {collector.address}" in run.err


def test_without_a_collector_the_run_says_so_and_goes_on(world: World) -> None:
    with collecting() as collector:
        collector.status = 400
        run = world.run(TRAINS, "-n", 2, "--otel", "--no-live", OTEL_EXPORTER_OTLP_ENDPOINT=collector.address)
        assert run.wait() == 0, run.err
    assert "0 spans of 2 members were sent" in run.err
    assert "were not taken, otel.log says why" in run.err
    assert "400" in run.log("otel")


def test_what_can_not_be_is_refused_before_anything_starts(world: World) -> None:
    run = world.run(TRAINS, "-n", 2, "--otel", "--no-record")
    assert run.wait() == 2
    assert "--otel sends what members record" in run.err
    run = world.run(TRAINS, "-n", 2, "--otel", OTEL_TRACES_EXPORTER="none")
    assert run.wait() == 2
    assert "OTEL_TRACES_EXPORTER=none" in run.err

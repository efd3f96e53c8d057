"""Which waits for data are worth a line of the story."""

from __future__ import annotations

from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.cluster.slow_input import SlowInput
from shoal.observe.counters import WorkerFigures
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import TimeShares


def worker(number: int, reads: float = 0.0, waits: float = 0.0, **counted: bool) -> MemberStatus:
    spent = {TimeUse.READING: reads, TimeUse.WAITING: waits, TimeUse.COMPUTING: 1.0 - reads - waits}
    return MemberStatus(
        *(f"worker-{number}", "worker", 1, "box", "training", 40, "", "", 100.0, 0.0),
        spent=TimeShares(spent),
        counted=WorkerFigures(**counted),  # type: ignore[arg-type]
    )


def told(seconds: int, *workers: MemberStatus, by: SlowInput | None = None, since: int = 0) -> list[str]:
    found, by = [], by or SlowInput()
    for now in range(since, since + seconds):
        found += by.of(StatusReply("r", "t.py", "jax", "allreduce", 2, 1, 1, 9.0, "", workers), float(now))
    return [line.text for line in found]


def test_who_waits_for_whose_data_is_told() -> None:
    own = told(10, worker(0, waits=0.4), worker(1, reads=0.5))
    assert own == ["worker-1 waits for data 50 % of the time, and the others wait for it"]
    chiefs = told(10, worker(0, reads=0.4, streams=True), worker(1, reads=0.5, streams=True))
    assert chiefs == ["worker-1 waits for data 50 % of the time: worker-0 reads for all"]
    alone = told(10, worker(0, asynchronous=True), worker(1, reads=0.5, asynchronous=True))
    assert alone == ["worker-1 waits for data 50 % of the time, which it reads itself"]


def test_a_moment_is_not_told_nor_what_is_little() -> None:
    assert told(4, worker(0, reads=0.9)) == []
    assert told(100, worker(0, reads=0.2), worker(1, reads=0.25)) == []
    assert told(100) == []


def test_in_an_hour_of_it_there_are_few_lines() -> None:
    assert 4 <= len(told(3600, worker(0, reads=0.5))) <= 7


def test_it_is_over_when_it_has_become_little() -> None:
    one = SlowInput()
    assert told(4, worker(0, reads=0.5), by=one) == []
    assert told(4, worker(0, reads=0.1), by=one, since=4) == []
    assert told(4, worker(0, reads=0.5), by=one, since=8) == []

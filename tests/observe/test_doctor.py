"""What is found in facts that nobody measured."""

from __future__ import annotations

from shoal.observe.doctor import RunFacts, WorkerFacts, examine
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import TimeShares

GB = 10**9


def worker(number: int, memory: int = GB, **shares: float) -> WorkerFacts:
    spent = {TimeUse(use): share for use, share in shares.items()}
    spent[TimeUse.COMPUTING] = 1.0 - sum(shares.values())
    return WorkerFacts(f"worker-{number}", "box", TimeShares(spent), memory)


def found(*workers: WorkerFacts, cores: int = 8, memory: int = 64 * GB) -> list[str]:
    return [finding.what for finding in examine(RunFacts(workers, 4, 1, cores, memory))]


def test_of_a_run_that_computes_nothing_is_found() -> None:
    assert found(worker(0, waiting=0.1, exchanging=0.1, callbacks=0.2), worker(1, waiting=0.12, reading=0.05)) == []


def test_before_anything_is_trained_nothing_is_found() -> None:
    assert found(WorkerFacts("worker-0", "box", TimeShares())) == []


def test_waiting_for_data() -> None:
    first, *_ = found(worker(0, reading=0.5), worker(1, reading=0.45))
    assert first == "the workers wait for data 48 % of the time"
    first, *_ = found(worker(0, reading=0.5), worker(1, waiting=0.45))
    assert first == "worker-0 waits for data 50 % of the time"


def test_callbacks() -> None:
    assert found(worker(0, callbacks=0.4), worker(1, callbacks=0.4)) == ["callbacks take 40 % of the time"]


def test_a_worker_that_is_slower() -> None:
    (what,) = found(worker(0, waiting=0.5), worker(1, waiting=0.02), worker(2, waiting=0.4))
    assert what == "worker-1 on box is slower: the others wait 45 % of the time, it waits 2 %"


def test_more_workers_than_cores() -> None:
    (what,) = found(*(worker(number, waiting=0.3) for number in range(4)), cores=2)
    assert what == "4 workers with 1 threads each share 2 cores: they wait for each other 30 % of the time"


def test_the_exchange() -> None:
    assert found(worker(0, exchanging=0.4), worker(1, exchanging=0.4)) == [
        "exchanging gradients takes 40 % of the time"
    ]


def test_memory_that_is_nearly_used_up_comes_first() -> None:
    first, *_ = found(worker(0, 8 * GB, reading=0.6), worker(1, 7 * GB, reading=0.6), memory=16 * GB)
    assert first == "the workers use 15.0 of this host's 16.0 GB of memory"


def test_the_worst_comes_first() -> None:
    first, second = found(worker(0, callbacks=0.5, exchanging=0.2), worker(1, callbacks=0.5, exchanging=0.2))
    assert first.startswith("callbacks take 50 %")
    assert second.startswith("exchanging gradients takes 20 %")

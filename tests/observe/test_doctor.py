"""What is found in facts that nobody measured, and in some that were."""

from __future__ import annotations

import os
import platform

import msgspec
import pytest

from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.cluster.run_facts import facts_of
from shoal.observe.counters import WorkerFigures
from shoal.observe.doctor import Finding, FindingKind, RunFacts, WorkerFacts, examine
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import TimeShares

GB = 10**9
SECONDS = 100.0


def worker(number: int, memory: int = GB, counted: WorkerFigures | None = None, **shares: float) -> WorkerFacts:
    """One that has trained for 100 seconds."""
    spent = {TimeUse(use): SECONDS * share for use, share in shares.items()}
    spent[TimeUse.COMPUTING] = SECONDS * (1.0 - sum(shares.values()))
    return WorkerFacts(f"worker-{number}", "box", TimeShares(spent), memory, counted or pieces())


def pieces(
    number: int = 1000, mean: float = 0.05, steps: int = 1000, spread: float = 0.1, **more: object
) -> WorkerFigures:
    squares = number * mean**2 * (1 + spread**2)
    about = {"steps": steps, "pieces": number, "rows": 32 * number, "piece_seconds": number * mean} | more
    return WorkerFigures(piece_squares=squares, **about)  # type: ignore[arg-type]


def found(
    *workers: WorkerFacts, cores: int = 8, memory: int = 64 * GB, count: int = 4, synchronous: bool = True
) -> list[Finding]:
    return examine(RunFacts(workers, count, 1, cores, memory, synchronous))


def kinds(*workers: WorkerFacts, **about: object) -> list[FindingKind]:
    return [finding.kind for finding in found(*workers, **about)]  # type: ignore[arg-type]


def test_of_a_run_that_computes_nothing_is_found() -> None:
    assert found(worker(0, waiting=0.1, exchanging=0.1, callbacks=0.2), worker(1, waiting=0.12, reading=0.05)) == []


def test_before_anything_is_trained_nothing_is_found() -> None:
    assert found(WorkerFacts("worker-0", "box", TimeShares())) == []


def test_unequal_workers_that_are_well_balanced_are_nothing_to_complain_about() -> None:
    fast = worker(0, counted=pieces(6000, 0.015), waiting=0.08)
    slow = worker(1, counted=pieces(2000, 0.047), waiting=0.02)
    assert found(fast, slow, count=8) == []


def test_waiting_for_data() -> None:
    first, *_ = found(worker(0, reading=0.5), worker(1, reading=0.45))
    assert (first.kind, first.what) == (FindingKind.DATA, "the workers wait for data 48 % of the time")


def test_one_worker_whose_data_is_slow_is_named_and_is_no_straggler() -> None:
    (only,) = found(worker(0, waiting=0.45), worker(1, reading=0.5), worker(2, waiting=0.46))
    assert (only.kind, only.what) == (FindingKind.DATA, "worker-1 on box waits for data 50 % of the time")


def test_the_stream_that_the_chief_reads_for_all() -> None:
    streamed = pieces(streams=True)
    chief, other = worker(0, counted=streamed, reading=0.6), worker(1, counted=streamed, waiting=0.58)
    (only,) = found(chief, other)
    assert only.what == "all wait for the data that worker-0 reads for them: 60 % of the time"
    assert "`PyDataset`" in only.advice


def test_a_callback_that_blocks_is_named() -> None:
    counted = pieces(callbacks={"Sleepy": 38.0, "ProgbarLogger": 1.0})
    (only,) = found(worker(0, counted=counted, callbacks=0.4), worker(1, counted=counted, callbacks=0.4))
    assert only.what == "callbacks take 40 % of the time, most of it Sleepy: 38 %, 38 ms for each step"
    assert only.advice == "Do less in Sleepy, or not after every batch."


def test_one_workers_callback_holds_up_all_and_its_worker_is_no_straggler() -> None:
    chief = worker(0, counted=pieces(callbacks={"Sleepy": 40.0}), callbacks=0.4)
    assert kinds(chief, worker(1, waiting=0.4)) == [FindingKind.CALLBACKS]


def test_of_the_progress_bar_less_is_said() -> None:
    counted = pieces(callbacks={"ProgbarLogger": 20.0})
    assert found(worker(0, counted=counted, callbacks=0.2)) == []
    (only,) = found(worker(0, counted=pieces(callbacks={"ProgbarLogger": 30.0}), callbacks=0.3))
    assert "`verbose=2`" in only.advice


def test_checkpoints_that_hold_up_the_training() -> None:
    counted = pieces(saving=25.0, checkpoints=50)
    (only,) = found(worker(0, counted=counted), worker(1, counted=counted))
    assert only.what == "checkpoints hold up the training 20 % of the time: 50 of them, 500 ms each"
    assert found(worker(0, counted=pieces(saving=5.0, checkpoints=50))) == []


def test_recompilation_says_which_shapes_there_are() -> None:
    counted = pieces(compilations=40, compiling=60.0, steps=50, shapes=("(32, 17) and (32, 1)", "(32, 23) and (32, 1)"))
    (only,) = found(worker(0, counted=counted), worker(1, counted=counted))
    assert only.what == (
        "the training step was compiled 40 times in 50 steps, which takes 60 % of the time: the shape of the batch "
        "changes, lately from (32, 17) to (32, 23)"
    )


def test_that_a_few_shapes_are_compiled_is_nothing_unusual() -> None:
    assert found(worker(0, counted=pieces(compilations=3, compiling=30.0))) == []


def test_a_worker_that_is_slower() -> None:
    (only,) = found(worker(0, waiting=0.5), worker(1, counted=pieces(mean=0.098), waiting=0.02), worker(2, waiting=0.4))
    assert only.kind is FindingKind.STRAGGLER
    assert only.what == (
        "worker-1 on box is slower: the others wait 45 % of the time, it waits 2 %; a piece takes it 98 ms, the others "
        "50 ms, steadily"
    )


def test_a_straggler_that_lacks_a_core_and_one_that_swaps() -> None:
    busy = pieces(mean=0.098, spread=1.5, starved=45.0, switches=9000)
    (only,) = found(worker(0, waiting=0.5), worker(1, counted=busy))
    assert "in bursts. It was ready to run and had no core 45 % of the time" in only.what
    assert "9,000 times" in only.what
    assert only.advice.startswith("Something else runs on its cores")
    (only,) = found(worker(0, waiting=0.5), worker(1, counted=pieces(mean=0.098, faults=9000)))
    assert "is being swapped: 9,000 pages had to come from disk" in only.what


def test_pieces_that_cannot_be_divided_evenly() -> None:
    late = worker(0, counted=pieces(2000))
    (only,) = found(late, worker(1, waiting=0.48), worker(2, waiting=0.48), count=4)
    assert only.kind is FindingKind.IMBALANCE
    assert only.what == (
        "worker-0 computes 2.0 of the 4 pieces of a step, the others 1.0, and they are as fast: they wait for it 48 % "
        "of the time"
    )
    assert "`--pieces 3`" in only.advice


def test_pieces_that_are_too_small() -> None:
    small = pieces(32_000, 0.001, rows=64_000)
    (only,) = found(worker(0, counted=small, exchanging=0.1), worker(1, counted=small, exchanging=0.1), count=64)
    assert only.kind is FindingKind.SMALL_PIECES
    assert "worker-0 computes 32 of 64 in a step, of 2 rows and 1.0 ms each" in only.what


def test_one_small_piece_for_each_worker_is_not_too_small_a_piece() -> None:
    assert found(worker(0, counted=pieces(1000, 0.001)), worker(1, counted=pieces(1000, 0.001))) == []


def test_a_slow_link_is_told_with_bytes_and_speed_and_what_a_larger_batch_or_a_codec_would_give() -> None:
    far = pieces(sent=4_200_000_000, arrived=90_000_000, arriving=30.0)
    (only,) = found(worker(0, counted=far, exchanging=0.5), worker(1, counted=far, exchanging=0.5))
    assert only.kind is FindingKind.EXCHANGE
    assert only.what == (
        "exchanging gradients takes 50 % of the time: worker-0 sends 4.2 MB a step, and what it waits for comes at "
        "3.0 MB a second"
    )
    assert "about 33 % more samples a second" in only.advice
    assert "`--compress bf16` sends half of the bytes (about 18 % more)" in only.advice
    assert "`--compress int8` a quarter of them (about 29 % more)" in only.advice


def test_where_a_codec_is_at_work_no_other_is_advised() -> None:
    far = pieces(sent=4_200_000_000, arrived=90_000_000, arriving=30.0, spared=4_200_000_000)
    (only,) = found(worker(0, counted=far, exchanging=0.5), worker(1, counted=far, exchanging=0.5))
    assert "--compress" not in only.advice


def test_an_exchange_through_memory_says_how_much() -> None:
    near = pieces(shared=8_000_000_000, sent=1000)
    (only,) = found(worker(0, counted=near, exchanging=0.4), worker(1, counted=near, exchanging=0.4))
    assert only.what.endswith(": worker-0 gives the others 8.0 MB a step through shared memory")
    assert "`--threads`" in only.advice


def test_servers_that_are_waited_for_and_nobody_who_is_waited_for_where_nobody_waits_for_workers() -> None:
    (only,) = found(worker(0, waiting=0.5), worker(1, waiting=0.2), synchronous=False)
    assert (only.kind, only.what) == (FindingKind.SERVERS, "the workers wait for the servers 35 % of the time")


def test_more_workers_than_cores() -> None:
    (only,) = found(*(worker(number, counted=pieces(starved=40.0, switches=50)) for number in range(4)), cores=2)
    assert only.what == (
        "4 workers with 1 thread each share 2 cores: they were ready to run, and had no core, 40 % of the time; a core "
        "was taken away from them 200 times"
    )


def test_servers_need_cores_too() -> None:
    workers = tuple(worker(number, counted=pieces(starved=30.0)) for number in range(2))
    (only,) = examine(RunFacts(workers, 2, 1, cores=2, servers=1))
    assert only.what.startswith("2 workers and 1 server with 1 thread each share 2 cores")


def test_cores_that_other_programs_use() -> None:
    (only,) = found(*(worker(number, counted=pieces(starved=40.0)) for number in range(2)), cores=2)
    assert only.what.startswith("other programs use the workers' cores: they were ready to run")


def test_a_workers_own_threads_that_take_turns_on_a_core_lack_nothing() -> None:
    assert found(*(worker(number, counted=pieces(starved=40.0, cpu=97.0)) for number in range(2))) == []


def test_where_the_system_tells_nothing_of_cores_waiting_tells() -> None:
    (only,) = found(*(worker(number, waiting=0.3) for number in range(4)), cores=2)
    assert only.kind is FindingKind.CORES


def test_memory_that_is_nearly_used_up_comes_first() -> None:
    first, *_ = found(worker(0, 8 * GB, reading=0.6), worker(1, 7 * GB, reading=0.6), memory=16 * GB)
    assert first.what == "the workers use 15.0 of this host's 16.0 GB of memory"


def test_the_worst_comes_first() -> None:
    counted = pieces(callbacks={"Sleepy": 50.0})
    first, second = found(
        worker(0, counted=counted, callbacks=0.5, exchanging=0.2), worker(1, callbacks=0.5, exchanging=0.2)
    )
    assert (first.kind, second.kind) == (FindingKind.CALLBACKS, FindingKind.EXCHANGE)


@pytest.mark.parametrize("kind", FindingKind)
def test_every_kind_of_finding_is_found_in_some_facts(kind: FindingKind) -> None:
    facts = {
        FindingKind.DATA: found(worker(0, reading=0.5)),
        FindingKind.CALLBACKS: found(worker(0, callbacks=0.5)),
        FindingKind.CHECKPOINTS: found(worker(0, counted=pieces(saving=50.0))),
        FindingKind.COMPILING: found(worker(0, counted=pieces(compilations=9, compiling=50.0))),
        FindingKind.STRAGGLER: found(worker(0, waiting=0.5), worker(1)),
        FindingKind.IMBALANCE: found(worker(0, waiting=0.5), worker(1, counted=pieces(2000))),
        FindingKind.SMALL_PIECES: found(worker(0, counted=pieces(9000, 0.001))),
        FindingKind.EXCHANGE: found(worker(0, exchanging=0.5)),
        FindingKind.SERVERS: found(worker(0, waiting=0.5), synchronous=False),
        FindingKind.CORES: found(worker(0, counted=pieces(starved=50.0))),
        FindingKind.MEMORY: found(worker(0, 60 * GB)),
    }[kind]
    assert [finding.kind for finding in facts] == [kind]


def elsewhere(of: WorkerFacts) -> WorkerFacts:
    return msgspec.structs.replace(of, host="other")


def test_of_several_hosts_this_one_is_judged_by_its_own_workers() -> None:
    full = (worker(0, 8 * GB), worker(1, 7 * GB), elsewhere(worker(2, 50 * GB)))
    (only,) = examine(RunFacts(full, 3, 1, cores=8, memory=16 * GB, host="box"))
    assert only.what == "the workers use 15.0 of this host's 16.0 GB of memory"
    crowded = (*(worker(number, counted=pieces(starved=40.0)) for number in range(3)), elsewhere(worker(3)))
    facts = RunFacts(crowded, 4, 1, cores=2, memory=64 * GB, synchronous=False, host="box")
    assert [one.what for one in examine(facts) if one.kind is FindingKind.CORES] == [
        "3 workers on box with 1 thread each share 2 cores: they were ready to run, and had no core, 40 % of the time; "
        "a core was taken away from them 0 times"
    ]


def test_what_a_run_asks_for_on_other_hosts_is_no_matter_of_this_one() -> None:
    facts = RunFacts((worker(0), elsewhere(worker(1, 64 * GB))), 2, 1, cores=1, memory=16 * GB, host="box")
    assert examine(facts) == []


def test_facts_of_a_run_on_several_hosts_have_this_ones_cores_and_servers() -> None:
    def member(id: str, role: str, host: str) -> MemberStatus:
        return MemberStatus(id, role, 1, host, "training", 4, "", "", 1.0, 0.0)

    here = platform.node()
    members = (
        member("worker-0", "worker", here),
        member("worker-1", "worker", "far"),
        member("server-0", "server", "far"),
    )
    facts = facts_of(StatusReply("r", "t.py", "jax", "ps", 2, 1, 1, 9.0, "", members))
    assert facts.cores == os.cpu_count()
    assert facts.memory is not None
    assert ([one.id for one in facts.here], facts.servers) == (["worker-0"], 0)
    away = facts_of(StatusReply("r", "t.py", "jax", "ps", 2, 1, 1, 9.0, "", members[1:]))
    assert (away.cores, away.memory, away.here) == (None, None, ())

"""`shoal top`, of replies that nobody sent."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from shoal.cli.top import shown
from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.observe.counters import WorkerFigures
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import TimeShares


def printed(replies: dict[str, StatusReply | str]) -> str:
    console = Console(width=160, markup=False, highlight=False, file=io.StringIO())
    console.print(shown(replies))
    text: str = console.file.getvalue()
    return text


def worker(number: int, state: str, spent: dict[TimeUse, float]) -> MemberStatus:
    doing = "computing piece 1"
    return MemberStatus(
        f"worker-{number}",
        "worker",
        70 + number,
        "vm",
        state,
        1200,
        "",
        doing,
        512.0,
        0.0,
        TimeShares(spent),
        3 * 10**8,
        counted=WorkerFigures(steps=100, pieces=250, sent=1_000_000, shared=200_000) if spent else WorkerFigures(),
    )


def test_it_shows_where_the_time_of_each_worker_goes() -> None:
    members = (
        MemberStatus("coordinator", "coordinator", 69, "vm", "serving", 0, "", "", 0.0, 0.0),
        worker(0, "training", {TimeUse.COMPUTING: 3.0, TimeUse.WAITING: 1.0, TimeUse.OTHER: 50.0}),
        worker(1, "lost", {}),
    )
    text = printed({"r1": StatusReply("r1", "/x/train.py", "jax", "allreduce", 4, 1, 1, 61.0, "/logs", members)})
    assert "run r1 · train.py · allreduce · jax · up 0:01:01 · 1 of 2 workers · step 1,200 · 512 samples/s" in text
    (line,) = [" ".join(line.split()) for line in text.splitlines() if line.startswith("worker-0")]
    assert line == "worker-0 training 70 1,200 512 2.5 12 300 75 25 computing piece 1"


def test_with_parameter_servers_it_shows_how_old_the_weights_are_that_updates_come_from() -> None:
    one = msgspec.structs.replace(
        worker(0, "training", {TimeUse.COMPUTING: 1.0}), counted=WorkerFigures(steps=40, aged=40, staleness=58)
    )
    server = MemberStatus("server-0", "server", 80, "vm", "serving", 90, "", "serving", 0.0, 0.0)
    server = msgspec.structs.replace(server, counted=WorkerFigures(aged=80, staleness=120))
    members = (one, worker(1, "lost", {}), server)
    text = printed({"r1": StatusReply("r1", "/x/train.py", "jax", "ps", 4, 1, 1, 61.0, "/logs", members)})
    heading, *lines = text.splitlines()[1:]
    assert heading.split()[-2:] == ["stale", "doing"]
    assert [line.split()[-4:] for line in lines if line.startswith("worker-0")] == [["1.4", "computing", "piece", "1"]]
    assert [line.split()[-2:] for line in lines if line.startswith("server-0")] == [["1.5", "serving"]]


def test_a_run_that_does_not_answer_and_no_run_at_all_are_said() -> None:
    assert "run r1 does not answer: refused" in printed({"r1": "does not answer: refused"})
    assert "No runs on this machine" in printed({})

"""`shoal top`, of replies that nobody sent."""

from __future__ import annotations

import io

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


def test_a_run_that_does_not_answer_and_no_run_at_all_are_said() -> None:
    assert "run r1 does not answer: refused" in printed({"r1": "does not answer: refused"})
    assert "No runs on this machine" in printed({})

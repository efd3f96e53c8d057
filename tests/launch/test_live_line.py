"""The line that says how a run goes on, and the row of the terminal that it lies on."""

from __future__ import annotations

import msgspec
import pyte
import pytest

from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.launch.live_line import draw_row, give_row_back, take_row
from shoal.launch.progress import progress
from shoal.observe.counters import WorkerFigures
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import TimeShares

ROWS, COLUMNS = 6, 40
HOW_FAR = "workers · step 12,345 · 98,765"


def reply(*members: MemberStatus, strategy: str = "allreduce", losses: int = 0, wanted: int = 0) -> StatusReply:
    return StatusReply("r1", "/x/train.py", "jax", strategy, 4, 1, 1, 61.0, "/logs", members, losses, wanted=wanted)


def worker(number: int, waits: float, state: str = "training", step: int = 7) -> MemberStatus:
    spent = TimeShares({TimeUse.COMPUTING: 1.0 - waits, TimeUse.WAITING: waits})
    return MemberStatus(f"worker-{number}", "worker", 70, "vm", state, step, "", "", 100.0, 0.0, spent)


def test_it_says_who_how_far_how_fast_and_where_the_time_goes() -> None:
    told = progress(reply(worker(0, 0.2), worker(1, 0.2)))
    assert told == "2 workers · step 7 · 100 samples/s · 80 % computing · 20 % waiting"


def test_before_the_first_step_there_is_nothing_to_say() -> None:
    assert progress(reply(worker(0, 0.0, step=0))) == ""


def test_the_one_that_others_wait_for_is_named() -> None:
    assert "slowest: worker-1, the others wait 45 %" in progress(reply(worker(0, 0.4), worker(1, 0.05), worker(2, 0.5)))
    assert "slowest" not in progress(reply(worker(0, 0.1), worker(1, 0.05)))


def test_the_last_checkpoint_is_named() -> None:
    saved = msgspec.structs.replace(worker(0, 0.0), counted=WorkerFigures(checkpoints=1, saved=1200))
    assert "· checkpoint of step 1,200" in progress(reply(saved, worker(1, 0.0)))


def test_losses_and_those_who_are_coming_are_counted() -> None:
    told = progress(reply(worker(0, 0.0), worker(1, 0.0, "lost"), worker(2, 0.0, "starting"), losses=1))
    assert told == "1 of 2 workers · step 7 · 100 samples/s · 100 % computing · 1 lost"


def test_of_those_who_are_wanted_the_lost_are_missing_and_a_standby_is_not() -> None:
    here = worker(0, 0.0), worker(1, 0.0)
    assert progress(reply(*here, worker(2, 0.0, "lost"), wanted=3)).startswith("2 of 3 workers · step 7")
    assert progress(reply(*here, worker(2, 0.0, "ready"), wanted=2)).endswith("100 % computing · 1 standing by")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (60, f"3/4 {HOW_FAR}/s"),
        (80, f"3/4 {HOW_FAR}/s · 68% comp 32% wait · worker-1 slow"),
        (120, f"3 of 4 {HOW_FAR}/s · 68% comp 32% wait · worker-1 slow · 1 lost · checkpoint of step 12,000"),
        (
            200,
            f"3 of 4 {HOW_FAR} samples/s · 68 % computing · 32 % waiting · slowest: worker-1, the others wait 45 % · "
            "1 lost · checkpoint of step 12,000",
        ),
    ],
)
def test_on_a_narrow_terminal_what_matters_most_is_said_and_no_word_is_cut_off(columns: int, expected: str) -> None:
    faster = {"step": 12345, "samples_per_second": 98765.4, "counted": WorkerFigures(checkpoints=3, saved=12000)}
    workers = [msgspec.structs.replace(worker(n, wait), **faster) for n, wait in enumerate((0.4, 0.05, 0.5))]
    told = progress(reply(*workers, worker(3, 0.0, "lost"), losses=1, wanted=4), columns - len("shoal: ") - 1)
    assert told == expected


def test_of_four_workers_the_shares_and_the_slowest_fit_on_eighty_columns() -> None:
    waits = [0.4, 0.05, 0.4, 0.4]
    told = progress(reply(*(worker(number, wait, step=1303) for number, wait in enumerate(waits))), 80 - 8)
    assert told == "4 workers · step 1,303 · 100/s · 69% comp 31% wait · worker-1 slow"


def test_where_nothing_fits_nothing_is_said() -> None:
    assert progress(reply(worker(0, 0.0)), 5) == ""


def test_without_a_common_step_their_rates_add_up() -> None:
    alone = [msgspec.structs.replace(worker(n, 0.0), counted=WorkerFigures(asynchronous=True)) for n in range(2)]
    assert "200 samples/s" in progress(reply(*alone, strategy="ps"))


def test_the_script_scrolls_above_the_line_and_gets_its_row_back() -> None:
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    for number in range(20):
        stream.feed(f"line {number}\r\n")
    stream.feed(take_row(ROWS).replace("\n", "\r\n"))
    for number in range(20, 25):
        stream.feed(f"line {number}\r\n" + draw_row(ROWS, f"status {number}") + "bar\r")
    shown = [row.rstrip() for row in screen.display]
    assert shown == ["line 21", "line 22", "line 23", "line 24", "bar", "status 24"]
    stream.feed(give_row_back(ROWS))
    stream.feed("the end\r\n")
    shown = [row.rstrip() for row in screen.display]
    assert shown == ["line 21", "line 22", "line 23", "line 24", "the end", ""]
    assert screen.margins in (None, pyte.screens.Margins(0, ROWS - 1))

"""What a worker counts of itself."""

from __future__ import annotations

import threading
import time

import msgspec

from shoal.observe.counters import Counters, SystemFigures, WorkerFigures, summed


def test_pieces_steps_and_compilations_are_counted_and_told_lately_or_in_all() -> None:
    counters = Counters()
    for seconds in (0.1, 0.3):
        counters.piece(8, seconds)
    counters.step()
    before = counters.figures()
    assert (before.pieces, before.rows, before.steps) == (2, 16, 1)
    assert abs(before.piece_mean - 0.2) < 1e-9
    assert abs(before.piece_spread - 0.5) < 1e-9
    counters.compiled("(8, 17)", 2.0)
    counters.piece(8, 0.1)
    lately = counters.figures().since(before)
    assert (lately.pieces, lately.steps, lately.compilations, lately.compiling) == (1, 0, 1, 2.0)
    assert lately.shapes == ("(8, 17)",)


def test_how_stale_updates_were_is_told_lately_on_average() -> None:
    counters = Counters()
    assert counters.figures().staleness_mean is None
    counters.staleness.update([0, 4])
    before = counters.figures()
    assert before.staleness_mean == 2.0
    counters.staleness.update([1, 1, 4])
    assert counters.figures().since(before).staleness_mean == 2.0
    assert summed([before, counters.figures()]).aged == 7


def test_before_the_first_piece_nothing_of_the_system_counts() -> None:
    assert Counters().figures() == WorkerFigures()


def test_what_is_told_is_bounded_however_much_there_is() -> None:
    counters = Counters()
    for number in range(500):
        counters.callbacks[f"Callback{number}" * 50] = float(number)
        counters.compiled(f"({number}, 3)" * 50, 0.0)
    told = counters.figures()
    assert len(msgspec.msgpack.encode(told)) < 2000
    assert max(told.callbacks.values()) == 499.0
    assert len(told.shapes) == 4


def test_seconds_of_a_callback_are_told_lately() -> None:
    counters = Counters()
    counters.callbacks["Slow"] = 3.0
    before = counters.figures()
    counters.callbacks["Slow"] = 5.0
    counters.callbacks["New"] = 1.0
    assert counters.figures().since(before).callbacks == {"Slow": 2.0, "New": 1.0}


def test_checkpoints_are_counted_with_the_seconds_that_they_held_up_the_training() -> None:
    counters = Counters()
    with counters.checkpointing():
        time.sleep(0.01)
    counters.checkpoint(40)
    told = counters.figures()
    assert (told.checkpoints, told.saved) == (1, 40)
    assert told.saving >= 0.01


def test_of_several_workers_bytes_are_added_up_and_common_steps_are_not() -> None:
    one = WorkerFigures(steps=10, checkpoints=2, sent=100, shared=5)
    both = summed([one, WorkerFigures(steps=9, checkpoints=1, sent=50, shared=5)])
    assert (both.steps, both.checkpoints, both.sent, both.shared) == (10, 2, 150, 10)
    assert summed([]) == WorkerFigures()


def test_the_system_is_asked_while_threads_come_and_go() -> None:
    before = SystemFigures.now()
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    found = SystemFigures.now().since(before)
    assert found.starved >= 0.0
    assert found.switches >= 0

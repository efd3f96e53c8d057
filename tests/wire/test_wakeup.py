from __future__ import annotations

import pytest

from shoal.clock import Deadline
from shoal.errors import RunEnded
from shoal.wire import Wakeup
from shoal.wire.waits import READABLE, wait


def test_a_wakeup_sleeps_until_it_is_set_and_keeps_its_first_reason() -> None:
    wake, other = Wakeup(), Wakeup()
    wake.check()
    assert not wait(other.fileno(), READABLE, Deadline.after(0.01), wake)
    wake.set(RunEnded("first"))
    wake.set(RunEnded("second"))
    for _ in range(2):
        with pytest.raises(RunEnded, match="first"):
            wake.check()
    with pytest.raises(RunEnded, match="first"):
        wait(other.fileno(), READABLE, Deadline.after(10.0), wake)
    wake.close()
    other.close()


def test_a_closed_wakeup_still_knows_its_reason() -> None:
    wake = Wakeup()
    wake.close()
    wake.set(RunEnded("late"))
    with pytest.raises(RunEnded, match="late"):
        wake.check()
    wake.close()

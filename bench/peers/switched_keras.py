"""The plain Keras script, in workers that can be told to keep no record for a while, and to keep one again.

So a run is compared with itself: two runs of the same script may differ by more than what is to be measured.
"""

from __future__ import annotations

import signal
from types import FrameType

import plain_keras

from shoal import session

OFF, ON = signal.SIGRTMIN + 1, signal.SIGRTMIN + 2


def switch(number: int, frame: FrameType | None) -> None:
    member = session.current()
    keeper = member._record_keeper
    if keeper is None:
        return
    if number == OFF:
        keeper.drain = lambda: None
    elif "drain" in vars(keeper):
        member.recorder._ring.clear()  # nobody pays later for what was not kept
        del keeper.drain


for told in (OFF, ON):
    signal.signal(told, switch)
plain_keras.main()

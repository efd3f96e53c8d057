"""Who is waited for is named with its stack, while it is waited for."""

from __future__ import annotations

import os
import signal

import pytest

from .launched import World, eventually

WAITS = 'say(9, "EXCHANGING", exchanging=True)\nmark("waits")\nexchange()'
STUCK = {
    "a loop in a callback": ('say(8, "CALLBACKS")\ndef on_epoch_end():\n    while True: pass\n', "on_epoch_end"),
    "a reader that waits for ever": (
        'import threading\nsay(8, "READING")\ndef next_batch(): threading.Event().wait()\n',
        "next_batch",
    ),
}


@pytest.mark.parametrize("how", STUCK)
def test_one_that_is_stuck_is_named_with_its_stack(world: World, how: str) -> None:
    code, where = STUCK[how]
    script = f"if who.number == 1:\n    mark('stuck')\n    {where}()\n{WAITS}"
    run = world.run(code + script, "-n", 2, "--stall", 0.5)
    eventually(lambda: f"in {where}" in run.err, "its stack is shown")
    assert "worker-0 has waited for" in run.err
    assert "for worker-1, which is at step 8" in run.err
    assert f"worker-1 (pid {run.pid('worker-1')}) is here, the last call first:" in run.err
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGINT)
    run.wait()


def test_one_that_is_stopped_is_named_as_stopped(world: World) -> None:
    run = world.run(f'say(8, "COMPUTING")\nmark("up")\nif who.number == 1: forever()\n{WAITS}', "-n", 2, "--stall", 0.5)
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    pid = run.pid("worker-1")
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: f"worker-1 (pid {pid}) is stopped" in run.err, "it is called stopped")
    os.kill(pid, signal.SIGCONT)
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGINT)
    run.wait()

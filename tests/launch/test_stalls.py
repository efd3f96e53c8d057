"""Who is waited for is named with its stack, while it is waited for."""

from __future__ import annotations

import os
import re
import signal

import pytest

from .launched import Launched, World, eventually

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


def test_who_waits_for_the_chief_outside_of_an_exchange_names_it_with_its_stack(world: World) -> None:
    """As when it saves a model to a file system that does not answer."""
    code = """
        def save():
            fifo = Path(os.environ["SCENE"]) / "dead file system"
            try: os.mkfifo(fifo)
            except FileExistsError: pass
            fifo.open("w")  # nobody reads it
        if who.number == 0: save()
        say(9, "WAITING", "for the chief to save model.keras")
        forever()
    """
    run = world.run(code, "-n", 2, "--stall", 0.5)
    eventually(lambda: "in save" in run.err, "its stack is shown")
    assert re.search(r"worker-1 has waited for \d+ s for worker-0, which is at step 0 ", run.err)
    _end(run)


def test_if_no_worker_gets_on_that_is_said_too(world: World) -> None:
    code = """
        import threading
        say(8, "READING")
        def next_batch(): threading.Event().wait()
        next_batch()
    """
    run = world.run(code, "-n", 2, "--stall", 0.3)
    eventually(lambda: run.err.count("in next_batch") >= 2, "both stacks are shown")
    assert "no worker has got on for 1 s: worker-0 is at step 8 (waiting for data); worker-1 is at step 8" in run.err
    _end(run)


def _end(run: Launched) -> None:
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

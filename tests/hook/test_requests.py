"""Workers that come and leave on request while a real training goes on: same bits as if nobody had."""

from __future__ import annotations

import os
import re
import signal
import socket

from .runs import SCRIPTS, Going, Trainings


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_workers_come_and_leave_while_it_trains_and_the_weights_do_not_tell(trainings: Trainings) -> None:
    enough, token = trainings.folder / "enough", trainings.folder / "ticket"
    script = SCRIPTS / "until_told.py"
    address = f"127.0.0.1:{free_port()}"
    options = ["--backend", "torch", "-n", "1:2", "--pieces", 4, "--threads", 1]
    options += ["--transport", "tcp", "--address", address, "--key-file", token]

    def training() -> set[str]:
        return {id for id, state in run.states().items() if state == "training"}

    with Going(trainings, ["run", *options, script, enough]) as run:
        run.until("it trains", lambda: training() == {"worker-0", "worker-1"})

        assert "3 soon" in run.ask("scale", 3).stdout
        run.until("a third one comes", lambda: training() == {"worker-0", "worker-1", "worker-2"})

        assert "worker-0 leaves after its step" in run.ask("drain", "worker-0").stdout
        run.until("the chief has left", lambda: training() == {"worker-1", "worker-2"})

        os.kill(run.workers()["worker-1"]["pid"], signal.SIGTERM)  # as a machine that is about to be taken does
        run.until("it has left", lambda: "worker-1" not in training())

        with Going(trainings, ["join", address, "--key-file", token, script, enough]) as guest:
            run.until("a guest comes", lambda: "worker-1000" in training())
            enough.touch()
            assert run.end() == 0, run.said()
            assert guest.end() == 0, guest.said()

    told = re.search(r"epochs (\d+) weights (\S+)", run.said())
    assert told is not None, run.said()
    undisturbed = trainings.shoal("torch", "-n 2 --pieces 4 --threads 1", "until_told.py", told[1])
    assert told[0] in undisturbed.stdout, undisturbed.stdout + undisturbed.stderr


def test_what_cannot_be_done_is_refused_and_says_why(trainings: Trainings) -> None:
    with Going(
        trainings, ["run", "--backend", "torch", "-n", "2:3", SCRIPTS / "until_told.py", trainings.folder / "stop"]
    ) as run:
        run.until("it trains", lambda: "training" in run.states().values())
        for words, why in {
            ("drain", "worker-7"): "there is no worker-7 in the run",
            ("drain", "coordinator"): "there is no coordinator in the run",
            ("scale", "0"): "a run needs at least 1 worker",
            ("scale", "1"): "this run needs at least 2 workers",
            ("scale", "-1"): "",
            ("scale", "many"): "many",
            ("drain",): "Missing argument",
        }.items():
            refused = run.ask(*words)
            assert refused.returncode == 2, words
            assert why in refused.stderr, words
        (trainings.folder / "stop").touch()
        assert run.end() == 0, run.said()
    nobody = run.ask("scale", 3)
    assert nobody.returncode == 2
    assert "no run is going on" in nobody.stderr

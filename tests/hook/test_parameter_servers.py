"""Training with parameter servers: real processes on three backends, killed ones too."""

from __future__ import annotations

import json
import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from shoal.cluster.last_status import read_last
from shoal.observe.counters import summed

from .killing import Killer
from .runs import FULL, SCRIPTS, Going, Trainings, full, succeeded, told

SAMPLES = 200
SERVERS_AND_WORKERS = ((1, 2), (2, 1), (3, 2)) if FULL else ((2, 1), (3, 2))
EVERY_SAMPLE_ONCE = float(sum(range(SAMPLES)))
TURNS = 30 if FULL else 10  # in each, a server and a worker are killed
OBSERVED = re.compile(r"(\d+) updates with a staleness of ([\d.]+) on average, (\d+) at most \(bound: (\w+)\)")


def trained(trainings: Trainings, name: str, backend: str, options: str, *arguments: object) -> tuple[list, str]:
    folder = trainings.folder / f"{name}-{backend}"
    folder.mkdir()
    result = trainings.shoal(backend, f"{options} --threads 1", "served.py", folder, *arguments)
    succeeded(result)
    return told(folder), result.stderr


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("backend", "runs"),
    [
        full("jax", ((2, 1),)),
        full("jax", SERVERS_AND_WORKERS),
        full("tensorflow", SERVERS_AND_WORKERS),
        ("torch", SERVERS_AND_WORKERS),
    ],
    ids=["jax", "jax, more servers", "tensorflow", "torch"],
)
def test_synchronous_training_has_the_bits_of_all_reduce_with_any_number_of_servers(
    trainings: Trainings, backend: str, runs: tuple[tuple[int, int], ...]
) -> None:
    """Of a second model too, in float16 with overflows, whose weights become averages, from a stream. And of the first
    when it is compiled anew with the same optimizer.
    """
    everything = ("--averaged", "stream", "--again")
    (expected, *_), _ = trained(trainings, f"all{len(runs)}", backend, "-n 2 --pieces 4", 2, *everything)
    assert 0 < expected["averaged"]["iterations"] < 3 * 13
    assert expected["averaged"]["weights"] != expected["averaged"]["before"]
    for servers, workers in runs:
        more = everything if servers == 2 else ()
        options = f"-n {workers} --pieces 4 --strategy ps --servers {servers} --staleness 0"
        found, _ = trained(trainings, f"served{len(runs)}{servers}", backend, options, 2, *more)
        assert len(found) == workers
        assert all(one == {name: expected[name] for name in one} for one in found), servers
        assert all(("averaged" in one, "again" in one) == (bool(more),) * 2 for one in found)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("backend", "bound"), [full("jax", "3"), full("tensorflow", "inf"), ("torch", "1")])
def test_every_sample_counts_once_in_every_epoch_and_no_update_is_too_stale(
    trainings: Trainings, backend: str, bound: str
) -> None:
    options = f"-n 2 --strategy ps --servers 2 --staleness {bound}"
    more = ["--averaged", "arrays", "--fits", 2, "--again"]
    found, said = trained(trainings, "stale", backend, options, 3, "--pause", 0.01, *more)
    assert len(found) == 2
    assert found[0] == found[1]
    for history in found[0]["history"]:
        assert history["ledger"] == [EVERY_SAMPLE_ONCE] * 3
        assert history["loss"][-1] < history["loss"][0]
    assert found[0]["history"][1]["loss"][0] < found[0]["history"][0]["loss"][0]  # it goes on where the first fit ended
    again = found[0]["again"]["history"]
    assert again["ledger"] == again["again"] == [EVERY_SAMPLE_ONCE]
    assert again["loss"][0] < found[0]["history"][1]["loss"][0]
    averaged = found[0]["averaged"]  # in float16: updates that overflow count too, and change nothing
    first, second = averaged["history"]
    assert first["ledger"] + second["ledger"] == [EVERY_SAMPLE_ONCE] * 3
    assert second["loss"][0] < first["loss"][0]
    assert averaged["weights"] != averaged["before"]
    observed = OBSERVED.findall(said)
    assert [int(updates) for updates, *_ in observed] == [3 * 13, 3 * 13, 2 * 13, 13, 13]
    assert all(int(most) > 0 for _, _, most, _ in observed)  # they did not take turns
    assert bound == "inf" or all(int(most) <= int(bound) for _, _, most, _ in observed)
    last = read_last(
        max((trainings.folder / "state" / "shoal" / "logs").iterdir())
    )  # of this run: they begin with the time
    assert last is not None
    counted = {role: summed(one.counted for one in last.members if one.role == role) for role in ("worker", "server")}
    assert counted["worker"].aged == sum(int(updates) for updates, *_ in observed), "as `shoal top` shows it"
    assert counted["server"].aged > 0


def test_a_script_may_say_it_itself_and_what_it_says_counts(trainings: Trainings) -> None:
    _, said = trained(trainings, "scope", "torch", "-n 2 --strategy ps --servers 1", 2, "--scope", 2, "--pause", 0.01)
    ((_, _, most, bound),) = OBSERVED.findall(said)
    assert bound == "2"
    assert int(most) <= 2


@pytest.mark.timeout(400)
def test_whoever_is_killed_no_update_is_lost_or_doubled(trainings: Trainings) -> None:
    folder, enough = trainings.folder / "killed", trainings.folder / "enough"
    folder.mkdir()
    saved = trainings.folder / "killed-saved"
    options = "run --backend torch -n 3 --strategy ps --servers 3 --staleness 3 --threads 1 --max-restarts 1000"
    options += f" --checkpoint {saved} --checkpoint-every 20steps --keep 5"
    words = [*options.split(), SCRIPTS / "served.py", folder, 10_000, "--pause", 0.01, "--until", enough]
    with Going(trainings, words) as run:
        killer = Killer(run, Path(trainings.environ["XDG_RUNTIME_DIR"]), seed=1)
        run.until("it trains", lambda: killer.is_whole() and killer.doing("worker-0")[0] > 10)
        for turn in range(TURNS):
            killer.pause(0.2)
            victim = killer.strike("server")
            killer.pause(0.1)
            killer.strike("worker")
            run.until(f"{victim} is missed", lambda victim=victim: f"{victim} (pid" in run.said())
            if turn % 4 == 3:
                killer.strike("coordinator")
            run.until("the servers are whole again", killer.is_whole)
        enough.touch()
        assert run.end() == 0, run.said()[-5000:]
        said = run.said()
        assert run.ask("checkpoint", "verify", saved).returncode == 0
    assert len(list(saved.glob("step-*"))) == 5
    assert killer.killed.total() >= 2 * TURNS
    assert "was lost with" not in said  # no shard was without a copy
    found = told(folder)
    for one in found:
        (history,) = one["history"]
        assert history["ledger"] == [EVERY_SAMPLE_ONCE] * len(history["ledger"])
        assert one == found[0]
    assert all(int(most) <= 3 for _, _, most, _ in OBSERVED.findall(said))
    epochs, lost = len(found[0]["history"][0]["ledger"]), killer.killed["worker"] + killer.killed["server"]
    done = (
        f"shoal: 1 fit, 1 evaluation, 1 prediction · {13 * epochs:,} steps · {SAMPLES * epochs:,} samples · 3 workers"
    )
    lost += said.count("exited with code 1 before it had joined")  # it was started as the coordinator was killed
    # Who replaces the last one that was killed may come too late to finish.
    assert re.search(rf"{re.escape(done)}( at the start, \d at the end)?, {lost} losses survived\n", said), said[-2000:]


def test_losses_in_float16_are_scaled_by_what_the_servers_say_also_asynchronously(trainings: Trainings) -> None:
    losses = []
    for name, train in (
        ("plain", partial(trainings.plain, "torch")),
        ("served", partial(trainings.shoal, "torch", "-n 1 --strategy ps --servers 1 --staleness inf")),
    ):
        succeeded(train("float16_from_zero.py", trainings.folder / name))
        losses.append(json.loads((trainings.folder / name).read_text()))
    assert losses[1] == pytest.approx(losses[0], rel=0.2, abs=0.02)


@pytest.mark.timeout(300)
def test_newcomers_go_on_when_nobody_is_left_who_was_there_when_the_epoch_began(trainings: Trainings) -> None:
    folder, slow = trainings.folder / "newcomers", trainings.folder / "slow"
    folder.mkdir()
    slow.touch()
    options = "run --backend torch -n 2 --strategy ps --servers 2 --staleness 3 --threads 1"
    with Going(trainings, [*options.split(), SCRIPTS / "served.py", folder, 3, "--slow", slow]) as run:
        killer = Killer(run, Path(trainings.environ["XDG_RUNTIME_DIR"]), seed=2)
        for old, new in (("worker-0", "worker-2"), ("worker-1", "worker-3")):
            run.until(f"{old} computes", lambda old=old: killer.doing(old)[0] > 0)
            os.kill(killer.members("worker")[old], signal.SIGKILL)
            run.until(f"{new} computes", lambda new=new: killer.doing(new)[0] > 0)
        slow.unlink()
        assert run.end() == 0, run.said()[-5000:]
        assert "1 fit, 1 evaluation, 1 prediction · 39 steps · 600 samples · 2 workers, 2 losses survived" in run.said()
    found = told(folder)
    assert len(found) == 2
    assert found[0] == found[1]
    assert found[0]["history"][0]["ledger"] == [EVERY_SAMPLE_ONCE] * 3

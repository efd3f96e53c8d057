"""Training with parameter servers: real processes on three backends, killed ones too."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from shoal.wire import slate

from .runs import BACKENDS, SCRIPTS, Going, Trainings, succeeded, told

SAMPLES = 200
EVERY_SAMPLE_ONCE = float(sum(range(SAMPLES)))
OBSERVED = re.compile(r"(\d+) updates with a staleness of ([\d.]+) on average, (\d+) at most \(bound: (\w+)\)")


def trained(trainings: Trainings, name: str, backend: str, options: str, *arguments: object) -> tuple[list, str]:
    folder = trainings.folder / f"{name}-{backend}"
    folder.mkdir()
    result = trainings.shoal(backend, f"{options} --threads 1", "served.py", folder, *arguments)
    succeeded(result)
    return told(folder), result.stderr


@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", BACKENDS)
def test_synchronous_training_has_the_bits_of_all_reduce_with_any_number_of_servers(
    trainings: Trainings, backend: str
) -> None:
    (expected, *_), _ = trained(trainings, "all", backend, "-n 2 --pieces 4", 2)
    for servers, workers in ((1, 2), (2, 1), (3, 2)):
        options = f"-n {workers} --pieces 4 --strategy ps --servers {servers} --staleness 0"
        found, _ = trained(trainings, f"served{servers}", backend, options, 2)
        assert len(found) == workers
        assert all(one == expected for one in found), servers


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("backend", "bound"), [("jax", "3"), ("tensorflow", "inf"), ("torch", "1")])
def test_every_sample_counts_once_in_every_epoch_and_no_update_is_too_stale(
    trainings: Trainings, backend: str, bound: str
) -> None:
    options = f"-n 2 --strategy ps --servers 2 --staleness {bound}"
    found, said = trained(trainings, "stale", backend, options, 3, "--pause", 0.01, "--fits", 2)
    assert len(found) == 2
    assert found[0] == found[1]
    for history in found[0]["history"]:
        assert history["ledger"] == [EVERY_SAMPLE_ONCE] * 3
        assert history["loss"][-1] < history["loss"][0]
    assert found[0]["history"][1]["loss"][0] < found[0]["history"][0]["loss"][0]  # it goes on where the first fit ended
    observed = OBSERVED.findall(said)
    assert [int(updates) for updates, *_ in observed] == [3 * 13] * 2
    assert all(int(most) > 0 for _, _, most, _ in observed)  # they did not take turns
    assert bound == "inf" or all(int(most) <= int(bound) for _, _, most, _ in observed)


def test_a_script_may_say_it_itself_and_what_it_says_counts(trainings: Trainings) -> None:
    _, said = trained(trainings, "scope", "jax", "-n 2 --strategy ps --servers 1", 2, "--scope", 2, "--pause", 0.01)
    ((_, _, most, bound),) = OBSERVED.findall(said)
    assert bound == "2"
    assert int(most) <= 2


class Killer:
    """Kills the processes of one run, so that every shard always has a copy left and somebody computes."""

    def __init__(self, run: Going, folder: Path, seed: int) -> None:
        self._run = run
        self._folder = folder  # in which the run has its own
        self._random = random.Random(seed)
        self.killed = Counter[str]()

    def members(self, kind: str) -> dict[str, int]:
        found = {}
        for child in psutil.Process(self._run.process.pid).children():
            try:
                words = child.cmdline()
            except psutil.Error:
                continue
            if kind == "coordinator" and "shoal.launch.coordinator" in words:
                found[kind] = child.pid
            elif "shoal.launch.worker" in words and words[words.index("shoal.launch.worker") + 2].startswith(kind):
                found[words[words.index("shoal.launch.worker") + 2]] = child.pid
        return found

    def strike(self, kind: str, spare: int = 0) -> str | None:
        """Who was killed; not one of the `spare` eldest: if all who know where the run stands die at once, it ends."""
        members = self.members(kind)
        able = sorted(members, key=lambda id: int(id.rpartition("-")[2]) if "-" in id else 0)[spare:]
        if not able:
            return None
        victim = self._random.choice(able)
        os.kill(members[victim], signal.SIGKILL)
        self.killed[kind] += 1
        return victim

    def pause(self, longest: float) -> None:
        time.sleep(self._random.uniform(0.0, longest))

    def doing(self, id: str) -> tuple[int, str]:
        """The last word on a member's slate."""
        found = [slate.read(path) for path in self._folder.glob(f"shoal/*/{id}.slate")]
        return next((read for read in found if read), (0, ""))

    def is_whole(self) -> bool:
        """Three servers serve, and every shard has its two copies, as far as the run has said."""
        said = self._run.said()
        serving = sum(self.doing(id)[1] == "serving" for id in self.members("server"))
        return serving == 3 and said.rfind("fewer than 2 copies") <= said.rfind("every shard has 2 copies again")


@pytest.mark.timeout(400)
def test_whoever_is_killed_no_update_is_lost_or_doubled(trainings: Trainings) -> None:
    folder, enough = trainings.folder / "killed", trainings.folder / "enough"
    folder.mkdir()
    options = "run --backend jax -n 3 --strategy ps --servers 3 --staleness 3 --threads 1 --max-restarts 1000"
    words = [*options.split(), SCRIPTS / "served.py", folder, 10_000, "--pause", 0.02, "--until", enough]
    with Going(trainings, words) as run:
        killer = Killer(run, Path(trainings.environ["XDG_RUNTIME_DIR"]), seed=1)
        run.until("it trains", lambda: killer.is_whole() and killer.doing("worker-0")[0] > 10)
        for turn in range(30):
            killer.pause(0.2)
            victim = killer.strike("server")
            killer.pause(0.1)
            killer.strike("worker", spare=1)
            run.until(f"{victim} is missed", lambda victim=victim: f"{victim} (pid" in run.said())
            if turn % 4 == 3:
                killer.strike("coordinator")
            run.until("the servers are whole again", killer.is_whole)
        enough.touch()
        assert run.end() == 0, run.said()[-5000:]
        said = run.said()
    assert killer.killed.total() >= 60
    assert "was lost with" not in said  # no shard was without a copy
    found = told(folder)
    for one in found:
        (history,) = one["history"]
        assert history["ledger"] == [EVERY_SAMPLE_ONCE] * len(history["ledger"])
        assert one == found[0]
    assert all(int(most) <= 3 for _, _, most, _ in OBSERVED.findall(said))

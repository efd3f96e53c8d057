"""`shoal run --ray`: which nodes get how many workers, and a real cluster of two nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import shoal
from shoal import cli
from shoal.cli.optional_port import fill_in_port
from shoal.errors import UsageError
from shoal.launch.remote.ray_nodes import RayNode, choose_bundles, placed
from shoal.launch.remote.ray_reservation import Ray

TWO = [RayNode("a" * 56, "10.0.0.1", 8), RayNode("b" * 56, "10.0.0.2", 4)]


def counts(nodes: list[RayNode], workers: int | None, threads: int | None = None) -> dict[str, int]:
    return {bundle.name: bundle.workers for bundle in choose_bundles(nodes, workers, threads)}


def test_workers_go_where_most_processors_are_left_for_each() -> None:
    assert counts(TWO, 6) == {"10.0.0.1": 4, "10.0.0.2": 2}
    assert counts(TWO, 2, 4) == {"10.0.0.1": 1, "10.0.0.2": 1}
    assert counts(TWO, 1) == {"10.0.0.1": 1}
    assert counts(TWO, None) == {"10.0.0.1": 1, "10.0.0.2": 1}
    assert counts([*TWO, RayNode("c" * 56, "10.0.0.3", 0)], 12) == {"10.0.0.1": 8, "10.0.0.2": 4}


def test_a_bundle_has_the_processors_and_accelerators_of_its_workers() -> None:
    (bundle,) = choose_bundles([RayNode("a" * 56, "10.0.0.1", 8, gpus=5)], 2, 3)
    assert (bundle.cpus, bundle.gpus) == (6, 4)
    (bundle,) = choose_bundles([RayNode("a" * 56, "10.0.0.1", 8)], 2, None)
    assert (bundle.cpus, bundle.gpus) == (8, 0)  # all of it: threads are chosen by it


@pytest.mark.parametrize(("workers", "threads"), [(13, 1), (4, 4), (None, 9)])
def test_too_little_room_is_named(workers: int | None, threads: int) -> None:
    with pytest.raises(UsageError, match=r"room for \d+ workers .*10.0.0.1 has 8, 10.0.0.2 has 4"):
        choose_bundles(TWO, workers, threads)


def test_nodes_of_one_address_have_names_of_their_own() -> None:
    nodes = [RayNode("a" * 56, "10.0.0.1", 2), RayNode("b" * 56, "10.0.0.1", 2)]
    found = placed(choose_bundles(nodes, 2, 1), {0: "b" * 56, 1: "a" * 56}, nodes)
    assert [bundle.name for bundle in found] == ["10.0.0.1-bbbbbbbb", "10.0.0.1-aaaaaaaa"]
    shell = Ray("10.0.0.1:6379", "f0", found)
    assert shell.host_name("10.0.0.1-aaaaaaaa") == "10.0.0.1"
    assert shell.command("10.0.0.1-aaaaaaaa", ["agent"])[4:] == ["10.0.0.1:6379", "f0", "1", "1", "0", "--", "agent"]


def test_the_address_may_be_left_out_before_the_script() -> None:
    takes = {"-n", "--ray"}
    assert fill_in_port(["--ray", "-n", "8", "train.py"], takes) == ["--ray=auto", "-n", "8", "train.py"]
    assert fill_in_port(["--ray", "train.py"], takes) == ["--ray=auto", "train.py"]
    words = ["--ray", "10.0.0.1:6379", "train.py", "--ray"]
    assert fill_in_port(words, takes) == words


@pytest.mark.parametrize("options", ["--hosts a:2", "-n auto", "-n 0"])
def test_ray_and_other_ways_to_say_where_are_refused(options: str) -> None:
    result = CliRunner().invoke(cli.main, ["run", "--ray=auto", *options.split(), "train.py"])
    assert result.exit_code == 2
    assert "--ray finds the hosts itself" in result.output


SCRIPT = """
import hashlib, keras, numpy as np, time, pathlib, sys
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(640, 3)).astype("float32")
model.fit(x, x.sum(1), batch_size=32, epochs=2, verbose=0)
print("weights", hashlib.sha256(b"".join(np.asarray(w).tobytes() for w in model.get_weights())).hexdigest(), flush=True)
"""


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without processors, and two nodes."""
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 10**8}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, **small)
        yield made
    finally:
        made.shutdown()


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_run_on_two_nodes_of_a_cluster_has_the_bits_of_one_host(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "RAY_USAGE_STATS_ENABLED": "0"}

    def weights(*options: str) -> str:
        command = [sys.executable, "-m", "shoal", "run", *options, "-n", "2", "--pieces", "4", "--threads", "1"]
        command += ["--backend", "torch", "train.py"]
        result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280)
        assert result.returncode == 0, result.stdout + result.stderr
        if options:
            assert re.search(r"hosts: .+ \(1\), .+ \(1\), by Ray", result.stderr)
        found = re.search(r"weights (\w+)", result.stdout)
        assert found is not None
        return found[1]

    assert weights("--ray", cluster.address) == weights()


FROM_PYTHON = """
import sys
import numpy as np
import shoal, shoal.ray

def train(x, epochs):
    import keras
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model.fit(x, x.sum(1), batch_size=32, epochs=epochs, verbose=0)

if __name__ == "__main__":
    x = np.random.default_rng(0).normal(size=(640, 3)).astype("float32")
    options = {"args": {"x": x, "epochs": 2}, "backend": "torch", "pieces": 4, "threads": 1}
    found = shoal.ray.run(train, 2, address=sys.argv[1], checkpoint="saved", **options)
    assert found.value == shoal.run(train, 2, **options), "the same figures, to the last bit"
    assert len(found.value["loss"]) == 2
    assert (found.checkpoint / "manifest.json").exists()
    print("all is well")
"""


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_function_on_a_cluster_returns_its_history_and_the_path_of_the_checkpoint(
    cluster: Any, tmp_path: Path
) -> None:
    (tmp_path / "call.py").write_text(FROM_PYTHON)
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "call.py", cluster.address]
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("all is well\n")
    assert re.search(r"hosts: .+ \(1\), .+ \(1\), by Ray", result.stderr)
    assert not list(tmp_path.glob("shoal-run-*")), "what travelled is gone"


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n": 0}, "n=0: expected a number of workers"),
        ({"n": (1, 2)}, r"n=\(1, 2\): expected a number of workers"),
        ({"peaces": 8}, r"shoal.ray.run\(\) has no option peaces; did you mean pieces\?"),
        ({"folder": "/there/is/none"}, "there is no such folder. Name one that all nodes"),
    ],
)
def test_what_a_function_on_a_cluster_can_not_be_given_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shoal.ray.run(nothing, **given)

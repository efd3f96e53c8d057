"""Replicas that train by themselves between two exchanges come to the same bits, whoever hosts them."""

from __future__ import annotations

import json
import re

import pytest

from .runs import FULL, Trainings, full, succeeded, told

RUNS = {1: "-n 1", 2: "-n 2", 3: "-n 3 --transport tcp", 4: "-n 4"}
QUICK = ("dropout_and_batchnorm", "topk", "generator", "streaming", "streaming_topk", "streaming_generator")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["torch", full("jax"), full("tensorflow")])
def test_one_to_four_workers_give_the_same_bits(trainings: Trainings, backend: str) -> None:
    outcomes = []
    numbers = RUNS if FULL else (1, 3)
    for number in numbers:
        out = trainings.folder / f"{backend}-{number}"
        succeeded(
            trainings.shoal(backend, f"{RUNS[number]} --threads 1", "local_sgd.py", out, *(() if FULL else QUICK))
        )
        outcomes.append(told(out))
    assert [len(workers) for workers in outcomes] == list(numbers)
    chiefs, others = [workers[0] for workers in outcomes], [one for workers in outcomes for one in workers[1:]]
    assert chiefs == [chiefs[0]] * len(chiefs)
    for case in chiefs[0].values():
        del case["optimizer"]  # of replica 0: the other workers' are those of replicas that they host
    assert others == [chiefs[0]] * len(others)
    assert len({one["weights"] for one in chiefs[0].values()}) == len(chiefs[0]), "no setting does nothing"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("backend", "transport", "fragments"),
    [
        full("torch", "shm", ()),
        full("torch", "tcp", ()),
        ("torch", "tcp", (3, 3)),
        full("jax", "shm", ()),
        full("jax", "shm", (3, 3)),
        full("tensorflow", "shm", ()),
        full("tensorflow", "shm", (3, 3)),
    ],
)
def test_workers_killed_in_the_middle_of_rounds_leave_no_trace(
    trainings: Trainings, backend: str, transport: str, fragments: tuple[int, ...]
) -> None:
    """With tcp each worker is as on a host of its own: what its replicas keep, another one has a copy of."""
    kind = f"{backend}-{transport}-{len(fragments)}"
    calm, killed = (trainings.folder / f"{name}-{kind}" for name in ("calm", "killed"))
    kills = 6 if FULL else 2
    options = f"-n 3 --threads 1 --max-restarts 9 --transport {transport}"
    succeeded(trainings.shoal(backend, "-n 1 --threads 1", "local_killed.py", calm, 0, *fragments))
    succeeded(trainings.shoal(backend, options, "local_killed.py", killed, kills, *fragments))
    assert len(list(killed.glob("kill-*"))) == kills
    (expected,), (chief, *others) = told(calm), told(killed)
    assert chief == expected
    del expected["optimizer"]
    assert others == [expected] * len(others)  # the last one's replacement may come after the end


@pytest.mark.timeout(600)
def test_a_checkpoint_goes_on_with_all_replicas_on_another_number_of_workers(trainings: Trainings) -> None:
    whole, halves, saved = (trainings.folder / name for name in ("whole", "halves", "saved"))
    succeeded(trainings.shoal("torch", "-n 1 --threads 1", "local_killed.py", whole, 0, 2))
    succeeded(trainings.shoal("torch", f"-n 3 --threads 1 --checkpoint {saved}", "local_killed.py", halves, 0, 1))
    resumed = f"-n 2 --threads 1 --checkpoint {saved} --resume auto"
    succeeded(trainings.shoal("torch", resumed, "local_killed.py", halves, 0, 2))
    (expected,), (chief, other, _) = told(whole), told(halves)
    assert (chief["weights"], chief["optimizer"]) == (expected["weights"], expected["optimizer"])
    assert other["weights"] == expected["weights"]


@pytest.mark.timeout(600)
def test_a_checkpoint_in_the_middle_of_an_epoch_has_the_weights_of_each_replica(trainings: Trainings) -> None:
    """Replicas that exchange a fragment at a time have none that all have."""
    whole, halves, saved = (trainings.folder / f"{name}-streamed" for name in ("whole", "halves", "saved"))
    kept = f"--checkpoint {saved} --checkpoint-every 13steps --keep 9"
    succeeded(trainings.shoal("torch", f"-n 3 --threads 1 {kept}", "local_killed.py", whole, 0, 1, 3))
    (before,) = saved.glob("*13")
    succeeded(trainings.shoal("torch", f"-n 2 --threads 1 --resume {before}", "local_killed.py", halves, 0, 1, 3))
    (expected, *_), (chief, other) = told(whole), told(halves)
    assert (chief["weights"], chief["optimizer"]) == (expected["weights"], expected["optimizer"])
    assert other["weights"] == expected["weights"]


@pytest.mark.timeout(300)
def test_the_replica_of_a_fast_worker_takes_more_steps_where_they_are_uneven(trainings: Trainings) -> None:
    out = trainings.folder / "uneven"
    result = trainings.shoal("torch", "-n 2 --threads 1", "local_uneven.py", out, 0.008, 1)
    succeeded(result)
    fast, slow = told(out)
    assert fast["weights"] == slow["weights"]
    assert [one + other for one, other in zip(fast["steps"], slow["steps"], strict=True)] == [2 * 4] * 12
    assert (fast["steps"][0], slow["steps"][0]) == (4, 4), "nothing is known yet"
    assert fast["steps"][-1] > 4 > slow["steps"][-1] >= 1
    assert "384 samples" in result.stdout + result.stderr


@pytest.mark.timeout(300)
def test_the_same_uneven_counts_give_the_same_bits_after_a_kill_and_when_resumed(trainings: Trainings) -> None:
    calm, killed, resumed, saved = (trainings.folder / f"{name}-uneven" for name in ("calm", "killed", "on", "saved"))
    succeeded(trainings.shoal("torch", "-n 1 --threads 1", "local_uneven.py", calm, 0.0, 1, "fixed"))
    options = f"-n 2 --threads 1 --max-restarts 0 --checkpoint {saved} --checkpoint-every 24steps --keep 9"
    succeeded(trainings.shoal("torch", options, "local_uneven.py", killed, 0.0, 1, "fixed", "kill"))
    assert (killed / "killed").exists()
    assert told(killed)[0]["weights"] == told(calm)[0]["weights"]
    (before,) = saved.glob("*24")  # six rounds: the next begins with counts that this one has
    succeeded(
        trainings.shoal("torch", f"-n 1 --threads 1 --resume {before}", "local_uneven.py", resumed, 0.0, 1, "fixed")
    )
    assert told(resumed)[0]["weights"] == told(calm)[0]["weights"]


REFUSED = {
    "shared": "this SGD is the model's own optimizer too",
    "of_two_models": "this SGD has trained other weights than this model's",
    "no_optimizer": r"LocalSGD\(outer='adam'\): expected an optimizer of keras.optimizers",
    "scaled": "no loss is scaled between replicas",
    "averages": "use_ema.* Give use_ema to LocalSGD's outer optimizer",
    "small_batches": "a batch of 3 samples can't be divided among 4 replicas",
    "on_batch": "LocalSGD trains with `model.fit`",
    "uneven_fragments": "expected a number of fragments that divides `every`",
    "many_fragments": "this model has 4 weights that are trained, and a fragment has at least one of them",
}


@pytest.mark.timeout(300)
def test_local_training_learns_digits_as_plain_keras_does_and_says_what_it_cannot_do(trainings: Trainings) -> None:
    out = trainings.folder / "digits.json"
    succeeded(trainings.plain("torch", "local_digits.py", out))
    found = json.loads(out.read_text())
    refused = found.pop("refused")
    assert {name for name, pattern in REFUSED.items() if not re.search(pattern, refused[name])} == set(), refused
    assert found["local"] < 1.15 * found["plain"], found
    assert found["streaming"] < 1.15 * found["plain"], found
    # Controls: without the outer optimizer nothing is learnt; replicas that forget their optimizers learn otherwise.
    assert found["without the outer optimizer"] > 4 * found["plain"], found
    assert found["without what replicas keep"] != found["local"], found

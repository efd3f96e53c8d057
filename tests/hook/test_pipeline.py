"""A model that is cut into stages trains to the same bits whoever holds them, and to one machine's result."""

from __future__ import annotations

import json
import re

import pytest

from .runs import BACKENDS, FULL, Trainings, full, succeeded, told

SETTINGS = "--strategy pipeline --pieces 4 --threads 1"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS if FULL else ["torch"])
def test_any_number_of_workers_gives_the_same_bits_over_shared_memory_and_tcp(
    trainings: Trainings, backend: str
) -> None:
    outcomes = []
    for workers in ("2", "3 --transport tcp", "4") if FULL else ("2", "3 --transport tcp"):
        out = trainings.folder / f"{backend}-{workers[0]}"
        succeeded(trainings.shoal(backend, f"-n {workers} {SETTINGS}", "pipelined.py", out))
        outcomes += told(out)
    for outcome in outcomes:
        for case in outcome.values():
            del case["size"]
    assert all(outcome == outcomes[0] for outcome in outcomes)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS if FULL else ["torch"])
def test_stages_have_the_gradients_of_plain_keras(trainings: Trainings, backend: str) -> None:
    out = trainings.folder / f"stages-{backend}"
    succeeded(trainings.shoal(backend, "-n 1", "stages.py", out))
    (found,) = told(out)
    assert len(found) >= 10
    assert max(found.values()) < 2e-5, found


REFUSED = {
    "a_call_of_its_own": r"Free .* can't be cut into stages: it has a `call` of its own.*keras.Sequential",
    "a_train_step_of_its_own": r"OwnStep .* has a `train_step` of its own.*--strategy allreduce",
    "a_compute_loss_of_its_own": r"OwnLoss .* has a `compute_loss` of its own",
    "an_optimizer_of_its_own": r"this OwnOptimizer may have to see all gradients at once: it is not one of Keras's own",
    "global_clipnorm": r"it has global_clipnorm. Use clipnorm or clipvalue",
    "a_scaled_loss": r"mixed_bfloat16",
    "accumulated_gradients": r"gradient_accumulation_steps.*--pieces",
    "swapped_averages": r"SwapEMAWeights",
    "saved_in_the_middle": r"ModelCheckpoint\(save_freq=3\) saves the whole model in the middle of an epoch",
    "a_lean_backup": r"BackupAndRestore keeps the optimizer's state.*--checkpoint",
    "more_stages_than_layers": r"at 1 place, into at most 2 stages; 3 were asked for. Use fewer stages",
    "a_mask_at_every_cut": r"at 0 places, into at most 1 stage; 2 were asked for",
    "one_stage": r"at least 2 stages",
    "no_pieces": r"at least 1 piece",
}


def test_what_cannot_be_cut_is_named_before_training_with_what_would_work(trainings: Trainings) -> None:
    out = trainings.folder / "uncut.json"
    succeeded(trainings.plain("torch", "uncut.py", out))
    told_of = json.loads(out.read_text())
    assert told_of.keys() == REFUSED.keys()
    assert {n: told_of[n] for n, pattern in REFUSED.items() if not re.search(pattern, told_of[n], re.DOTALL)} == {}


@pytest.mark.timeout(200)
def test_attention_over_a_sequence_of_twice_the_length_costs_up_to_four_times_as_much(trainings: Trainings) -> None:
    out = trainings.folder / "attention"
    succeeded(trainings.plain("torch", "attention.py", out))
    found = told(out)[0]
    assert found.pop("Dense") == pytest.approx([1024 * 33 * 32, 2048 * 33 * 32])
    assert len(found) == 4
    for name, (short, long) in found.items():
        assert 3.5 * short < long <= 4.0 * short, name


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_functional_model_of_keras_applications_can_be_cut_in_2_and_in_4(trainings: Trainings) -> None:
    out = trainings.folder / "applications.json"
    succeeded(trainings.plain("torch", "applications.py", out))
    uneven = json.loads(out.read_text())
    assert len(uneven) > 30
    assert max(two for two, _ in uneven.values()) < 1.3, uneven


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS if FULL else ["torch"])
@pytest.mark.parametrize(("workers", "kills"), [(2, 8 if FULL else 2), full(4, 8)])
def test_killed_holders_are_replaced_by_their_peers_and_leave_no_trace(
    trainings: Trainings, backend: str, workers: int, kills: int
) -> None:
    """With two workers every kill takes the only one that computes a stage: its neighbour has a copy."""
    calm, killed = trainings.folder / f"calm-{backend}", trainings.folder / f"killed-{backend}"
    succeeded(trainings.shoal(backend, f"-n 2 {SETTINGS}", "stage_killed.py", calm, 0, 2))
    options = f"-n {workers} --max-restarts 9 {SETTINGS}"
    succeeded(trainings.shoal(backend, options, "stage_killed.py", killed, kills, workers))
    assert len(list(killed.glob("kill-*"))) == kills
    assert {json.dumps(one) for one in told(killed)} == {json.dumps(told(calm)[0])}


@pytest.mark.full  # the simulator loses stages with and without copies
@pytest.mark.timeout(600)
def test_a_stage_without_a_copy_is_taken_from_the_last_checkpoint_and_the_run_says_so(trainings: Trainings) -> None:
    calm, killed = trainings.folder / "calm-lean", trainings.folder / "killed-lean"
    succeeded(trainings.shoal("torch", f"-n 2 {SETTINGS}", "stage_killed.py", calm, 0, 2, "lean"))
    options = f"-n 2 --max-restarts 9 --checkpoint {trainings.folder}/checkpoints --checkpoint-every 5steps {SETTINGS}"
    run = trainings.shoal("torch", options, "stage_killed.py", killed, 1, 2, "lean")
    succeeded(run)
    assert len(list(killed.glob("kill-*"))) == 1
    assert re.search(
        r"held the only copy of stage \d.*: all go back from step \d+ to step-\d+", run.stderr + run.stdout
    )
    assert {json.dumps(one) for one in told(killed)} == {json.dumps(told(calm)[0])}


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_model_that_one_worker_has_no_memory_for_trains_in_two_stages(trainings: Trainings) -> None:
    """The kernel refuses more than the limit: the same script fails in one process, and trains in two."""
    out = trainings.folder / "limited"
    alone = trainings.plain("torch", "stage_in_little_memory.py", out, 1)
    assert alone.returncode != 0
    assert "can't allocate memory" in alone.stderr
    assert not list(out.glob("*.json"))
    succeeded(trainings.shoal("torch", f"-n 2 {SETTINGS}", "stage_in_little_memory.py", out, 2))
    assert len(told(out)) == 2


@pytest.mark.timeout(600)
def test_in_the_middle_of_an_epoch_a_worker_has_its_own_stages_only_and_says_so(trainings: Trainings) -> None:
    out = trainings.folder / "own-stages"
    succeeded(trainings.shoal("torch", f"-n 2 {SETTINGS}", "own_stages.py", out))
    for found in told(out):
        assert 0.3 < found["here"] < 0.7
        assert "is not on this worker: in a pipeline" in found["read"]
        assert found["after"] == 1.0
        assert "Pipeline(lean=True)" in found["again"]


@pytest.mark.timeout(300)
def test_unequal_workers_get_unequal_stages_and_the_fast_one_gets_more(trainings: Trainings) -> None:
    for speeds, more in (("1,0.25", "worker-0"), ("0.25,1", "worker-1")):
        out = trainings.folder / f"unequal-{more}"
        result = trainings.shoal("torch", f"-n 2 {SETTINGS} --speeds {speeds}", "pipelined.py", out, "skips")
        succeeded(result)
        parts = re.findall(r"stage \d \(.*?, (\d+)% of the work\): (worker-\d)", result.stderr)
        shares = {worker: int(part) for part, worker in parts}
        assert shares[more] >= 60, result.stderr
        first, second = told(out)
        assert first["skips"]["weights"] == second["skips"]["weights"]

"""Checkpoints with parameter servers: everything killed at once, and gone on from with other numbers of processes."""

from __future__ import annotations

import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .runs import SCRIPTS, Going, Trainings, full, newest, succeeded, told
from .test_parameter_servers import EVERY_SAMPLE_ONCE, Killer

STEPS = 13  # in an epoch


def trained(
    trainings: Trainings, name: str, options: str, *arguments: object, backend: str = "torch"
) -> dict[str, Any]:
    folder = trainings.folder / name
    folder.mkdir()
    succeeded(trainings.shoal(backend, f"--threads 1 {options}", "served.py", folder, *arguments))
    found = told(folder)
    assert all(one == found[0] for one in found)
    result: dict[str, Any] = found[0]
    return result


def power_cut(
    trainings: Trainings, name: str, options: str, least: int, *arguments: object, backend: str = "torch"
) -> Path:
    """Train until a worker crawls and a checkpoint of this step, or a later one, is there; then kill all processes."""
    folder, saved = trainings.folder / name, trainings.folder / f"{name}-saved"
    folder.mkdir()
    words = f"run --backend {backend} --threads 1 --checkpoint {saved} {options}".split()
    with Going(trainings, [*words, SCRIPTS / "served.py", folder, *arguments]) as run:
        run.until("it comes to where it is killed", lambda: list(folder.glob("crawls-*")) and newest(saved) >= least)
        trainings.kill_everything()
    return saved


SECOND_FIT = (2, "--fits", 2)
IN_FLOAT16_WITH_AVERAGES = (2, "--averaged", "arrays")  # the second model's first fit has two epochs, too


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("backend", "fits"),
    [("torch", SECOND_FIT), full("tensorflow", SECOND_FIT), full("jax", IN_FLOAT16_WITH_AVERAGES)],
    ids=["second fit on torch", "second fit", "float16"],
)
def test_synchronous_training_has_the_same_bits_whoever_wrote_the_checkpoint_and_whoever_goes_on(
    trainings: Trainings, backend: str, fits: tuple[object, ...]
) -> None:
    train = partial(trained, trainings, backend=backend)
    saved = trainings.folder / f"reduced-saved-{backend}"
    options = f"-n 2 --pieces 4 --checkpoint {saved} --checkpoint-every 10steps --keep 99"
    expected = train(f"reduced-{backend}", options, *fits)
    if "averaged" in expected:  # the other model was trained before the checkpoints
        expected = expected["averaged"]
    path = min(path for path in saved.glob("step-*") if path.name > f"step-{2 * STEPS:09}")
    assert path.name < f"step-{4 * STEPS:09}"
    served = "--strategy ps --staleness 0 --pieces 4"
    for step in (int(path.name.partition("-")[2]), 4 * STEPS):  # there that fit is over
        options = f"-n 1 --servers 2 {served} --resume {saved / f'step-{step:09}'}"
        found = train(f"to-servers-{backend}{step}", options, *fits)
        assert found.get("averaged", found) == expected, step
    slowly = (*fits, "--crawl", 2 * STEPS + STEPS + 4)
    options = f"-n 2 --servers 2 {served} --checkpoint-every 3steps"
    cut = power_cut(trainings, f"cut-{backend}", options, 36, *slowly, backend=backend)
    assert 2 * STEPS < newest(cut) < 4 * STEPS
    path = cut / f"step-{newest(cut):09}"
    for name, options in (("more", f"-n 1 --servers 3 {served}"), ("none", "-n 3 --pieces 4")):
        found = train(f"{name}-{backend}", f"{options} --resume {path}", *fits)
        assert found.get("averaged", found) == expected, name


@pytest.mark.timeout(400)
def test_asynchronous_training_in_float16_with_averages_goes_on_in_mid_epoch(trainings: Trainings) -> None:
    served = "--strategy ps --staleness 2"
    slowly = (1, "--averaged", "arrays", "--pause", 0.01, "--crawl", STEPS // 2 + STEPS // 2 + 2)
    cut = power_cut(trainings, "half", f"-n 2 --servers 2 {served} --checkpoint-every 2steps", STEPS + 2, *slowly)
    assert STEPS < newest(cut) < 3 * STEPS
    found = trained(trainings, "half-on", f"-n 3 --servers 1 {served} --checkpoint {cut} --resume auto", *slowly[:3])
    first, second = found["averaged"]["history"]
    assert first["ledger"] + second["ledger"] == [EVERY_SAMPLE_ONCE] * 3
    assert first["loss"][0] > first["loss"][1] > second["loss"][0] > 0


@pytest.mark.timeout(400)
def test_asynchronous_training_goes_on_in_mid_epoch_and_every_sample_counts_once(trainings: Trainings) -> None:
    served = "--strategy ps --staleness 2"
    slowly = (2, "--fits", 2, "--pause", 0.01, "--crawl", 2 * STEPS // 2 + STEPS // 2 + 2)
    cut = power_cut(trainings, "stale", f"-n 2 --servers 2 {served} --checkpoint-every 2steps", 2 * STEPS + 2, *slowly)
    step = newest(cut)
    assert 2 * STEPS < step < 4 * STEPS
    on = (
        ("other", f"-n 3 --servers 1 {served} --checkpoint {cut} --checkpoint-every 4steps --keep 99 --resume auto"),
        ("three", f"-n 1 --servers 3 --strategy ps --resume {cut / f'step-{step:09}'}"),
        ("reduced-again", f"-n 2 --resume {cut / f'step-{4 * STEPS:09}'}"),
    )
    first = None
    for name, options in on:
        found = trained(trainings, name, options, 2, "--fits", 2)
        first = first or found["history"][0]
        assert found["history"][0] == first  # it was over before the checkpoint
        for history in found["history"]:
            assert history["ledger"] == [EVERY_SAMPLE_ONCE] * 2, name
        assert found["history"][1]["loss"][1] < found["history"][1]["loss"][0]
    assert newest(cut) == 4 * STEPS


@pytest.mark.parametrize("staleness", ["0", "inf"])
def test_a_run_that_is_interrupted_writes_a_checkpoint_of_what_servers_hold(
    trainings: Trainings, staleness: str
) -> None:
    folder, out = trainings.folder / f"interrupted {staleness}", trainings.folder / f"out {staleness}"
    out.mkdir()
    options = f"run -n 2 --servers 2 --strategy ps --staleness {staleness} --threads 1 --backend torch".split()
    words = [*options, "--checkpoint", folder, SCRIPTS / "served.py", out, 10_000, "--pause", 0.02]
    with Going(trainings, words) as run:
        run.until("it trains", lambda: any(worker["step"] > 2 for worker in run.workers().values()))
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, run.said()
        assert "writing a checkpoint" in run.said()
        found = sorted(folder.glob("step-*"))
        assert found, run.said()
        assert run.ask("checkpoint", "verify", found[-1]).returncode == 0


@pytest.mark.timeout(200)
def test_a_lost_shard_goes_on_with_the_optimizer_of_the_last_checkpoint(trainings: Trainings) -> None:
    folder, saved, enough = (trainings.folder / name for name in ("lost", "lost-saved", "lost-enough"))
    folder.mkdir()
    options = "run -n 2 --servers 1 --strategy ps --staleness 2 --threads 1 --backend torch --checkpoint-every 5steps"
    script = [SCRIPTS / "served.py", folder, 10_000, "--pause", 0.01, "--until", enough]
    with Going(trainings, [*options.split(), "--checkpoint", saved, *script]) as run:
        run.until("there is a second checkpoint, so that all know of the first", lambda: newest(saved) >= 10)
        killer = Killer(run, Path(trainings.environ["XDG_RUNTIME_DIR"]), seed=1)
        assert killer.strike("server") == "server-0"
        run.until("it goes on", lambda: "shard 0 was lost with" in run.said())
        before = newest(saved)
        run.until("there are checkpoints again", lambda: newest(saved) > before + 10)
        enough.touch()
        assert run.end() == 0, run.said()[-5000:]
        said = run.said()
    lost = re.search(r"the newest weights that a worker has, with its optimizer's state of step (\d+), from disk", said)
    assert lost is not None, said
    assert int(lost[1]) <= before


@pytest.mark.parametrize("options", ["", "--servers 2 --strategy ps"], ids=["all-reduce", "servers"])
def test_a_checkpoint_of_another_model_is_refused_with_the_differences(trainings: Trainings, options: str) -> None:
    saved = trainings.folder / f"other-saved{len(options)}"
    trained(trainings, f"other{len(options)}", f"-n 2 {options} --checkpoint {saved}", 1, "--units", 40)
    folder = trainings.folder / f"wrong{len(options)}"
    folder.mkdir()
    arguments = (folder, 2, "--units", 50)
    result = trainings.shoal("torch", f"-n 2 {options} --checkpoint {saved} --resume auto", "served.py", *arguments)
    assert result.returncode == 1
    assert (
        "it is of another model (of another shape: sequential/dense/kernel (64, 50), (64, 40) in the" in result.stderr
    )
    assert "more). Resume with the script, and the arguments, that it comes from" in result.stderr


@pytest.mark.parametrize(
    "options", [full("", id="all-reduce"), pytest.param("--servers 1 --strategy ps", id="servers")]
)
def test_a_fit_that_was_over_is_over_when_it_is_resumed(trainings: Trainings, options: str) -> None:
    """A callback had stopped it; the next fit of the script is trained."""
    name, saved, stop = f"over{len(options)}", trainings.folder / f"over-saved{len(options)}", trainings.folder / "stop"
    stop.touch()
    arguments = (5, "--until", stop, "--units", 40)
    first = trained(trainings, name, f"-n 2 {options} --checkpoint {saved}", *arguments)
    assert first["history"][0]["ledger"] == [EVERY_SAMPLE_ONCE]
    again = trained(trainings, f"{name}-again", f"-n 2 {options} --resume {max(saved.iterdir())}", *arguments)
    assert again == first
    more = trained(
        trainings, f"{name}-more", f"-n 2 {options} --resume {max(saved.iterdir())}", *arguments, "--fits", 2
    )
    assert more["history"][0] == first["history"][0]
    assert more["history"][1]["ledger"] == [EVERY_SAMPLE_ONCE]
    assert more["history"][1]["loss"][0] < first["history"][0]["loss"][0]
    synchronous = f"-n 2 --pieces 2 {options} {'--staleness 0' if options else ''} --resume {max(saved.iterdir())}"
    assert trained(trainings, f"{name}-bits", synchronous, *arguments, "--fits", 2) == trained(
        trainings, f"{name}-reduced", f"-n 1 --pieces 2 --resume {max(saved.iterdir())}", *arguments, "--fits", 2
    )

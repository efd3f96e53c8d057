"""What a parameter server does with a shard: next to the whole model on the same backend, the outside witness."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from .runs import BACKENDS, FULL, Trainings, succeeded


@pytest.fixture(scope="module", params=BACKENDS)
def told(trainings: Trainings, request: pytest.FixtureRequest) -> Any:
    """What the script found out, on each backend."""
    out = trainings.folder / f"{request.param}.json"
    few = () if FULL or request.param == "torch" else ("--few",)  # elsewhere programs are compiled
    succeeded(trainings.plain(request.param, "shard_state.py", out, *few))
    return {"backend": request.param, **json.loads(out.read_text())}


def test_shards_hold_the_bits_of_the_whole_model_whatever_the_optimizer(told: Any) -> None:
    found = told["same bits"]
    if "muon" in found and told["backend"] == "tensorflow":
        # Its graph optimizer multiplies Muon's constant factors in another order where a graph has fewer variables.
        assert max(largest for _, largest in found.pop("muon")) < 1e-6
    assert len(found) >= (15 if FULL or told["backend"] == "torch" else 4)
    assert {name: counts for name, counts in found.items() if any(count for count, _ in counts)} == {}


def test_half_precision_travels_as_it_is_and_its_gradients_in_single(told: Any) -> None:
    found = told["half precision"]
    assert found["weights"].startswith("bfloat16")
    assert found["gradients"].startswith("float32")
    assert found["differing"] == 0
    assert found["carried"]


def test_a_replica_that_takes_over_a_state_goes_on_with_the_same_bits(told: Any) -> None:
    assert told["replicas"] == {"apart": True, "together": True, "same after": True, "63 bits": True}


def test_the_digest_sees_every_array_of_the_state(told: Any) -> None:
    assert told["flipped"]["digests"] == told["flipped"]["arrays"] + 1


def test_new_weights_leave_the_optimizer_as_it_is(told: Any) -> None:
    assert told["set weights"] == {"weights": True, "sums": True, "optimizer stays": True, "goes on": True}


def test_averages_are_told_and_nothing_changes(told: Any) -> None:
    assert told["averages"] == {"none yet": True, "averages": True, "same": True}


def test_an_error_of_the_engine_leaves_the_scale_the_weights_and_the_learning_rate_as_they_were(told: Any) -> None:
    assert told["failures"] == {name: {"failed": True, "same": True} for name in ("scale", "averages", "rate")}


def test_an_overflow_changes_the_scale_alone_and_one_scale_is_lowered_once(told: Any) -> None:
    assert told["overflowing"] == {
        "8": [[-1, 8], [-2, 4], [-7, 2]],  # applied with the scale that it was computed with
        "8 over": [[-1, 4], [-1, 4]],
        "4": [[-3, 4], [-4, 4], [-5, 8], [-6, 8]],  # every fourth that is finite doubles it
        "4 over": [[-6, 2]],
        "set": [[-7, 0.5]],
    }


def test_metrics_reset_with_the_epoch_and_statistics_do_not(told: Any) -> None:
    # Of the epochs 0, 0, 1, 0 (late), 1 and 3: metrics, then a statistic.
    assert [(total, count) for total, count, _, _ in told["resets"]] == [
        (0.5, 2),
        (1.0, 4),
        (0.5, 2),
        (0.5, 2),
        (1.0, 4),
        (0.5, 2),
    ]
    assert [statistic for _, _, statistic, _ in told["resets"]] == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5]
    assert [epoch for *_, epoch in told["resets"]] == [0, 0, 1, 1, 1, 3]


def test_a_learning_rate_is_used_from_the_next_update_on_unless_a_schedule_tells_it(told: Any) -> None:
    assert told["learning rates"] == {
        "first weight": -0.75,
        "told": 0.25,
        "scheduled weight": -0.5,
        "scheduled told": None,
    }


def test_a_stale_update_counts_less_with_a_schedule_too(told: Any) -> None:
    # The second update counts a half, the fourth a quarter.
    assert told["stale rates"] == {"fixed": [-0.5, -0.75, -1.25, -1.375], "scheduled": [-0.5, -0.75, -1.0, -1.0625]}


def test_the_model_and_its_optimizer_stay_as_they_are(told: Any) -> None:
    assert told["model stays"] == {"same": True, "optimizer unbuilt": True}


def test_what_one_server_has_alone_is_not_cut(told: Any) -> None:
    assert told["cuts"]["1"] == 0
    assert told["cuts"]["2"] > 0


def test_an_update_is_compiled_before_the_first_one_comes(told: Any) -> None:
    assert told["programs"] == ([None, None] if told["backend"] == "torch" else [1, 1])


def test_parameters_have_names_of_their_own(told: Any) -> None:
    assert told["names"] == ["w", "w_3", "w_2"]


def test_what_an_optimizer_must_see_at_once_is_known_or_everything(told: Any) -> None:
    found = told["needs"]
    whole = {"lamb", "muon", "adafactor", "clipnorm"}
    together = {"global_clipnorm", "own"}
    assert {name for name, need in found.items() if need == "whole"} == whole
    assert {name for name, need in found.items() if need == "together"} == together
    assert {need for name, need in found.items() if name not in whole | together} == {"slices"}
    assert told["constrained"] == "whole"


EXPECTED = {
    "unspeakable": r"CannotDistribute: a server can't make its own Unspeakable: .* missing .*'teacher'.*get_config",
    "forgetful": r"CannotDistribute: .* Forgetful.get_config does not tell 'strength', which is 2.0 here and 1.0",
    "other count": r"Diverged: the state for this shard has 3 arrays instead of 4",
    "other shape": r"Diverged: array 0 of the state for this shard is float32\[9\] instead of float32\[8\]",
    "other type": r"Diverged: array 0 of an update for this shard is float64\[8\] instead of float32\[8\]",
    "swapped": r"CannotDistribute: SwapEMAWeights .* on the servers.*Leave it out.*ema_overwrite_frequency",
    "untouched": "True",
}


def test_what_can_not_be_right_is_refused_by_name(told: Any) -> None:
    assert told["refusals"].keys() == EXPECTED.keys()
    for name, pattern in EXPECTED.items():
        assert re.search(pattern, told["refusals"][name]), told["refusals"][name]


def test_rows_of_tables_are_updated_as_on_one_machine_and_others_stand_still(told: Any) -> None:
    found = told["row-wise"]
    assert len(found) == 6
    assert {name: about["differs"] for name, about in found.items() if about["differs"] > 1e-6} == {}
    assert told["loaded"] == {"rows": True, "slots": True, "count": True}
    assert told["beginnings"] == [0.0, 5.0, 6.0, 0.0, 0.0]
    for name in ("unused stay", "copies", "kept", "dealt anew", "other optimizer"):
        assert all(about[name] for about in found.values()), (name, found)


def test_what_a_table_does_not_have_or_can_not_do_is_named(told: Any) -> None:
    found = told["tables"]
    assert found.pop("ids") == [1, 2, 3]
    assert found.pop("newcomer") == "3 rows, same"
    assert found.pop("fine") == "none"
    expected = {
        "outside": "table: the id 10 in sample 1 is not one of its 10 rows",
        "below": "table: the id -1 in sample 1 is not one of its 10 rows",
        "too many": "4 different ids for table, .* at most 3",
        "initializer": "RandomUniform, RandomNormal, Zeros, Ones and Constant",
        "clipnorm": "this Adam looks at whole tensors",
        "float16": "use mixed_bfloat16",
        "not trained": "Call fit, evaluate or predict of its model first",
    }
    assert found.keys() == expected.keys()
    assert {name: found[name] for name, words in expected.items() if not re.search(words, found[name])} == {}

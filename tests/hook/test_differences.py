"""How a model differs from a checkpoint's, in words that say what to look for."""

from __future__ import annotations

from shoal.training.resuming import Listed, differences

MODEL: Listed = {
    "trainable": [("dense/kernel", (4, 3)), ("dense/bias", (3,))],
    "state": [],
    "optimizer": [("adam/iteration", ()), ("adam/kernel_row", None)],
}


def test_the_same_model_has_none_whatever_its_layers_are_called():
    assert differences(MODEL, MODEL) == ""
    renamed = {kind: [(f"other/{path}", shape) for path, shape in listed] for kind, listed in MODEL.items()}
    assert differences(MODEL, renamed) == ""
    assert differences(MODEL, MODEL | {"optimizer": [("adam/iteration", ()), ("adam/kernel_row", (4,))]}) == ""


def test_other_shapes_are_told():
    found = differences(MODEL, MODEL | {"trainable": [("dense/kernel", (4, 5)), ("dense/bias", (5,))]})
    assert found == (
        "it is of another model (of another shape: dense/kernel (4, 3), (4, 5) in the checkpoint, dense/bias (3,), "
        "(5,) in the checkpoint)"
    )


def test_what_is_missing_and_what_is_too_much_is_told():
    there: Listed = MODEL | {"state": [("norm/mean", (3,))], "trainable": [("dense/kernel", (4, 3))], "optimizer": []}
    assert differences(MODEL, there) == (
        "it is of another model (not in the checkpoint: dense/bias (3,), adam/iteration (), adam/kernel_row; only in "
        "the checkpoint: norm/mean (3,))"
    )


def test_many_are_counted():
    here: Listed = {"trainable": [(f"layer_{place}/kernel", (2,)) for place in range(20)]}
    assert differences(here, {}).endswith("layer_3/kernel (2,) and 16 more)")


def test_another_order_is_told():
    here: Listed = {"trainable": [("a", (2,)), ("b", (3,))]}
    there: Listed = {"trainable": [("b", (3,)), ("a", (2,))]}
    assert (
        differences(here, there) == "it is of another model (in another order: the variables of the kind 'trainable')"
    )

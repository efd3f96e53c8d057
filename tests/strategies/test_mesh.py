"""Which tensors are split over which axis, and what a device then holds: facts about layers in, layouts out."""

from __future__ import annotations

import itertools

import pytest

from shoal.errors import UsageError
from shoal.strategies.mesh.layouts import LayerFacts, LayerKind, Matrix, TensorFacts, derive
from shoal.strategies.mesh.report import DeviceMemory, told, wants_fsdp
from shoal.strategies.mesh.shape import Mesh

_keys = itertools.count()


def tensor(path, *shape):
    nbytes = 4
    for axis in shape:
        nbytes *= axis
    return TensorFacts(next(_keys), path, shape, nbytes)


def dense(path, inputs, outputs, sources=(0,)):
    kernel, bias = tensor(f"{path}/kernel", inputs, outputs), tensor(f"{path}/bias", outputs)
    return LayerFacts("Dense", LayerKind.MATRIX, (Matrix(kernel, (0,), (1,), bias, {1: 0}),), (), sources)


def attention(heads, features, size=8, of_keys=None):
    def projection(path, heads):
        bias = tensor(f"{path}/bias", heads, size)
        return Matrix(tensor(f"{path}/kernel", features, heads, size), (0,), (1, 2), bias, {1: 0, 2: 1})

    parts = [projection("query", heads), projection("key", of_keys or heads), projection("value", of_keys or heads)]
    output = Matrix(tensor("output/kernel", heads, size, features), (0, 1), (2,), tensor("output/bias", features))
    return LayerFacts("MultiHeadAttention", LayerKind.ATTENTION, (*parts, output), (), (0,))


def passes(*sources):
    return LayerFacts("Dropout", LayerKind.PASSES, sources=sources)


START = LayerFacts("InputLayer", LayerKind.PASSES, sources=())


def axes(layers, mesh, fsdp=False):
    return {layout.tensor.path: layout.axes for layout in derive(layers, mesh, fsdp).values()}


def test_a_pair_of_matrices_is_split_by_outputs_and_then_by_inputs_whatever_passes_between_them():
    found = axes([START, dense("up", 8, 32), passes(1), dense("down", 32, 8, (2,))], Mesh(1, 4))
    assert found["up/kernel"] == (None, "model")
    assert found["up/bias"] == ("model",)
    assert found["down/kernel"] == ("model", None)
    assert found["down/bias"] == (None,)


def test_a_layer_that_computes_with_all_features_ends_a_split():
    norm = LayerFacts("LayerNormalization", LayerKind.OTHER, (), (tensor("norm/gamma", 32),), (1,))
    found = axes([START, dense("a", 8, 32), norm, dense("b", 32, 32, (2,))], Mesh(1, 4))
    assert found["norm/gamma"] == (None,)
    assert found["b/kernel"] == (None, "model")


def test_branches_that_are_not_both_split_are_whole_where_they_meet():
    layers = [START, dense("a", 8, 32), dense("b", 8, 32), passes(1, 2), dense("c", 32, 8, (3,))]
    assert axes(layers, Mesh(1, 4))["c/kernel"] == ("model", None)
    layers[3] = passes(1, 0)
    assert axes(layers, Mesh(1, 4))["c/kernel"] == (None, "model")


def test_without_a_graph_the_shapes_decide():
    found = axes([dense("up", 8, 32, None), dense("down", 32, 8, None)], Mesh(1, 4))
    assert found["up/kernel"] == (None, "model")
    assert found["down/kernel"] == ("model", None)


def test_outputs_that_do_not_divide_leave_the_inputs_to_split():
    assert axes([START, dense("classes", 32, 10)], Mesh(1, 4))["classes/kernel"] == ("model", None)
    (kernel, _) = derive([START, dense("odd", 7, 10)], Mesh(1, 4), False).values()
    assert not kernel.is_split
    assert kernel.why == "neither its outputs nor its inputs divide by 4"


def test_an_attention_is_split_by_heads():
    found = axes([START, attention(4, 32)], Mesh(1, 4))
    assert found["query/kernel"] == found["key/kernel"] == (None, "model", None)
    assert found["value/bias"] == ("model", None)
    assert found["output/kernel"] == ("model", None, None)
    assert found["output/bias"] == (None,)


def test_few_heads_of_keys_are_kept_in_parts_beside_queries_that_are_split_by_heads():
    found = axes([START, attention(4, 32, of_keys=2)], Mesh(1, 4))
    assert found["query/kernel"] == (None, "model", None)
    assert found["key/kernel"] == found["value/kernel"] == ("model", None, None)
    assert found["output/kernel"] == ("model", None, None)


def test_a_table_is_split_by_rows_or_else_by_columns_and_once_if_it_is_tied():
    table, odd = tensor("table", 64, 32), tensor("odd", 33, 32)
    embeddings = [LayerFacts("Embedding", LayerKind.EMBEDDING, (), (one,), (0,)) for one in (table, odd)]
    tied = LayerFacts("Head", LayerKind.OTHER, (), (table,), (1,))
    found = axes([START, *embeddings, tied], Mesh(1, 4))
    assert found == {"table": ("model", None), "odd": (None, "model")}


def test_names_do_not_matter():
    layers = [START, dense("up", 8, 32), dense("down", 32, 8, (1,))]
    renamed = [START, dense("x/1", 8, 32), dense("x/2", 32, 8, (1,))]
    assert list(axes(layers, Mesh(1, 4)).values()) == list(axes(renamed, Mesh(1, 4)).values())


def test_fsdp_splits_what_is_worth_it_along_its_longest_free_axis():
    layers = [START, dense("up", 64, 256), dense("odd", 257, 31, (1,))]
    found = axes(layers, Mesh(4, 1), fsdp=True)
    assert found["up/kernel"] == (None, "batch")
    assert found["up/bias"] == (None,)  # 256 elements are not worth a transfer
    assert found["odd/kernel"] == (None, None)
    both = derive([START, dense("up", 64, 256)], Mesh(2, 2), True)
    kernel, bias = both.values()
    assert kernel.axes == ("batch", "model")
    assert (kernel.bytes_on_device(Mesh(2, 2)), kernel.tensor.nbytes) == (16384, 65536)
    assert bias.axes == ("model",)


def test_memory_asks_for_fsdp_where_the_state_would_fill_a_device():
    assert wants_fsdp(None, 5 << 30, 8 << 30)
    assert not wants_fsdp(None, 3 << 30, 8 << 30)
    assert not wants_fsdp(None, 5 << 30, None)  # a CPU does not say what it has
    assert wants_fsdp(True, 0, None)
    assert not wants_fsdp(False, 5 << 30, 8 << 30)


def test_what_is_split_and_what_is_not_is_said_with_the_reason():
    layouts = list(derive([START, dense("up", 8, 32), dense("odd", 7, 10)], Mesh(1, 4), False).values())
    head, *details = told(Mesh(1, 4), "4 devices (cpu)", DeviceMemory(1000, 280, 2000, 560), layouts, False)
    assert head == (
        "mesh batch=1,model=4 of 4 devices (cpu): each device holds 280 bytes of 1.0 kB of weights and 560 bytes of "
        "2.0 kB of optimizer state (28.0%)"
    )
    assert "split (outputs): 1.0 kB: up/kernel" in details
    assert (
        "whole on every device (neither its outputs nor its inputs divide by 4): 320 bytes: odd/kernel, odd/bias"
        in details
    )


@pytest.mark.parametrize(
    ("text", "mesh"),
    [("batch=2,model=2", Mesh(2, 2)), ("model=4", Mesh(None, 4)), (" batch = 4 , fsdp", Mesh(4, 1, True))],
)
def test_a_mesh_is_said_in_words(text, mesh):
    assert Mesh.parse(text) == mesh
    assert Mesh.parse(str(mesh)) == mesh


@pytest.mark.parametrize("text", ["", "4", "batch=two", "batch=2,batch=2", "rows=2", "model=0", "batch=2;model=2"])
def test_what_is_no_mesh_is_refused(text):
    with pytest.raises(UsageError, match="--mesh"):
        Mesh.parse(text)


def test_a_mesh_takes_all_devices_of_a_worker_and_no_others():
    assert Mesh(model=2).on(4) == Mesh(2, 2)
    assert Mesh().on(3) == Mesh(3, 1)
    for wrong in (Mesh(2, 2), Mesh(model=3), Mesh(batch=1)):
        with pytest.raises(UsageError, match=r"does not match .* has 8 devices"):
            wrong.on(8)
    with pytest.raises(UsageError, match="at least 1"):
        Mesh(batch=0)

"""A built Keras model as the facts from which layouts are derived: what its layers are, and which feeds which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from shoal.hook import keras_private
from shoal.strategies.mesh.layouts import LayerFacts, LayerKind, Matrix, TensorFacts

_LAYERS: Any = keras.layers
# Each output feature depends on the same input feature alone, so that a split along features stays one.
_PASSES: tuple[Any, ...] = tuple(
    getattr(_LAYERS, name)
    for name in (
        *("Activation", "ReLU", "LeakyReLU", "ELU", "Identity", "InputLayer", "Rescaling"),
        *("Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
        *("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "BatchNormalization"),
        *("ZeroPadding1D", "ZeroPadding2D", "UpSampling1D", "UpSampling2D", "Cropping1D", "Cropping2D"),
        *(f"{kind}Pooling{n}D" for kind in ("Max", "Average", "GlobalMax", "GlobalAverage") for n in (1, 2, 3)),
    )
    if hasattr(_LAYERS, name)
)
_CONVOLUTIONS = (_LAYERS.Conv1D, _LAYERS.Conv2D, _LAYERS.Conv3D)
_TRANSPOSED = (_LAYERS.Conv1DTranspose, _LAYERS.Conv2DTranspose, _LAYERS.Conv3DTranspose)
_ATTENTION = (_LAYERS.MultiHeadAttention, _LAYERS.GroupQueryAttention)


def tensor_of(variable: Any) -> TensorFacts:
    shape = tuple(int(axis) for axis in variable.shape)
    return TensorFacts(id(variable), variable.path, shape, int(variable.value.nbytes))


def describe(model: Any) -> list[LayerFacts]:
    """All layers that have variables, or that others feed on, the first to compute first. Tensors once each."""
    return _Description().of(model)


class _Description:
    """Facts so far."""

    def __init__(self) -> None:
        self._facts: list[LayerFacts] = []
        self._seen: set[int] = set()

    def of(self, model: Any) -> list[LayerFacts]:
        self._add(model, None)
        return self._facts

    def _add(self, layer: Any, sources: tuple[int, ...] | None) -> int:
        """The number of the fact that stands for what comes out of a layer."""
        graph = keras_private.graph_of(layer)
        if graph is not None:
            return self._add_graph(layer, graph)
        if (known := _matrix_layer(layer, sources)) is not None:
            return self._keep(layer, known)
        for inner in keras_private.children_of(layer):
            if id(inner) not in self._seen:
                self._seen.add(id(inner))
                self._add(inner, None)
        return self._keep(layer, LayerFacts(type(layer).__name__, _kind_of(layer), sources=sources))

    def _add_graph(self, model: Any, graph: Sequence[tuple[Any, list[Any]]]) -> int:
        numbers: dict[int, int] = {}
        last = len(self._facts)
        for operation, feeds in graph:
            self._seen.add(id(operation))
            sources = tuple(numbers[id(feed)] for feed in feeds if id(feed) in numbers)
            last = numbers[id(operation)] = self._add(operation, sources)
        # What the model has besides its graph, and what layers made of their own accord.
        self._keep(model, LayerFacts(type(model).__name__, LayerKind.OTHER))
        return last

    def _keep(self, layer: Any, facts: LayerFacts) -> int:
        """With the variables of the layer that are not described yet."""
        described = {tensor.key for fact in (*self._facts, facts) for tensor in _tensors(fact)}
        variables = getattr(layer, "variables", ())
        rest = tuple(tensor_of(v) for v in variables if id(v) not in described)
        self._facts.append(
            LayerFacts(facts.what, facts.kind, facts.matrices, (*facts.tensors, *_once(rest)), facts.sources)
        )
        return len(self._facts) - 1


def _once(tensors: Iterable[TensorFacts]) -> list[TensorFacts]:
    return list({tensor.key: tensor for tensor in tensors}.values())


def _tensors(fact: LayerFacts) -> list[TensorFacts]:
    inner = [tensor for one in fact.matrices for tensor in (one.kernel, one.bias) if tensor is not None]
    return [*inner, *fact.tensors]


def _kind_of(layer: Any) -> LayerKind:
    return LayerKind.PASSES if isinstance(layer, _PASSES) else LayerKind.OTHER


def _matrix_layer(layer: Any, sources: tuple[int, ...] | None) -> LayerFacts | None:
    """A layer that is known to multiply by matrices, or to look rows up; None: it is none, or has not that form now."""
    what = type(layer).__name__
    if isinstance(layer, _ATTENTION):
        parts = keras_private.projections_of(layer)
        if parts is None:
            return None
        matrices = [_einsum(part) for part in parts]
        known = tuple(matrix for matrix in matrices if matrix is not None)
        return LayerFacts(what, LayerKind.ATTENTION, known, (), sources) if len(known) == len(matrices) else None
    if isinstance(layer, _LAYERS.Embedding):
        tables = [v for v in layer.variables if len(v.shape) == 2 and "float" in str(v.dtype)]
        return LayerFacts(what, LayerKind.EMBEDDING, (), tuple(map(tensor_of, tables)), sources)
    matrix = _matrix_of(layer)
    return None if matrix is None else LayerFacts(what, LayerKind.MATRIX, (matrix,), (), sources)


def _matrix_of(layer: Any) -> Matrix | None:
    if isinstance(layer, _LAYERS.Dense):
        return _plain(layer, inputs=0, outputs=1)
    if isinstance(layer, _LAYERS.EinsumDense):
        return _einsum(layer)
    if isinstance(layer, _CONVOLUTIONS) and getattr(layer, "groups", 1) == 1:
        rank = len(layer.kernel_size)
        return _plain(layer, inputs=rank, outputs=rank + 1)
    if isinstance(layer, _TRANSPOSED):
        rank = len(layer.kernel_size)
        return _plain(layer, inputs=rank + 1, outputs=rank)
    return None


def _plain(layer: Any, inputs: int, outputs: int) -> Matrix | None:
    kernel = keras_private.kernel_of(layer)
    if kernel is None:
        return None
    bias = getattr(layer, "bias", None)
    facts = tensor_of(bias) if bias is not None else None
    return Matrix(tensor_of(kernel), (inputs,), (outputs,), facts, {outputs: 0})


def _einsum(layer: Any) -> Matrix | None:
    """`abc,cde->abde`: c is summed over, d and e are features of the result."""
    kernel = keras_private.kernel_of(layer)
    left, arrow, result = str(getattr(layer, "equation", "")).replace("...", "").partition("->")
    given, comma, letters = left.partition(",")
    if kernel is None or not (arrow and comma) or len(letters) != len(kernel.shape):
        return None
    inputs = tuple(i for i, letter in enumerate(letters) if letter in given and letter not in result)
    outputs = tuple(i for i, letter in enumerate(letters) if letter in result and letter not in given)
    if len(inputs) + len(outputs) != len(letters):
        return None  # an axis that both have is neither
    bias = getattr(layer, "bias", None)
    axes = [letter for letter in result if letter in (layer.bias_axes or "")] if bias is not None else []
    if bias is not None and len(axes) != len([axis for axis in bias.shape if axis != 1]):
        return Matrix(tensor_of(kernel), inputs, outputs, tensor_of(bias))
    places = _places(bias, axes) if bias is not None else {}
    of = {i: places[letters[i]] for i in outputs if letters[i] in places}
    return Matrix(tensor_of(kernel), inputs, outputs, tensor_of(bias) if bias is not None else None, of)


def _places(bias: Any, axes: Sequence[str]) -> dict[str, int]:
    """A bias has an axis of length 1 for each axis of the result that it does not have, but for the first ones."""
    long = [i for i, axis in enumerate(bias.shape) if axis != 1]
    return dict(zip(axes, long, strict=True))

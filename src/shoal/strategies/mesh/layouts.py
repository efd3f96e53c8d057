"""Which tensors of a model are split over which axis of a mesh. Pure: facts about layers in, layouts out.

Tensor parallelism goes by what a layer is and what feeds it, never by its name. A layer that multiplies by a matrix has
two ways to split it:

    by outputs   each device computes some of the features; they stay where they are
    by inputs    each device multiplies the features that it has; the products are added up over the devices

A layer whose input is split already takes the second way, others the first: a pair of them costs one addition over the
devices. Where the graph between layers is not known (within a layer of the user's own) the shapes decide: what makes
more features than it gets is split by outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from shoal.strategies.mesh.shape import BATCH, MODEL, Mesh

SMALL = 1024  # elements; below, a tensor is not worth a transfer of its own


class LayerKind(Enum):
    """What a layer is to whoever splits it."""

    MATRIX = "matrix"  # multiplies features by a kernel: Dense, EinsumDense, convolutions
    ATTENTION = "attention"
    EMBEDDING = "embedding"
    PASSES = "passes"  # each output feature depends on the same input feature alone: activations, dropout, pooling
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A variable, before it is split."""

    key: int  # by which the caller knows it
    path: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A kernel and its bias, and what their axes mean."""

    kernel: TensorFacts
    inputs: tuple[int, ...]  # axes of the kernel that are summed over, the best to split first
    outputs: tuple[int, ...]  # axes that are features of the result, the best to split first
    bias: TensorFacts | None = None
    bias_of: Mapping[int, int] = field(default_factory=dict)  # axis of the kernel to axis of the bias


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """A layer."""

    what: str  # its class
    kind: LayerKind
    matrices: tuple[Matrix, ...] = ()  # of an attention: query, key, value (and gate), and last the output
    tensors: tuple[TensorFacts, ...] = ()  # all others
    sources: tuple[int, ...] | None = None  # the layers that feed it, by number; None: nobody knows


@dataclass(frozen=True, slots=True)
class Layout:
    """Of one tensor: the mesh axis that each of its axes is split over, and why."""

    tensor: TensorFacts
    axes: tuple[str | None, ...]
    why: str

    def ways(self, mesh: Mesh) -> int:
        """Into how many parts it is split."""
        sizes = {BATCH: mesh.batch or 1, MODEL: mesh.model}
        return math.prod(sizes[axis] for axis in self.axes if axis is not None)

    def bytes_on_device(self, mesh: Mesh) -> int:
        return self.tensor.nbytes // self.ways(mesh)

    @property
    def is_split(self) -> bool:
        return any(self.axes)


def derive(layers: Sequence[LayerFacts], mesh: Mesh, fsdp: bool) -> dict[int, Layout]:
    """The layout of every tensor, by its key. A tensor that several layers share is decided by the first."""
    layouts: dict[int, Layout] = {}
    split: list[bool | None] = []  # whether a layer's output is, along its features; None: nobody knows
    for layer in layers:
        found, is_split = _of_layer(layer, mesh.model, _input_of(layer, split))
        split.append(is_split)
        for layout in found:
            layouts.setdefault(layout.tensor.key, layout)
    if fsdp and (mesh.batch or 1) > 1:
        layouts = {key: _over_batch(layout, mesh.batch or 1) for key, layout in layouts.items()}
    return layouts


def _input_of(layer: LayerFacts, split: Sequence[bool | None]) -> bool | None:
    """Whether the features that a layer gets are split; None if nobody knows."""
    if layer.sources is None:
        return None
    known = [split[i] for i in layer.sources]
    return None if None in known else bool(known) and all(known)


def _of_layer(layer: LayerFacts, ways: int, is_split: bool | None) -> tuple[list[Layout], bool | None]:
    """Layouts of a layer's tensors, and whether its output is split."""
    if ways == 1:
        every = [tensor for matrix in layer.matrices for tensor in _tensors_of(matrix)]
        return [_whole(tensor, "there is no model axis") for tensor in (*every, *layer.tensors)], False
    rest = [_whole(tensor, f"{layer.what} computes with all of it") for tensor in layer.tensors]
    match layer.kind:
        case LayerKind.MATRIX:
            found, by_outputs = _matrix(layer.matrices[0], ways, is_split)
            return [*found, *rest], None if layer.sources is None else by_outputs
        case LayerKind.ATTENTION:
            return [*_attention(layer.matrices, ways), *rest], False
        case LayerKind.EMBEDDING:
            return [_embedding(tensor, ways) for tensor in layer.tensors], False
        case LayerKind.PASSES:
            return rest, is_split
    return rest, False


def _matrix(matrix: Matrix, ways: int, is_split: bool | None) -> tuple[list[Layout], bool]:
    """Layouts of a kernel and its bias; whether it is split by outputs."""
    shape = matrix.kernel.shape
    if is_split is None:
        made, got = (math.prod(shape[axis] for axis in axes) for axes in (matrix.outputs, matrix.inputs))
        is_split = made < got
    by_inputs, by_outputs = _first(shape, matrix.inputs, ways), _first(shape, matrix.outputs, ways)
    if is_split and by_inputs is not None:
        return _by_inputs(matrix, by_inputs, "its input is split"), False
    if by_outputs is not None:
        return _by_outputs(matrix, by_outputs), True
    if by_inputs is not None:
        return _by_inputs(matrix, by_inputs, "its outputs do not divide"), False
    why = f"neither its outputs nor its inputs divide by {ways}"
    return [_whole(tensor, why) for tensor in _tensors_of(matrix)], False


def _attention(matrices: Sequence[Matrix], ways: int) -> list[Layout]:
    """Each device computes some of the heads. Keys and values of few heads are whole, or kept in parts."""
    *projections, output = matrices
    found: list[Layout] = []
    heads = [_first(matrix.kernel.shape, matrix.outputs[:1], ways) for matrix in projections]
    for matrix, axis in zip(projections, heads, strict=True):
        found += _by_outputs(matrix, axis, "heads") if axis is not None else _stored(matrix, ways)
    over_heads = _first(output.kernel.shape, output.inputs[:1], ways)
    if heads[0] is not None and over_heads is not None:
        return [*found, *_by_inputs(output, over_heads, "heads")]
    return [*found, *_stored(output, ways)]


def _stored(matrix: Matrix, ways: int) -> list[Layout]:
    """Heads that do not divide: the kernel is kept in parts, along what is summed over, and still saves memory."""
    axis = _first(matrix.kernel.shape, matrix.inputs[::-1], ways)
    if axis is None:
        return [_whole(tensor, f"neither heads nor features divide by {ways}") for tensor in _tensors_of(matrix)]
    return _by_inputs(matrix, axis, f"its heads do not divide by {ways}")


def _embedding(tensor: TensorFacts, ways: int) -> Layout:
    """By rows, so that one that also makes logits is split by outputs there."""
    if len(tensor.shape) != 2:
        return _whole(tensor, "it is no table")
    axis = _first(tensor.shape, (0, 1), ways)
    if axis is None:
        return _whole(tensor, f"neither its rows nor its columns divide by {ways}")
    return _along(tensor, axis, "rows" if axis == 0 else "columns, since its rows do not divide")


def _by_outputs(matrix: Matrix, axis: int, why: str = "outputs") -> list[Layout]:
    layouts = [_along(matrix.kernel, axis, why)]
    if matrix.bias is not None:
        place = matrix.bias_of.get(axis)
        whole = _whole(matrix.bias, "its kernel is split along another axis")
        layouts.append(whole if place is None else _along(matrix.bias, place, f"{why}, as its kernel"))
    return layouts


def _by_inputs(matrix: Matrix, axis: int, why: str) -> list[Layout]:
    layouts = [_along(matrix.kernel, axis, f"inputs: {why}")]
    if matrix.bias is not None:
        layouts.append(_whole(matrix.bias, "it is added once, to the sum over devices"))
    return layouts


def _first(shape: Sequence[int], axes: Sequence[int], ways: int) -> int | None:
    return next((axis for axis in axes if shape[axis] % ways == 0 and shape[axis] >= ways), None)


def _tensors_of(matrix: Matrix) -> list[TensorFacts]:
    return [matrix.kernel, *([matrix.bias] if matrix.bias is not None else [])]


def _whole(tensor: TensorFacts, why: str) -> Layout:
    return Layout(tensor, (None,) * len(tensor.shape), why)


def _along(tensor: TensorFacts, axis: int, why: str) -> Layout:
    return Layout(tensor, tuple(MODEL if place == axis else None for place in range(len(tensor.shape))), why)


def _over_batch(layout: Layout, ways: int) -> Layout:
    """And over the batch axis: along the longest axis that divides and is not split yet."""
    tensor = layout.tensor
    if math.prod(tensor.shape) < SMALL:
        return layout if layout.is_split else Layout(tensor, layout.axes, f"it has fewer than {SMALL} elements")
    free = [i for i, axis in enumerate(layout.axes) if axis is None and tensor.shape[i] % ways == 0]
    if not free:
        why = f"none of its axes divides by {ways}"
        return layout if layout.is_split else Layout(tensor, layout.axes, why)
    longest = max(free, key=lambda i: (tensor.shape[i], -i))
    axes = tuple(BATCH if i == longest else axis for i, axis in enumerate(layout.axes))
    return Layout(tensor, axes, f"{layout.why}; over the batch axis too" if layout.is_split else "over the batch axis")

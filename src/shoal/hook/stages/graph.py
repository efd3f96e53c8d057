"""A Keras model as a graph that can be cut; or why it can't."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import keras

from shoal.errors import CannotDistribute
from shoal.hook import keras_private
from shoal.hook.backends.cut import is_keras_own
from shoal.hook.served.shard_optimizer import needs_of
from shoal.store.decisions.shards import Needs
from shoal.strategies.stages import LayerCall, ModelGraph, attention_cost, in_order


class TakenApart(NamedTuple):
    """A model's graph, and what its numbers stand for."""

    graph: ModelGraph
    tensors: list[Any]  # of Keras's, by number
    layers: list[Any]  # of each call
    functional: Any  # the graph as Keras knows it


def take_apart(model: Any) -> TakenApart:
    """The graph of a built model. CannotDistribute names what can't be cut, and what would work."""
    functional = keras_private.functional_of(model)
    if functional is None:
        raise CannotDistribute(
            f"{type(model).__name__} {model.name!r} can't be cut into stages: it has a `call` of its own, and only "
            "a model that is a graph of layers can be cut. Build it as keras.Sequential or as keras.Model(inputs, "
            "outputs), or train it with --strategy allreduce."
        )
    found = keras_private.calls_in(functional)
    tensors: list[Any] = list(functional.inputs)
    for _, _, made in found:
        tensors += made
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    calls = [
        LayerCall(
            operation.name,
            tuple(dict.fromkeys(numbers[id(tensor)] for tensor in taken)),
            tuple(numbers[id(tensor)] for tensor in made),
            _cost(operation, taken, made),
        )
        for operation, taken, made in found
    ]
    outputs = tuple(numbers[id(tensor)] for tensor in functional.outputs)
    order = in_order(calls, outputs)
    graph = ModelGraph(
        tuple(calls[place] for place in order),
        tuple(numbers[id(tensor)] for tensor in functional.inputs),
        outputs,
        frozenset(number for number, tensor in enumerate(tensors) if not _may_cross(tensor)),
    )
    return TakenApart(graph, tensors, [found[place][0] for place in order], functional)


def refuse_unless_stageable(model: Any, callbacks: Any, lean: bool = False) -> None:
    """Raises CannotDistribute for what a training in stages would get wrong. `callbacks`: those of the fit; `lean`: no
    worker ever has the whole optimizer.
    """
    name = f"{type(model).__name__} {model.name!r}"
    for method in ("train_step", "compute_loss", "compute_metrics"):
        if not is_keras_own(model, method):
            raise CannotDistribute(
                f"{name} has a `{method}` of its own, which sees the whole model; in a pipeline no worker does. Put "
                "what it computes into a loss, a metric or a layer, or train it with --strategy allreduce."
            )
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise CannotDistribute(
            f"{name} is trained with a scaled loss (mixed_float16), whose scale depends on the gradients of all "
            "stages. Use mixed_bfloat16, or --strategy allreduce."
        )
    if needs_of(optimizer) is Needs.TOGETHER:
        why = "it has global_clipnorm" if optimizer.global_clipnorm else "it is not one of Keras's own"
        raise CannotDistribute(
            f"in a pipeline each stage is updated by itself, and this {type(optimizer).__name__} may have to see all "
            f"gradients at once: {why}. Use clipnorm or clipvalue, another optimizer of Keras's, or --strategy "
            "allreduce."
        )
    if optimizer.gradient_accumulation_steps:
        raise CannotDistribute(
            "gradient_accumulation_steps in a pipeline: pieces already accumulate there. Leave it out, and use a "
            "larger batch_size with more --pieces."
        )
    if any(isinstance(each, keras.callbacks.SwapEMAWeights) for each in callbacks):
        raise CannotDistribute(
            "SwapEMAWeights swaps weights with averages that the optimizer keeps, and in a pipeline each stage has an "
            "optimizer of its own. Leave it out: the weights become the averages when fit ends. Or use --strategy "
            "allreduce."
        )
    for each in callbacks:
        saves = isinstance(each, keras.callbacks.ModelCheckpoint | keras.callbacks.BackupAndRestore)
        if saves and each.save_freq != "epoch":
            raise CannotDistribute(
                f"{type(each).__name__}(save_freq={each.save_freq!r}) saves the whole model in the middle of an epoch, "
                "when no worker of a pipeline has it. Use save_freq='epoch', or shoal run --checkpoint, for which each "
                "worker writes its own stages."
            )
        if lean and isinstance(each, keras.callbacks.BackupAndRestore):
            raise CannotDistribute(
                "BackupAndRestore keeps the optimizer's state, and with Pipeline(lean=True) no worker ever has all of "
                "it. Use shoal run --checkpoint, for which each worker writes its own stages; or leave out lean=True."
            )


def _may_cross(tensor: Any) -> bool:
    return not keras_private.has_mask(tensor) and not getattr(tensor, "sparse", False) and tensor.dtype != "string"


def _cost(operation: Any, taken: list[Any], made: list[Any]) -> float:
    """About how much a call computes: each number of a kernel is used once per position, and outputs are written.

    Attention looks from each position at each.

    From shapes alone: the cuts, and with them the bits, must not depend on who measured what.
    """
    written = sum(_elements(tensor.shape[1:]) for tensor in made)
    if isinstance(operation, keras.layers.Embedding):
        return written
    positions = max((_elements(tensor.shape[1:-1]) for tensor in (*taken, *made)), default=1.0)
    kernels = sum(math.prod(v.shape) for v in getattr(operation, "weights", ()) if len(v.shape) > 1)
    return float(written + positions * kernels + _of_attention(operation, taken))


def _of_attention(operation: Any, taken: list[Any]) -> float:
    layers = keras.layers
    if isinstance(operation, layers.MultiHeadAttention):
        width = operation.num_heads * (operation.key_dim + operation.value_dim)
    elif isinstance(operation, layers.GroupQueryAttention):
        width = operation.num_query_heads * 2 * operation.head_dim
    elif isinstance(operation, layers.Attention):  # AdditiveAttention is one
        width = taken[0].shape[-1] + taken[min(1, len(taken) - 1)].shape[-1]
    else:
        return 0.0
    return attention_cost(taken[0].shape, taken[min(1, len(taken) - 1)].shape, width)


def _elements(shape: Any) -> float:
    return float(math.prod(axis or 1 for axis in shape))

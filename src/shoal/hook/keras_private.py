"""Every private name of Keras and of the backends that Shoal uses, and what happens where one is gone.

Nothing else in the package uses such a name (tests/hook/test_private_names.py). Each function says what it is for. It
looks whether the name is there. If not, it does without where that gives the same results, or raises a UsageError that
says which versions have it.

Imports neither keras nor a backend by itself: it is used before they are chosen.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from shoal.errors import UsageError

KERAS = "Keras 3.12 to 3.16"  # have all that is used here
_BACKENDS = {"jax": "JAX 0.10", "tensorflow": "TensorFlow 2.21", "torch": "PyTorch 2.13"}

# Modules, by name: for those who look at them before, or without, importing them.
ORBAX_CALLBACK = "keras.src.callbacks.orbax_checkpoint"  # imports JAX on every backend, to mend old versions of it
TF_KERAS = "keras._tf_keras.keras"  # what `tf.keras` is
DYNAMO = "torch._dynamo"  # PyTorch's compiler, without which nothing is compiled
COMPILE = "torch._compile"  # keeps some of PyTorch's own functions from it
DYNAMO_IMPORTERS = tuple(f"keras.src.backend.torch.{name}" for name in ("image", "ops.image", "random"))
_BACKEND = "keras.src.backend"
_OF_BACKENDS = "keras.src.backend."


def _missing(name: str, purpose: str, package: str = "keras", otherwise: str = "") -> UsageError:
    version = getattr(sys.modules.get(package), "__version__", "that is installed")
    works = _BACKENDS.get(package, KERAS)
    return UsageError(
        f"the {package} {version} has no {name}, by which Shoal {purpose}. Use {works}{otherwise}, or run this script "
        "without Shoal."
    )


def _of(thing: Any, name: str, purpose: str) -> Any:
    """An attribute of Keras's without which there is no way."""
    try:
        return getattr(thing, name)
    except AttributeError:
        raise _missing(f"{type(thing).__name__}.{name}", purpose) from None


# Data ---------------------------------------------------------------------------------------------------


def data_adapter() -> Any:
    """The class whose objects `fit` takes as they are: what a stream of shards is to Keras without Shoal."""
    try:
        from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    except ImportError:
        return object  # then only Shoal's fit takes it
    return DataAdapter


def adapter_of(start: Callable[[], Iterator[Any]]) -> Any:
    """Keras's own adapter for generators, with one that can be started anew for every epoch."""
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

    adapter = GeneratorDataAdapter(start())
    adapter.generator = start
    return adapter


# Models and layers --------------------------------------------------------------------------------------


def layers_in(model: Any) -> list[Any]:
    """A model and all layers below it, at any depth and once each. `model.layers` knows its own children only."""
    return list(_of(model, "_flatten_layers", "finds all layers of a model")())


def build_on(model: Any, batch: Any) -> None:
    """Makes the variables of layers, metrics, losses and optimizer on an example of a batch, and computes nothing."""
    _of(model, "_symbolic_build", "builds a model before its first step")(data_batch=batch)


def compiled_parts(model: Any) -> list[Any]:
    """What `compile` made of metrics and losses: they have variables, and are no layers."""
    names = ("_compile_metrics", "_compile_loss")
    parts = [_of(model, name, "knows whether metrics and losses are built") for name in names]
    return [part for part in parts if part is not None]


def first_epoch(model: Any, given: int, is_restored: bool) -> int:
    """Where BackupAndRestore has told the model to begin, else `given`. `is_restored`: there is such a callback."""
    if not is_restored:
        return int(getattr(model, "_initial_epoch", None) or given)
    return int(_of(model, "_initial_epoch", "learns where BackupAndRestore goes on") or given)


def metrics_in_order(model: Any, logs: dict[str, Any]) -> Any:
    """What `evaluate` returns without `return_dict`."""
    if not hasattr(model, "_flatten_metrics_in_order"):
        name = f"{type(model).__name__}._flatten_metrics_in_order"
        raise _missing(name, "orders metrics", otherwise=", or pass return_dict=True")
    return model._flatten_metrics_in_order(logs)


def functional_of(model: Any) -> Any | None:
    """The graph that a model's own `call` runs: the model itself, or what a Sequential makes of its layers. None: it
    has none, or a `call` of the user's.
    """
    import keras

    if isinstance(model, keras.Sequential):
        return getattr(model, "_functional", None) if type(model).call is keras.Sequential.call else None
    is_graph = isinstance(model, keras.Function) and type(model).call.__module__.startswith("keras.")
    return model if is_graph else None


def calls_in(functional: Any) -> list[tuple[Any, list[Any], list[Any]]]:
    """The calls of a model's graph, in an order in which they can be computed: layer or operation, what it takes, and
    what it makes.
    """
    known: dict[int, Any] = {}
    order: list[Any] = []
    given = {id(tensor) for tensor in functional.inputs}

    def node_of(tensor: Any) -> Any:
        history = _of(tensor, "_keras_history", "takes a model's graph apart")
        return history.operation._inbound_nodes[history.node_index]

    waiting = [node_of(tensor) for tensor in reversed(functional.outputs) if id(tensor) not in given]
    while waiting:
        node = waiting[-1]
        if id(node) in known:
            waiting.pop()
            continue
        before = [node_of(tensor) for tensor in node.input_tensors if id(tensor) not in given]
        missing = [one for one in before if id(one) not in known]
        if missing:
            waiting += reversed(missing)
            continue
        known[id(node)] = node
        order.append(waiting.pop())
    return [(node.operation, list(node.input_tensors), list(node.outputs)) for node in order]


def has_mask(tensor: Any) -> bool:
    """Whether a tensor of a graph carries a mask for the layers behind it. No, where there is no such thing."""
    return getattr(tensor, "_keras_mask", None) is not None


def flat_inputs(functional: Any, x: Any) -> list[Any]:
    """What a model was given, in the order of its inputs, as the tensors that its `call` would make of it."""
    return list(_of(functional, "_standardize_inputs", "gives the stages of a model its inputs")(x))


def loss_tracker(model: Any) -> Any | None:
    """The metric that Keras's own step tells the loss."""
    return getattr(model, "_loss_tracker", None)


@contextlib.contextmanager
def losses_given(model: Any, losses: list[Any]) -> Iterator[None]:
    """Within this the losses that layers have added are these, whatever the model's own layers have."""
    _of(model, "_losses_override", "adds up the losses of a model's stages")
    before, model._losses_override = model._losses_override, losses
    try:
        yield
    finally:
        model._losses_override = before


def replace_variables(layer: Any, before: Iterable[Any], add: Callable[[], None]) -> None:
    """A built layer's variables are not fixed for ever: it loses some, and `add` gives it others."""
    untrack = _of(layer, "_untrack_variable", "changes how many rows a ShardedEmbedding holds")
    tracker = _of(layer, "_tracker", "changes how many rows a ShardedEmbedding holds")
    for variable in before:
        untrack(variable)
    tracker.unlock()
    add()
    tracker.lock()


def track_again(layer: Any) -> None:
    """On PyTorch a layer's parameters include every variable of the layers below it: they are collected anew."""
    if hasattr(layer, "_torch_params"):
        _of(layer, "_track_variables", "tells PyTorch of a layer's new variables")()


def children_of(layer: Any) -> list[Any]:
    """The layers that a layer holds itself. None where nobody can tell: it is then taken as a whole."""
    return list(getattr(layer, "_layers", ()))


def graph_of(model: Any) -> list[tuple[Any, list[Any]]] | None:
    """The operations of a functional or sequential model in an order in which they can be computed, each with those
    that feed it when it is first called there. None: it is another kind of model, or of layer.
    """
    model = getattr(model, "_functional", None) or model
    operations, by_depth = getattr(model, "operations", None), getattr(model, "_nodes_by_depth", None)
    if operations is None or by_depth is None:
        return None
    own = {id(node) for nodes in by_depth.values() for node in nodes}
    found = []
    for operation in operations:
        called = [node for node in getattr(operation, "_inbound_nodes", ()) if id(node) in own]
        parents = getattr(called[0], "parent_nodes", ()) if called else ()
        found.append((operation, [node.operation for node in parents]))
    return found


def kernel_of(layer: Any) -> Any:
    """The variable that a layer multiplies by. None: it is computed (LoRA, quantised), or there is none."""
    import keras

    try:
        kernel = layer.kernel
    except (AttributeError, ValueError):
        return None
    return kernel if isinstance(kernel, keras.Variable) else None


def projections_of(attention: Any) -> list[Any] | None:
    """Query, key and value, a gate if there is one, and last the output of an attention layer. None: it has others."""
    names = ("_query_dense", "_key_dense", "_value_dense", "_gate_dense", "_output_dense")
    parts = {name: getattr(attention, name, None) for name in names}
    if any(part is None for name, part in parts.items() if name != "_gate_dense"):
        return None
    return [part for part in parts.values() if part is not None]


# Variables ----------------------------------------------------------------------------------------------


def layout_of(variable: Any) -> Any:
    """How a variable lies on a mesh; None: it was made without a distribution."""
    return getattr(variable, "_layout", None)


def lay_out(variable: Any, layout: Any) -> None:
    """Whatever is assigned to the variable lies so from now on. Its value stays where it is."""
    if not hasattr(variable, "_layout"):
        raise _missing("Variable._layout", "lays variables out on a mesh")
    variable._layout = layout


def layout_map_of(distribution: Any) -> dict[str, Any] | None:
    """What a user's ModelParallel says of variables, by the pattern of their paths; None: it says nothing."""
    found = getattr(distribution, "_layout_map", None)
    return None if found is None else {pattern: found[pattern] for pattern in found}


def set_values(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """On JAX, where values are arrays of JAX's of the right type and shape. `assign` would check and convert each of
    them, for tens of microseconds per variable and step; it does where there is no other way.
    """
    if variables and not hasattr(variables[0], "_value"):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return
    for variable, value in zip(variables, values, strict=True):
        variable._value = value


def value_of(variable: Any) -> Any:
    """What holds a variable's value on this backend, without any casting: an array, a parameter, a variable."""
    return _of(variable, "_value", "takes weights that other workers train out of a model")


def holds(variable: Any, value: Any) -> bool:
    """Whether this very array is the variable's value, before any casting."""
    return getattr(variable, "_value", None) is value


@contextlib.contextmanager
def assigning(make: Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]) -> Iterator[None]:
    """Within this every assignment to a variable goes through what `make` makes of Keras's own way to do it, on the
    backends that assign in place.
    """
    import keras

    kind: Any = keras.Variable
    if not hasattr(kind, "_direct_assign"):
        raise _missing("Variable._direct_assign", "sees what a training step assigns")
    original = kind._direct_assign
    kind._direct_assign = make(original)
    try:
        yield
    finally:
        kind._direct_assign = original


# Optimizers ---------------------------------------------------------------------------------------------


def built_on(optimizer: Any) -> list[Any]:
    """The variables that an optimizer updates; none if it is not built."""
    return list(getattr(optimizer, "_trainable_variables", ()))


def rate_of(optimizer: Any) -> Any:
    """The learning rate as it is kept: a variable or a schedule. `learning_rate` gives a schedule's present value."""
    return getattr(optimizer, "_learning_rate", None)


def set_rate(optimizer: Any, schedule: Any) -> None:
    """In place of the schedule that it has: the public setter refuses to."""
    _of(optimizer, "_learning_rate", "scales the learning rate of late updates")
    optimizer._learning_rate = schedule


def count_of(optimizer: Any) -> Any:
    """The variable that counts how often it was given gradients. The public `iterations` is less where gradients are
    accumulated, and no variable.
    """
    return _of(optimizer, "_iterations", "counts updates")


def place_of(optimizer: Any, variable: Any) -> int:
    """Of a variable among those that the optimizer was built on: its momenta have the same in their lists."""
    return int(_of(optimizer, "_get_variable_index", "finds what an optimizer keeps for a variable")(variable))


def has_state_for(optimizer: Any, variables: Iterable[Any]) -> tuple[int, int]:
    """For how many of these a built optimizer keeps state, and for how many in all."""
    known = _of(optimizer, "_trainable_variables_indices", "knows for which variables an optimizer has state")
    key = _of(optimizer, "_var_key", "knows for which variables an optimizer has state")
    return sum(key(variable) in known for variable in variables), len(known)


def lists_in(optimizer: Any) -> dict[str, list[Any]]:
    """What it keeps for each variable that it was built on (momenta, accumulators), by the attribute's name."""
    every = ("_variables", "_trainable_variables")  # these hold everything, and the variables themselves
    return {name: held for name, held in vars(optimizer).items() if isinstance(held, list) and name not in every}


def decays(optimizer: Any, variable: Any) -> bool:
    """Whether weight decay is for this variable; yes, as far as anybody knows, if the optimizer can't tell."""
    ask = getattr(optimizer, "_use_weight_decay", None)
    return ask is None or bool(ask(variable))


def excluded_from_decay(optimizer: Any, variables: Iterable[Any]) -> tuple[list[bool], str | None]:
    """Which of these variables a call of `exclude_from_weight_decay` named, and the pattern that it gave, if any."""
    keys = getattr(optimizer, "_exclude_from_weight_decay", None) or ()
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    if not keys:
        return [False for _ in variables], None if pattern is None else pattern.pattern
    key = _of(optimizer, "_var_key", "knows which variables are not decayed")
    return [key(variable) in keys for variable in variables], None if pattern is None else pattern.pattern


def wrap_update(optimizer: Any, wrap: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    """This optimizer's update of variables, once gradients are clipped and the rate is known, becomes what `wrap` makes
    of it.
    """
    optimizer._backend_update_step = wrap(_of(optimizer, "_backend_update_step", "updates a table row by row"))


def public_class_of(optimizer: Any) -> type:
    """On PyTorch Keras makes an Adam an instance of its own subclass of Adam."""
    return next(kind for kind in type(optimizer).__mro__ if not kind.__module__.startswith(_OF_BACKENDS))


# Callbacks ----------------------------------------------------------------------------------------------


def wait_for_callbacks(callbacks: Any) -> None:
    """For those of a CallbackList that Keras calls in the background. Without such a list it calls none."""
    for future in getattr(callbacks, "_futures", ()):
        future.result()


def choose_direction(callback: Any) -> None:
    """Has a callback that monitors something find out whether more of it is better. Keras does it when training goes
    on, and then turns the sign of `min_delta` once more.
    """
    _of(callback, "_set_monitor_op", f"hands the state of a {type(callback).__name__} to another worker")()


def begin_bar(progress: Any) -> None:
    """Has a ProgbarLogger make its bar, where another worker has printed the epoch's title. Without it, the epoch after
    this one is the first with a bar.
    """
    if hasattr(progress, "_maybe_init_progbar"):
        progress._maybe_init_progbar()


def is_default(method: Any) -> bool:
    """Whether a callback's method is Keras's empty one. No, if nobody can tell: then Keras waits for it."""
    return bool(getattr(method, "_is_default", False))


# Keras while it is imported, and without TensorFlow -----------------------------------------------------


def backend_so_far() -> str | None:
    """Asked while keras is being imported: the rest of it is not there yet. None: not even this is."""
    module = sys.modules.get(_BACKEND)
    ask = getattr(module, "backend", None)
    return None if ask is None else str(ask())


class LazyTensorflow:
    """Keras's own stand-in for TensorFlow, which it imports when first used, wherever that is installed."""

    def __init__(self, lazy: Any) -> None:
        self._lazy = lazy

    @classmethod
    def find(cls) -> LazyTensorflow | None:
        """None: another Keras, which does it otherwise, and maybe as well."""
        try:
            from keras.src.utils.module_utils import tensorflow as lazy
        except ImportError:
            return None
        return cls(lazy) if hasattr(lazy, "_available") else None

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """As if TensorFlow were not installed."""
        known, self._lazy._available = self._lazy._available, False
        try:
            yield
        finally:
            self._lazy._available = known

    def replace_in_saving(self, make: Callable[[Any], Any]) -> None:
        """Where objects that are saved are asked whether they are TensorFlow's."""
        try:
            from keras.src.saving import serialization_lib
        except ImportError:
            return
        if getattr(serialization_lib, "tf", None) is self._lazy:
            serialization_lib.tf = make(self._lazy)


# JAX ----------------------------------------------------------------------------------------------------


def replace_file_cache(make: Callable[[Callable[[str], Any]], Callable[[str], Any]]) -> None:
    """How JAX opens the folder of compiled programs. Elsewhere it stays as it is: only speed depends on it."""
    try:
        from jax._src import compilation_cache
    except ImportError:
        return
    original = getattr(compilation_cache, "get_file_cache", None)
    if original is not None:
        compilation_cache.get_file_cache = make(original)


# TensorFlow ---------------------------------------------------------------------------------------------


def traced_stack() -> list[tuple[str, int]] | None:
    """File and line of every call that is going on, the innermost last. AutoGraph runs copies of functions, in files of
    its own; TensorFlow knows of which lines. None: it is not imported, or another one, and the copies are named.
    """
    if "tensorflow" not in sys.modules:
        return None
    try:
        from tensorflow.python.util import tf_stack

        return [(frame.filename, frame.lineno) for frame in tf_stack.extract_stack()]
    except (ImportError, AttributeError):
        return None


def shards_of(dataset: Any) -> list[tuple[int, int]]:
    """Every `shard(number, index)` in a tf.data pipeline, from its end to its beginning."""
    found = []
    try:
        if type(dataset).__name__ == "_ShardDataset":
            found.append((int(dataset._num_shards), int(dataset._index)))
        inputs = dataset._inputs()
    except AttributeError as error:
        raise _missing(str(error.name), "sees that a data set is sharded already", "tensorflow") from None
    for before in inputs:
        found += shards_of(before)
    return found


def python_of(function: Any) -> Any:
    """What a tf.function calls when it is traced within another one: its Python, converted if AutoGraph is on."""
    import tensorflow as tf

    python = function.python_function
    if not getattr(function, "_autograph", False):
        return python
    autograph = getattr(getattr(tf, "__internal__", None), "autograph", None)
    if autograph is None:
        raise _missing("__internal__.autograph", "looks into a tf.function within a step", "tensorflow")
    return autograph.tf_convert(python, autograph.control_status_ctx())


# PyTorch ------------------------------------------------------------------------------------------------


def late_dynamo() -> ModuleType:
    """What stands for PyTorch's compiler while Keras is imported: it keeps functions from a compiler that is there."""
    late = ModuleType(DYNAMO)

    def disable(**how: Any) -> Callable[[Any], Any]:
        return lambda function: _kept_from_dynamo(function, lambda: sys.modules[DYNAMO].disable(function, **how))

    def real(name: str) -> Any:
        if sys.modules.get(DYNAMO) is late:
            del sys.modules[DYNAMO]
        return getattr(importlib.import_module(DYNAMO), name)

    late.disable = disable  # type: ignore[attr-defined]
    late.__getattr__ = real  # type: ignore[method-assign]
    return late


def import_dynamo_late() -> None:
    """Functions that PyTorch keeps from its compiler would import it when they are called, to be kept from it."""
    module = sys.modules[COMPILE]
    original = getattr(module, "_disable_dynamo", None)
    if original is None:
        return  # another PyTorch, which imports what it wants

    @functools.wraps(original)
    def disable(function: Any = None, recursive: bool = True) -> Any:
        if function is None:
            return functools.partial(disable, recursive=recursive)
        return _kept_from_dynamo(function, lambda: original(function, recursive))

    module._disable_dynamo = disable  # type: ignore[attr-defined]


def _kept_from_dynamo(function: Any, keep: Callable[[], Any]) -> Any:
    """The function; as `keep` makes it once there is a compiler."""
    kept: list[Any] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if DYNAMO not in sys.modules:
            return function(*args, **kwargs)
        if not kept:
            kept.append(keep())
        return kept[0](*args, **kwargs)

    return call


def dispatch_mode() -> Any:
    """The class from which somebody inherits who wants to see every operation."""
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        raise _missing("TorchDispatchMode", "sees what depends on what in a step", "torch") from None
    return TorchDispatchMode


def writes_to(tensor: Any) -> int:
    """How often a tensor of PyTorch's has been written to: autograd counts it."""
    return int(_of(tensor, "_version", "knows what a step assigns"))


def memory_of(storage: Any) -> int:
    """A number by which one knows a storage; `data_ptr` is 0 for all that are empty."""
    number = getattr(storage, "_cdata", None)
    return int(storage.data_ptr() if number is None else number)


def arguments_of(operation: Any) -> Any:
    """An operation's arguments as declared, with what it writes to. The name has been there since torch.ops has."""
    return operation._schema.arguments

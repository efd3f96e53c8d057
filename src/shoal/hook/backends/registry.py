"""The one place that knows the backends: their names, and where their parts are. Nobody else asks which one it is to
find a module. What belongs to a backend is imported when it is asked for: a process has one of them.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import keras
import numpy as np

from shoal.errors import CannotDistribute
from shoal.hook.backends.base import AbstractEngine
from shoal.hook.backends.shard_engine import AbstractShardEngine
from shoal.hook.mesh.laying import lay_out
from shoal.hook.scopes import strategy_of
from shoal.training.engine import PartShape
from shoal.training.run import Run

if TYPE_CHECKING:
    from shoal.hook.stages.engine import AbstractKerasStage
    from shoal.hook.stages.stage_model import StageModel

_LATE_TENSORFLOW = "shoal.hook.patching.late_tensorflow"


class AbstractBackend(ABC):
    """One of Keras's backends, as Shoal trains on it."""

    beside: ClassVar[Sequence[str]] = ()  # modules whose `install` changes the backend, or Keras on it
    _engine: ClassVar[str]  # the module of its engine

    @abstractmethod
    def engine(self, model: Any, run: Run) -> AbstractEngine:
        """A new one, of a built model."""

    @abstractmethod
    def shard_engine(self, variables: Sequence[Any], optimizer: Any, jit_compile: bool | None) -> AbstractShardEngine:
        """For variables of a server. `jit_compile` as the model's; None: as Keras chooses where there is no GPU."""

    @abstractmethod
    def stage(self, stage_model: StageModel, engine: AbstractEngine, whole: PartShape) -> AbstractKerasStage:
        """A stage of a model. `whole`: what a step of all of it gives out, as its engine has traced it."""

    @abstractmethod
    def device(self) -> Any:
        """The one that this process computes on, in the backend's own words."""

    @abstractmethod
    def is_on_host(self) -> bool:
        """Whether that device's memory is the host's, so that what lies there can be looked at in place."""

    @abstractmethod
    def profile(self, folder: Path) -> Callable[[], None]:
        """Begins a profile of this process. What is returned ends it and writes it into the folder."""

    def bytes_of(self, variable: Any) -> int:
        """Of a variable, on one device."""
        each = np.dtype(str(keras.backend.standardize_dtype(variable.dtype)).replace("bfloat16", "float16")).itemsize
        return int(math.prod(variable.shape)) * each

    def kept_by(self, act: Callable[[], None], weights: Sequence[Any]) -> int:
        """Bytes that a forward pass keeps for its way back, besides these weights; 0 where the backend can't tell."""
        act()
        return 0

    def builder(self) -> Callable[[Any, Any, Callable[[Any], Any]], None] | None:
        """Builds a model on a batch by running a step of it without effect, where a first step makes variables."""
        return None

    def preload(self) -> None:
        """Imports all that a training needs; starts no thread."""
        for module in (self._engine, *self.beside):
            importlib.import_module(module)


class JaxBackend(AbstractBackend):
    """JAX."""

    beside = ("shoal.hook.backends.jax.compile_once", _LATE_TENSORFLOW)
    _engine = "shoal.hook.backends.jax.engine"

    def engine(self, model: Any, run: Run) -> AbstractEngine:
        from shoal.hook.backends.jax.engine import JaxEngine
        from shoal.hook.mesh.process_group import ProcessGroups

        return JaxEngine(model, run.memory.of(ProcessGroups).group)

    def shard_engine(self, variables: Sequence[Any], optimizer: Any, jit_compile: bool | None) -> AbstractShardEngine:
        from shoal.hook.backends.jax.shard import JaxShardEngine

        return JaxShardEngine(variables, optimizer, jit_compile is not False)

    def stage(self, stage_model: StageModel, engine: AbstractEngine, whole: PartShape) -> AbstractKerasStage:
        from shoal.hook.backends.jax.stage import JaxStage

        return JaxStage(stage_model, engine, whole)

    def device(self) -> Any:
        import jax

        return jax.local_devices()[0]

    def is_on_host(self) -> bool:
        import jax

        return bool(jax.default_backend() == "cpu")

    def bytes_of(self, variable: Any) -> int:
        shards = getattr(variable.value, "addressable_shards", ())
        return int(shards[0].data.nbytes) if shards else super().bytes_of(variable)

    def profile(self, folder: Path) -> Callable[[], None]:
        import jax

        jax.profiler.start_trace(str(folder), create_perfetto_trace=True)
        return cast(Callable[[], None], jax.profiler.stop_trace)


class TensorflowBackend(AbstractBackend):
    """TensorFlow."""

    _engine = "shoal.hook.backends.tensorflow.engine"

    def engine(self, model: Any, run: Run) -> AbstractEngine:
        from shoal.hook.backends.tensorflow.engine import TensorflowEngine

        return TensorflowEngine(model)

    def shard_engine(self, variables: Sequence[Any], optimizer: Any, jit_compile: bool | None) -> AbstractShardEngine:
        from shoal.hook.backends.tensorflow.shard import TensorflowShardEngine

        return TensorflowShardEngine(variables, optimizer, bool(jit_compile))

    def stage(self, stage_model: StageModel, engine: AbstractEngine, whole: PartShape) -> AbstractKerasStage:
        from shoal.hook.backends.tensorflow.stage import TensorflowStage

        return TensorflowStage(stage_model, engine, whole)

    def device(self) -> Any:
        import tensorflow as tf

        return (tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU"))[0].name

    def is_on_host(self) -> bool:
        import tensorflow as tf

        return not tf.config.list_logical_devices("GPU")

    def profile(self, folder: Path) -> Callable[[], None]:
        import tensorflow as tf

        tf.profiler.experimental.start(str(folder))
        return cast(Callable[[], None], tf.profiler.experimental.stop)

    def builder(self) -> Callable[[Any, Any, Callable[[Any], Any]], None] | None:
        from shoal.hook.backends.tensorflow.engine import build_by_step

        return build_by_step


class TorchBackend(AbstractBackend):
    """PyTorch."""

    beside = (_LATE_TENSORFLOW,)
    _engine = "shoal.hook.backends.torch.engine"

    def engine(self, model: Any, run: Run) -> AbstractEngine:
        from shoal.hook.backends.torch.engine import TorchEngine

        return TorchEngine(model)

    def shard_engine(self, variables: Sequence[Any], optimizer: Any, jit_compile: bool | None) -> AbstractShardEngine:
        from shoal.hook.backends.torch.shard import TorchShardEngine

        return TorchShardEngine(variables, optimizer)

    def stage(self, stage_model: StageModel, engine: AbstractEngine, whole: PartShape) -> AbstractKerasStage:
        from shoal.hook.backends.torch.stage import TorchStage

        return TorchStage(stage_model, engine, whole)

    def device(self) -> Any:
        import torch

        return torch.get_default_device()

    def is_on_host(self) -> bool:
        return bool(keras.ops.zeros(()).device.type == "cpu")  # where Keras itself puts what it makes

    def preload(self) -> None:
        super().preload()
        with contextlib.suppress(ImportError):  # that of another PyTorch is elsewhere, or is not needed
            importlib.import_module("torch.fx.experimental.symbolic_shapes")  # by whoever builds a model

    def kept_by(self, act: Callable[[], None], weights: Sequence[Any]) -> int:
        import torch

        passed_over = {variable.value.untyped_storage().data_ptr() for variable in weights}
        kept: dict[int, int] = {}

        def keep(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in passed_over:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            act()
        return sum(kept.values())

    def profile(self, folder: Path) -> Callable[[], None]:
        import torch

        write = torch.profiler.tensorboard_trace_handler(str(folder), worker_name=folder.name)
        profile = torch.profiler.profile(on_trace_ready=write)
        profile.start()
        return cast(Callable[[], None], profile.stop)


BACKENDS: dict[str, AbstractBackend] = {
    "jax": JaxBackend(),
    "tensorflow": TensorflowBackend(),
    "torch": TorchBackend(),
}


def current() -> AbstractBackend:
    """The one that Keras runs on."""
    name = keras.backend.backend()
    if name not in BACKENDS:
        known = f"{', '.join(list(BACKENDS)[:-1])} and {list(BACKENDS)[-1]}"
        raise CannotDistribute(f"the Keras backend is {name!r}; Shoal trains on {known}")
    return BACKENDS[name]


def install() -> None:
    """Keras was imported: what is beside the engine begins. On any other backend too, where Keras alone may train."""
    known = BACKENDS.get(keras.backend.backend())
    for module in (_LATE_TENSORFLOW,) if known is None else known.beside:
        importlib.import_module(module).install()


class Engines:
    """One engine per model, kept from call to call, since its compiled programs are dear: as long as the script has the
    model, the model has the same variables and optimizer, and is not compiled anew.
    """

    def __init__(self) -> None:
        self._by_model: weakref.WeakKeyDictionary[Any, AbstractEngine] = weakref.WeakKeyDictionary()

    def of(self, model: Any, run: Run) -> AbstractEngine:
        engine = self._by_model.get(model)
        if engine is None or not engine.fits(model):
            engine = self._by_model[model] = current().engine(model, run)
        return engine

    def forget(self, model: Any) -> None:
        """It is compiled anew: what was traced no longer holds."""
        engine = self._by_model.pop(model, None)
        if engine is not None:
            engine.is_outdated = True


def engine_for(run: Run, model: Any) -> AbstractEngine:
    """The engine of a built model, whose variables lie on this worker's devices from now on."""
    lay_out(run, strategy_of(run, model), model)
    return run.memory.of(Engines).of(model, run)

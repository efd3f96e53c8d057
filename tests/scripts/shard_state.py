"""What a parameter server does with a shard, next to the whole model on the same backend: `shard_state.py OUT.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, optimizers

from shoal.collectives.arrays import view
from shoal.errors import ShoalError
from shoal.hook.backends.registry import Engines
from shoal.hook.calls.fit import refuse_unless_served
from shoal.hook.served.keras_optimizer import KerasOptimizer
from shoal.hook.served.shard_optimizer import LossScales, needs_of, refuse_unless_row_wise
from shoal.hook.served.shard_state import ShardState, parameters_of
from shoal.hook.tables.row_table import RowTable
from shoal.hook.tables.sharded_embedding import ShardedEmbedding
from shoal.hook.tables.worker_tables import TablesOnServers
from shoal.session import this_process
from shoal.store.decisions.shards import into_shards
from shoal.store.values.rows import Table
from shoal.training import store_layout
from shoal.training.store_layout import Added, StoreLayout

Arrays = list[np.ndarray]


class Own(optimizers.SGD):  # type: ignore[misc]
    """A user's own optimizer."""


class Unspeakable(optimizers.SGD):  # type: ignore[misc]
    """Its configuration is not enough to make another."""

    def __init__(self, teacher: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.teacher = teacher


class Forgetful(optimizers.SGD):  # type: ignore[misc]
    """Its configuration leaves an argument out."""

    def __init__(self, learning_rate: float = 0.5, strength: float = 1.0, **settings: Any) -> None:
        super().__init__(learning_rate=learning_rate, **settings)
        self.strength = strength


class Halving(optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A user's own schedule, which Keras could not find by its name."""

    def __call__(self, step: Any) -> Any:
        return 0.1 * keras.ops.power(0.5, keras.ops.cast(step, "float32"))

    def get_config(self) -> dict[str, Any]:
        return {}


def make_model(optimizer: Any, constraint: Any = None) -> Any:
    """One kernel that is large enough to be cut, and two variables that are not; of sizes that no vector divides."""
    model = keras.Sequential(
        [
            layers.Input((300,)),
            layers.Dense(131, kernel_initializer="zeros", name="wide"),
            layers.Dense(7, use_bias=False, kernel_initializer="zeros", kernel_constraint=constraint, name="narrow"),
        ]
    )
    rng = np.random.default_rng(4)
    model.set_weights([rng.normal(0, 0.1, array.shape) for array in model.get_weights()])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy that every backend may read in place."""
    memory = np.empty(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + values.nbytes].view(values.dtype)
    copy[:] = values
    return copy


def misaligned(values: np.ndarray) -> np.ndarray:
    """A copy that none may, and that is read-only."""
    memory = np.empty(values.nbytes + 68, np.uint8)
    start = -memory.ctypes.data % 64 + 4
    copy = memory[start : start + values.nbytes].view(values.dtype)
    copy[:] = values
    copy.flags.writeable = False
    return copy


# What a run would have.
ENGINES, TABLES = Engines(), TablesOnServers()


class Beside:
    """The whole model on its engine, and the same model in shards."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.trainable = model.trainable_variables
        self.parameters = parameters_of(self.trainable, model.optimizer)
        self.shards = into_shards(self.parameters, 2)
        self.states = self.shard()
        self._rng = np.random.default_rng(5)
        model.optimizer.build(self.trainable)
        self._engine = ENGINES.of(model, this_process.current())
        self._engine.begin(0)
        self._engine.trace((np.zeros((2, 300), np.float32), np.zeros(2, np.int64)))

    def shard(self) -> list[ShardState]:
        """Shards of the model as it is now."""
        return [ShardState(shard, self.parameters, self.trainable, self.model.optimizer) for shard in self.shards]

    def update(self, times: int) -> None:
        """If the loss is scaled, the second one overflows, in one element."""
        optimizer = self.model.optimizer
        for time in range(times):
            scale = 10.0 ** -self._rng.integers(4)
            gradients = {p.name: (self._rng.normal(size=p.size) * scale).astype("float32") for p in self.parameters}
            place = misaligned if time % 2 else aligned
            about = []
            if isinstance(optimizer, optimizers.LossScaleOptimizer):
                gradients[self.parameters[-1].name][3] = np.inf if time == 1 else 1.0
                about = [np.array([self._engine.read(optimizer.dynamic_scale), time != 1], np.float32)]
            for shard, state in zip(self.shards, self.states, strict=True):
                state.apply(0, [*(place(gradients[r.parameter][r.start : r.stop]) for r in shard.ranges), *about])
            self._engine.apply(0, [aligned(gradient) for gradient in gradients.values()], [])
            self._engine.settle()

    def differing(self, weights_of: Callable[[ShardState], Arrays] = ShardState.weights) -> tuple[int, float]:
        """How many weights have other bits, and by how much they differ at most."""
        whole = dict(zip((p.name for p in self.parameters), map(self._engine.read, self.trainable), strict=True))
        count, largest = 0, 0.0
        for shard, state in zip(self.shards, self.states, strict=True):
            for range, weights in zip(shard.ranges, weights_of(state), strict=True):
                expected = whole[range.parameter].reshape(-1)[range.start : range.stop].astype(weights.dtype)
                count += int(np.sum(expected.view(np.uint8) != weights.view(np.uint8)))
                largest = max(largest, float(np.abs(expected - weights).max()))
        return count, largest


def decaying() -> Any:
    """Leaves out variables by name and one by itself."""
    model = make_model(optimizers.AdamW(1e-2, weight_decay=0.1))
    model.optimizer.exclude_from_weight_decay([model.get_layer("narrow").kernel], ["bias"])
    return model


def decaying_by_layer() -> Any:
    """On TensorFlow, a variable's name for this is its path."""
    model = make_model(optimizers.AdamW(1e-2, weight_decay=0.1))
    model.optimizer.exclude_from_weight_decay(var_names=["wide"])
    return model


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "nesterov, own schedule": lambda: optimizers.SGD(Halving(), momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.Adam(1e-2),
    "rmsprop": lambda: optimizers.RMSprop(1e-2),
    "adagrad": lambda: optimizers.Adagrad(1e-2),
    "ftrl": lambda: optimizers.Ftrl(1e-2, l1_regularization_strength=0.01),
    "lion": lambda: optimizers.Lion(1e-2),
    "clipvalue, cosine": lambda: optimizers.Adam(optimizers.schedules.CosineDecay(1e-2, 10), clipvalue=0.5),
    "ema": lambda: optimizers.Adam(1e-2, use_ema=True),
    "lamb": lambda: optimizers.Lamb(1e-2),
    "muon": lambda: optimizers.Muon(1e-2),
    "adafactor": lambda: optimizers.Adafactor(1e-2),
    "clipnorm": lambda: optimizers.Adam(1e-2, clipnorm=0.5),
    "global_clipnorm": lambda: optimizers.Adam(1e-2, global_clipnorm=0.5),
    "loss scale": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(1e-2, use_ema=True), 4.0, 2),
    "accumulation": lambda: optimizers.Adam(1e-2, gradient_accumulation_steps=2, use_ema=True),
}
MODELS: dict[str, Callable[[], Any]] = {
    **{name: (lambda make=make: make_model(make())) for name, make in OPTIMIZERS.items()},
    "momentum, constraint": lambda: make_model(optimizers.SGD(0.1, momentum=0.9), keras.constraints.MaxNorm(0.5)),
    "decay": decaying,
}
if keras.backend.backend() == "tensorflow":
    MODELS["decay by layer"] = decaying_by_layer
HANDED_ON = ("ema", "adafactor", "loss scale", "accumulation")  # trained with before
AVERAGING = ("ema", "loss scale", "accumulation")
FEW = ("nesterov, own schedule", "global_clipnorm", "loss scale", "accumulation")  # each in a way of its own


def same_bits(few: bool) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """For each optimizer, what differs: after updates, and after more by shards of the trained model."""
    for name, make in MODELS.items():
        if few and name not in FEW:
            continue
        beside = Beside(make())
        beside.update(3)
        counts = [beside.differing()]
        if name in HANDED_ON:
            beside.states = beside.shard()
            beside.update(1)
            counts.append(beside.differing())
        if name in AVERAGING:
            beside.model.optimizer.finalize_variable_values(beside.trainable)
            counts.append(beside.differing(ShardState.averages))
        yield name, counts


def half_precision() -> dict[str, Any]:
    keras.config.set_dtype_policy("bfloat16")
    beside = Beside(make_model(optimizers.Adam(1e-2)))
    keras.config.set_dtype_policy("float32")
    beside.update(2)
    state = beside.states[0]
    weights = state.weights()
    before = [bytes(view(array)) for array in weights]
    state.set_weights([np.array(array) for array in weights])
    return {
        "differing": beside.differing()[0],
        "weights": str(state.specs.weights[0]),
        "gradients": str(state.specs.gradients[0]),
        "carried": [bytes(view(array)) for array in state.weights()] == before,
    }


METRIC = Added("total", "float32", (), True)
COUNTS = Added("confusion", "int32", (2, 2), True)
STATISTIC = Added("moving_mean", "float32", (2,), False)


class Small:
    """One variable of eight weights, in one shard, and what is added beside it."""

    def __init__(self, optimizer: Any, added: Sequence[Added] = (), **settings: bool) -> None:
        self.variable = keras.Variable(np.arange(8.0, dtype=np.float32), name="small")
        parameters = parameters_of([self.variable], optimizer)
        self.state = ShardState(
            into_shards(parameters, 1)[0], parameters, [self.variable], optimizer, added, **settings
        )

    def push(self, gradient: float, epoch: int = 0, *added: Any) -> None:
        specs = self.state.specs.gradients[1:]
        sums = [np.full(spec.shape, value, spec.dtype) for spec, value in zip(specs, added, strict=True)]
        self.state.apply(epoch, [np.full(8, gradient, np.float32), *sums])

    def weights(self) -> Arrays:
        return [np.array(array) for array in self.state.weights()]

    def everything(self) -> Arrays:
        return [np.array(array) for array in self.state.state()]


def same(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return [bytes(view(array)) for array in some] == [bytes(view(array)) for array in others]


def replicas() -> dict[str, bool]:
    """A replica that takes over a state, and goes on."""
    one = Small(optimizers.Adam(0.1, use_ema=True), [METRIC, STATISTIC])
    for number in range(3):
        one.push(0.3, number, 0.1 * number, 0.7)
    one.state.learning_rate = 0.01
    other = Small(optimizers.Adam(0.1, use_ema=True), [METRIC, STATISTIC])
    other.push(-1.0, 7, 5.0, 5.0)
    apart = one.state.digest() != other.state.digest()
    other.state.load(one.everything())
    together = one.state.digest() == other.state.digest()
    for small in (one, other):
        small.push(0.2, 2, 0.3, 0.1)
        small.push(0.1, 3, 0.3, 0.1)
    digests = one.state.digest(), other.state.digest()
    return {
        "apart": apart,
        "together": together,
        "same after": same(one.everything(), other.everything()) and digests[0] == digests[1],
        "63 bits": all(0 <= digest < 2**63 for digest in digests),
    }


def flipped() -> dict[str, int]:
    """How many digests there are when one bit is flipped in each array of a state, and when none is."""
    small = Small(optimizers.SGD(0.1, momentum=0.9), [METRIC])
    small.push(0.3, 0, 0.1)
    saved = small.everything()
    digests = {small.state.digest()}
    for place in range(len(saved)):
        arrays = [array.copy() for array in saved]
        arrays[place].view(np.uint8)[0] ^= 1
        small.state.load(arrays)
        digests.add(small.state.digest())
    return {"arrays": len(saved), "digests": len(digests)}


def set_weights() -> dict[str, bool]:
    small = Small(optimizers.SGD(0.5, momentum=0.5), [STATISTIC])
    small.push(1.0, 0, 1.0)
    saved = small.everything()
    given = [np.full(8, 3.0, np.float32), np.full(2, 4.0, np.float32)]
    small.state.set_weights(given)
    given[0][:] = 0
    after = small.everything()
    small.push(0.0, 0, 1.0)
    return {
        "weights": bool(np.all(after[0] == 3.0)),
        "sums": bool(np.all(after[1] == 4.0)),
        "optimizer stays": same(saved[2:], after[2:]),
        "goes on": bool(np.all(small.weights()[0] == 2.75) and np.all(small.weights()[1] == 5.0)),
    }


def averages() -> dict[str, bool]:
    """What the weights would become, without and with an update; and what has changed meanwhile."""
    small = Small(optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5), [STATISTIC])
    first = small.state.averages()
    for _ in range(2):
        small.push(1.0, 0, 1.0)
    before = small.everything()
    second = small.state.averages()
    return {
        "none yet": same(first, Small(optimizers.SGD(1.0), [STATISTIC]).weights()),
        "averages": bool(np.all(second[0] == np.arange(8) - 1.5) and np.all(second[1] == 2.0)),
        "same": same(before, small.everything()),
    }


def overflowing() -> dict[str, list[tuple[float, float]]]:
    """The first weight and the scale, after updates with these scales; what overflows is marked."""
    small = Small(optimizers.LossScaleOptimizer(optimizers.SGD(1.0), 8.0, 4), tells_scale=True)
    seen = {}
    for word in ("8", "8 over", "8 over", "8", "4", "4", "4", "4", "4 over", "8"):
        scale = float(word.split()[0])
        small.push(np.nan if "over" in word else scale, 0, (scale, "over" not in word))
        weights, told = small.weights()
        seen.setdefault(word, []).append((float(weights[0]), float(told[0])))
    small.state.set_weights([*small.weights()[:1], np.full(1, 0.5, np.float32)])
    return seen | {"set": [(float(small.weights()[0][0]), float(small.weights()[1][0]))]}


def resets() -> list[tuple[float, int, float, int]]:
    """The sums, and the epoch that they are of, after updates of these epochs: the fourth is late."""
    small = Small(optimizers.SGD(0.5), [METRIC, COUNTS, STATISTIC])
    seen = []
    for epoch in (0, 0, 1, 0, 1, 3):
        small.push(0.0, epoch, 0.5, 2, 0.25)
        _, total, counts, statistic, told = small.weights()
        seen.append((float(total[0]), int(counts[3]), float(statistic[1]), int(told[0])))
    return seen


def learning_rates() -> dict[str, Any]:
    small = Small(Own(0.5))
    small.push(1.0)
    small.state.learning_rate = 0.25
    small.state.learning_rate = None  # says nothing
    small.push(1.0)
    scheduled = Small(optimizers.SGD(optimizers.schedules.PiecewiseConstantDecay([100], [0.5, 0.25])))
    scheduled.state.learning_rate = 0.25
    scheduled.push(1.0)
    return {
        "first weight": float(small.weights()[0][0]),
        "told": small.state.learning_rate,
        "scheduled weight": float(scheduled.weights()[0][0]),
        "scheduled told": scheduled.state.learning_rate,
    }


def stale_rates() -> dict[str, list[float]]:
    """The first weight after updates with these factors."""
    schedule = optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.25])
    stale = {}
    for name, rate in {"fixed": 0.5, "scheduled": schedule}.items():
        one = Small(optimizers.LossScaleOptimizer(optimizers.SGD(rate), 1.0), scales=True)
        stale[name] = []
        for scale in (1.0, 0.5, 1.0, 0.25):
            one.state.apply(0, [np.ones(8, np.float32), np.ones(2, np.float32)], scale)
            stale[name].append(float(one.weights()[0][0]))
    return stale


class Failure(Exception):
    """Of an engine."""


def failing(small: Small, name: str, act: Callable[[], object]) -> dict[str, bool]:
    """Whether all is as before after the engine has done this, and then failed."""
    engine, before = small.state._engine, small.everything()
    done = getattr(engine, name)

    def fail(*args: Any) -> None:
        if name == "finalize":
            done(*args)
        raise Failure

    setattr(engine, name, fail)
    try:
        act()
    except Failure:
        return {"failed": True, "same": same(before, small.everything())}
    finally:
        setattr(engine, name, done)
    return {"failed": False, "same": False}


def failures() -> dict[str, dict[str, bool]]:
    """In the middle of what is put aside for a while: the scale, the weights, the learning rate."""
    scaled = Small(optimizers.LossScaleOptimizer(optimizers.SGD(1.0), 8.0, 4), tells_scale=True)
    averaged = Small(optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5))
    averaged.push(1.0)
    stale = Small(optimizers.SGD(0.5), scales=True)
    return {
        "scale": failing(scaled, "update", lambda: scaled.push(4.0, 0, (4.0, 1.0))),
        "averages": failing(averaged, "finalize", averaged.state.averages),
        "rate": failing(stale, "update", lambda: stale.state.apply(0, [np.ones(8, np.float32)], 0.5)),
    }


def model_stays() -> dict[str, bool]:
    model = make_model(optimizers.Adam(1e-2))
    before = [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.variables]
    parameters = parameters_of(model.trainable_variables, model.optimizer)
    state = ShardState(into_shards(parameters, 1)[0], parameters, model.trainable_variables, model.optimizer)
    state.apply(0, [np.ones(spec.shape, spec.dtype) for spec in state.specs.gradients])
    after = [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.variables]
    return {"same": same(before, after), "optimizer unbuilt": not model.optimizer.built}


def cuts() -> dict[int, int]:
    """By the number of servers: how many parameters lie in more than one shard."""
    model = make_model(optimizers.Adam(0.1))
    model.optimizer.build(model.trainable_variables)
    engine = ENGINES.of(model, this_process.current())
    engine.begin(0)
    shape = engine.trace((np.zeros((2, 300), np.float32), np.zeros(2, np.int64))).only
    store_layout.SHARD_BYTES = 1 << 16
    counts = {}
    for servers in (1, 2):
        layout = StoreLayout(engine, shape, KerasOptimizer(model, engine, LossScales()), (), servers)
        ranges = [r.parameter for s in layout.shards for r in s.ranges]
        counts[servers] = len(ranges) - len(set(ranges))
    return counts


def programs() -> list[int | None]:
    """How many were compiled before the first update, and after it; None: the backend compiles none."""
    small = Small(optimizers.Adam(0.1), [METRIC, STATISTIC])
    program = getattr(small.state._engine, "_update", None)
    count = getattr(program, "_cache_size", None) or getattr(program, "experimental_get_tracing_count", lambda: None)
    before = count()
    small.push(0.2, 2, 0.3, 0.1)
    return [before, count()]


def names() -> list[str]:
    one, two, other = (keras.Variable(np.zeros(2, np.float32), name=name) for name in ("w", "w", "w_2"))
    return [parameter.name for parameter in parameters_of([one, two, other], optimizers.SGD(0.1))]


def needs() -> dict[str, str]:
    kinds = ("SGD", "Adam", "AdamW", "Nadam", "Adagrad", "Adadelta", "RMSprop", "Adamax", "Ftrl", "Lion")
    found = {kind: needs_of(getattr(optimizers, kind)()) for kind in kinds}
    found |= {name: needs_of(make()) for name, make in OPTIMIZERS.items()}
    return {**found, "own": needs_of(Own(0.1))}


def constrained() -> str:
    variable = keras.Variable(np.zeros((200, 200), np.float32), name="kernel")
    variable.constraint = keras.constraints.UnitNorm()
    return str(parameters_of([variable], optimizers.SGD(0.1))[0].needs)


ROW_WISE = {
    "sgd": lambda: optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: optimizers.Adam(0.01),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1),  # of which tables see nothing
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "ftrl": lambda: optimizers.Ftrl(0.1, l1_regularization_strength=0.001),
    "scheduled": lambda: optimizers.Nadam(optimizers.schedules.ExponentialDecay(0.01, 3, 0.5)),
}


def beginnings() -> list[float]:
    """What a part of a table begins with: what its file has by then, and what a checkpoint has, if there is one."""
    files = [None, (np.array([1]), np.full((1, 4), 5.0, np.float32)), (np.array([1]), np.full((1, 4), 6.0, np.float32))]
    made = Table("t", 60, 4)
    table = RowTable(made, 0, "t/e", optimizers.Adagrad(), None, lambda: files[0])
    kept = RowTable(made, 0, "t/e", optimizers.Adagrad(), None)
    kept.apply(0, [np.array([1]), np.full(4, -1.0, np.float32)], 7.0, 1.0)
    found = []
    for _ in range(3):
        table.set_weights(())
        found.append(float(table.weights([np.array([1])])[0][0]))
        files.append(files.pop(0))
    for _ in range(3):
        table.apply(0, [np.array([1]), np.full(4, -1.0, np.float32)], 7.0, 1.0)
    table.set_weights(())  # as if it had never been used
    new = RowTable(made, 0, "t/e", optimizers.Adagrad(), None)
    for each in (table, new):
        each.apply(0, [np.array([2]), np.full(4, -1.0, np.float32)], 7.0, 1.0)
    found.append(float(table.weights([np.array([2])])[0][0] - new.weights([np.array([2])])[0][0]))
    table.restore = lambda: table.begin_from([kept.saved()]) is None
    table.set_weights(())
    return [*found, float(table.weights([np.array([1])])[0][0] - kept.weights([np.array([1])])[0][0])]


def loaded() -> dict[str, bool]:
    """A part of a table whose layer has loaded a file since: its rows, its seed, and what the optimizer keeps."""
    drawn = keras.initializers.RandomUniform(seed=1)
    table, other = (ShardedEmbedding(60, 4, drawn, seed=seed).new_rows for seed in (1, 2))
    part = RowTable(
        Table("t", 60, 4, table), 0, "t/e", optimizers.Adam(), None, lambda: (np.array([1, 5]), np.ones((2, 4)))
    )
    for _ in range(3):
        part.apply(0, [np.array([1, 3]), np.full(8, -1.0, np.float32)], 7.0, 1.0)
    before = part.saved()
    slots, count = [column.copy() for column in before.columns[1:]], [scalar.copy() for scalar in before.scalars]
    part.load_given(Table("t", 60, 4, other))
    after = part.saved()
    rows = part.weights([np.array([1, 3, 5, 7])])[0].reshape(4, 4)
    return {
        "rows": bool((rows[[0, 2]] == 1).all() and (rows[[1, 3]] == other.make(np.array([3, 7]), 4)).all()),
        "slots": all(bool((new[:2] == old).all()) for new, old in zip(after.columns[1:], slots, strict=True)),
        "count": all(bool((new == old).all()) for new, old in zip(after.scalars, count, strict=True)),
    }


def in_order(table: RowTable) -> list[Any]:
    """All that a checkpoint would have of it, by id."""
    saved = table.saved()
    order = np.argsort(saved.ids)
    columns = [column[order] for column in (saved.ids, *saved.columns)]
    return [array.tolist() for array in (*columns, *saved.scalars)]


def row_wise() -> dict[str, Any]:
    """A table on servers next to the same table as an ordinary layer: the largest difference; rows that nobody used."""
    found = {}
    for name, make in ROW_WISE.items():
        layer = ShardedEmbedding(60, 4, seed=3)
        layer.build()
        optimizer, drawn = make(), np.random.default_rng(1)
        trained = [layer.embeddings, keras.Variable(np.zeros(2, np.float32))]
        optimizer.build(trained)
        first, second = (RowTable(Table("t", 60, 4, layer.new_rows), 0, "t/e", make(), None) for _ in range(2))
        used = set()
        for turn in range(12):
            ids = drawn.choice(50, 4 + 10 * (turn % 2), replace=False)
            gradients = drawn.normal(size=(ids.size, 4)).astype(np.float32)
            dense = np.zeros((60, 4), np.float32)
            dense[ids] = gradients
            optimizer.apply([keras.ops.convert_to_tensor(dense), keras.ops.ones(2)], trained)
            first.apply(0, [ids, gradients.reshape(-1)], None, 1.0)
            used |= set(ids.tolist())
            if turn == 5:
                second.load([np.array(array) for array in first.state()])
            elif turn > 5:
                second.apply(0, [ids, gradients.reshape(-1)], None, 1.0)
        thirds = [RowTable(Table("t", 60, 4, layer.new_rows, 3), part, "t/e", make(), None) for part in range(3)]
        for third in thirds:
            third.begin_from([first.saved()])
        again = RowTable(Table("t", 60, 4, layer.new_rows), 0, "t/e", make(), None)
        again.begin_from([third.saved() for third in thirds])
        other = RowTable(Table("t", 60, 4, layer.new_rows), 0, "t/e", optimizers.SGD(), None)
        other.go_on_from(first)
        whole = np.asarray(keras.ops.convert_to_numpy(layer.embeddings))
        rows = first.weights([np.arange(60)])[0].reshape(60, 4)
        found[name] = {
            "differs": float(abs(whole - rows).max()),
            "unused stay": bool((rows[50:] == layer.make_rows(np.arange(50, 60))).all()),
            "copies": first.digest() == second.digest(),
            "kept": sorted(first.state()[0].tolist()) == sorted(used),
            "other optimizer": bool((other.weights([np.arange(60)])[0] == first.weights([np.arange(60)])[0]).all()),
            "dealt anew": in_order(again) == in_order(first) and all(third.rows > 0 for third in thirds),
        }
    return found


def refusal(act: Callable[[], Any]) -> str:
    try:
        act()
    except ShoalError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def refusals() -> dict[str, str]:
    small = Small(optimizers.SGD(0.1))
    swapping = [keras.callbacks.TerminateOnNaN(), keras.callbacks.SwapEMAWeights()]
    return {
        "unspeakable": refusal(lambda: Small(Unspeakable(teacher=object(), learning_rate=0.1))),
        "forgetful": refusal(lambda: Small(Forgetful(strength=2.0))),
        "other count": refusal(lambda: small.state.load(small.everything()[:-1])),
        "other shape": refusal(lambda: small.state.load([np.zeros(9, np.float32), *small.everything()[1:]])),
        "other type": refusal(lambda: small.state.apply(0, [np.zeros(8, np.float64)])),
        "swapped": refusal(lambda: refuse_unless_served(swapping)),
        "untouched": str(same(small.weights(), Small(optimizers.SGD(0.1)).weights())),
    }


def newcomer_with_another_window() -> str:
    """What a newcomer takes from one whose window has become larger, as it does in an evaluation: all but that."""

    def engine(width: int) -> Any:
        inputs = keras.Input((2,), dtype="int32")
        rows = layers.Flatten()(ShardedEmbedding(10, 3, name="table")(inputs))
        model = keras.Model(inputs, layers.Dense(1)(rows))
        model.compile(optimizers.SGD(0.1), "mse")
        TABLES.of(model).layers[0].resize(width)
        return model, ENGINES.of(model, this_process.current())

    (old, elder), (young, newcomer) = engine(5), engine(3)
    elder.begin(0)
    newcomer.set_state(elder.state())
    room = young.get_layer("table").room
    return f"{room} rows, {'same' if same(young.layers[-1].get_weights(), old.layers[-1].get_weights()) else 'other'}"


def tables() -> dict[str, Any]:
    """Tables that live on servers, as a worker sees them. From here on in this process all do."""
    ShardedEmbedding.tables_home = TABLES
    inputs = keras.Input((2,), dtype="int32")
    model = keras.Model(inputs, layers.Flatten()(ShardedEmbedding(10, 3, name="table")(inputs)))
    known = TABLES.of(model)

    def ids(*samples: list[int]) -> list[int]:
        return known.ids((np.array(samples, np.int32), np.zeros(len(samples))), "sample {}".format)[0].tolist()

    known.layers[0].resize(3)
    return {
        "ids": ids([3, 1], [1, 2]),
        "newcomer": newcomer_with_another_window(),
        "outside": refusal(lambda: ids([1, 2], [3, 10])),
        "below": refusal(lambda: ids([1, 2], [-1, 3])),
        "too many": refusal(lambda: ids([1, 2], [3, 4])),
        "initializer": refusal(lambda: ShardedEmbedding(10, 3, "glorot_uniform")),
        "clipnorm": refusal(lambda: refuse_unless_row_wise(optimizers.Adam(clipnorm=1.0))),
        "float16": refusal(lambda: refuse_unless_row_wise(optimizers.LossScaleOptimizer(optimizers.Adam()))),
        "fine": refusal(lambda: refuse_unless_row_wise(optimizers.Ftrl(clipvalue=1.0))),
        "not trained": refusal(lambda: known.bring(None, (np.zeros((2, 2), np.int32),), 0)),
    }


told = {
    "same bits": dict(same_bits("--few" in sys.argv)),
    "half precision": half_precision(),
    "replicas": replicas(),
    "flipped": flipped(),
    "set weights": set_weights(),
    "averages": averages(),
    "overflowing": overflowing(),
    "resets": resets(),
    "learning rates": learning_rates(),
    "stale rates": stale_rates(),
    "failures": failures(),
    "model stays": model_stays(),
    "cuts": cuts(),
    "programs": programs(),
    "names": names(),
    "needs": needs(),
    "constrained": constrained(),
    "refusals": refusals(),
    "row-wise": row_wise(),
    "beginnings": beginnings(),
    "loaded": loaded(),
    "tables": tables(),
}
Path(sys.argv[1]).write_text(json.dumps(told))

"""What a checkpoint holds for this worker's model; or how that model differs from the checkpoint's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.checkpoint.addresses import Place
from shoal.checkpoint.host_folders import readers
from shoal.checkpoint.manifest import Manifest
from shoal.checkpoint.read import describe, load, looks_whole
from shoal.checkpoint.resumed import to_bytes
from shoal.checkpoint.tensor_names import (
    CALLBACK,
    METRIC,
    OPTIMIZER,
    OUTER,
    SEEDS,
    STATE,
    TABLE,
    TRAINABLE,
    TensorName,
    are_replicas_weights,
    kind_of_replica,
    kind_of_replicas_weights,
    left_out_of,
    replica_of,
    tables_in,
)
from shoal.collectives.group import AbstractGroup, Result, WorkerGroup
from shoal.errors import BadCheckpoint, Diverged, UsageError
from shoal.strategies.schema import Array
from shoal.training import position
from shoal.training.engine import Engine, is_window
from shoal.training.optimizer import Named, TrainedOptimizer

_DAMAGED = b"damaged"
_SHOWN = 4  # variables of each kind of difference that an error names

Listed = dict[str, list[Named]]  # by kind: path and shape of every variable, in order


LoadStages = Callable[[AbstractGroup, Callable[[Callable[[str], bool]], Mapping[str, Array]]], None]


class Expected(NamedTuple):
    """What a checkpoint must hold so that a model can go on from it."""

    engine: Engine
    optimizer: TrainedOptimizer
    tables: Sequence[tuple[str, tuple[int, int]]]  # on servers: name, rows and width
    served: bool  # servers, or the stages of a pipeline, hold the optimizer's state
    shared: Sequence[int] = ()  # the numbers of its variables that every worker of a pipeline has


def resume(worker_group: WorkerGroup, path: Place, expected: Expected, apart: bool = False) -> Result:
    """The state in a checkpoint, for `Training.take`. The chief reads it and passes it on. Collective.

    `apart`: hosts have copies in folders of their own, and the first worker that finds an undamaged one reads it. A
    UsageError, on all workers, if it is of another model, or all copies are damaged.
    """

    def act_apart(group: AbstractGroup) -> Result:
        told = group.gather("who has a copy of the checkpoint", b"\1" if looks_whole(path) else b"\0")
        damage = []
        for reader in readers([value == b"\1" for value in told]):
            given = _read_or_tell(path, expected) if group.rank == reader else None
            others = set(range(group.size)) - {reader}
            found = group.pass_on("a copy of the checkpoint", reader, others, given) or given
            assert found is not None
            if found.values[0] != _DAMAGED:
                return found
            damage.append(f"{group.members[reader]}: {found.values[1].decode()}")
        why = f"every copy of it is damaged ({'; '.join(damage)})" if damage else "no host of this run has a copy of it"
        return Result([_DAMAGED, why.encode(), b""], [])

    def act(group: AbstractGroup) -> Result:
        given = _read(path, expected) if group.rank == 0 else None
        taken = group.pass_on("the checkpoint", 0, set(range(1, group.size)), given)
        found = given or taken
        assert found is not None
        return found

    (wrong, *values), arrays = worker_group.commit(act_apart if apart else act)
    if wrong == _DAMAGED:
        raise UsageError(
            f"can't resume from {path}: {values[0].decode()}. Copy the folder from a host that has it to the same path "
            "on a host of this run, or resume from an older one with --resume PATH."
        )
    if wrong:
        raise cannot_resume(path, wrong.decode())
    return Result(values, arrays)


def _read_or_tell(path: Place, expected: Expected) -> Result:
    """As `_read`; damage is told to the others, who may have a copy without."""
    try:
        return _read(path, expected)
    except BadCheckpoint as error:
        return Result([_DAMAGED, error.why.encode()], [])


def resume_by_stage(worker_group: WorkerGroup, path: Place, expected: Expected, load_stages: LoadStages) -> Result:
    """The same in a pipeline: what is no part of a stage; and within the act, each stage for those who hold it."""

    def act(group: AbstractGroup) -> Result:
        given = _read_apart(path, expected) if group.rank == 0 else None
        taken = group.pass_on("the checkpoint", 0, set(range(1, group.size)), given)
        found = given or taken
        assert found is not None
        if not found.values[0]:
            load_stages(group, lambda wanted: load(path, wanted).arrays)
        return found

    (wrong, *values), arrays = worker_group.commit(act)
    if wrong:
        raise cannot_resume(path, wrong.decode())
    return Result(values, arrays)


def cannot_resume(path: Place, why: str | Diverged) -> UsageError:
    return UsageError(
        f"can't resume from {path}: {why}. Resume with the script, and the arguments, that it comes from."
    )


def _read(path: Place, expected: Expected) -> Result:
    """Whether it is of another model, the position, what callbacks remember; and the arrays in the engine's order."""
    manifest, engine = describe(path), expected.engine
    wrong = differences(_of_model(expected), _of_checkpoint(manifest))
    if wrong:
        return Result([wrong.encode(), b"", b""], [])
    own = expected.optimizer.known(engine.variables)
    scale = expected.optimizer.number_of_loss_scale if expected.served else None

    def is_mine(name: str) -> bool:
        kind, number, _ = TensorName.of(name)
        others = kind in (TABLE, OUTER) or replica_of(kind) is not None or left_out_of(kind) is not None
        return not others and not are_replicas_weights(kind) and (kind != OPTIMIZER or number in own or number == scale)

    found = load(path, is_mine).arrays
    kinds = _by_kind(found)
    at, _ = position.decode(to_bytes(manifest.header["position"]))
    at.loss_scale = None  # for workers that have the whole optimizer
    if scale is not None:
        told = kinds.get(OPTIMIZER, {}).get(scale)
        if told is None or told.shape:
            return Result([b"it was not trained with this scale of the loss", b"", b""], [])
        at.loss_scale = float(told)
        if scale not in own:
            del kinds[OPTIMIZER][scale]
    state = [array for kind in (TRAINABLE, STATE, OPTIMIZER, METRIC) for array in _in_order(kinds.get(kind, {}))]
    state.append(found[SEEDS])
    callbacks = _in_order(kinds.get(CALLBACK, {}))
    return Result([b"", position.encode(at, len(state)), to_bytes(manifest.header["callbacks"])], [*state, *callbacks])


def _read_apart(path: Place, expected: Expected) -> Result:
    """As `_read`, without what stages hold: metrics, random numbers, and what all have of the optimizer."""
    manifest = describe(path)
    wrong = differences(_of_model(expected), _of_checkpoint(manifest))
    if wrong:
        return Result([wrong.encode(), b"", b""], [])

    def is_wanted(name: str) -> bool:
        kind, number, _ = TensorName.of(name)
        return kind in (METRIC, CALLBACK, SEEDS) or (kind == OPTIMIZER and number in expected.shared)

    found = load(path, is_wanted).arrays
    kinds = _by_kind(found)
    at, _ = position.decode(to_bytes(manifest.header["position"]))
    at.loss_scale = None
    state = [*_in_order(kinds.get(METRIC, {})), found[SEEDS], *_in_order(kinds.get(OPTIMIZER, {}))]
    callbacks = _in_order(kinds.get(CALLBACK, {}))
    return Result([b"", position.encode(at, len(state)), to_bytes(manifest.header["callbacks"])], [*state, *callbacks])


# Replicas -----------------------------------------------------------------------------------------------


class KeptReplicas(NamedTuple):
    """What a checkpoint has of a training with replicas."""

    outer: list[Array]
    states: list[list[Array]]  # by replica: its optimizers' variables, and its weights if it has its own


def resume_replicas(
    worker_group: WorkerGroup,
    path: Place,
    replicas: int,
    numbers: Sequence[int],
    outer: Sequence[Named],
    weights: Sequence[Named] = (),
) -> KeptReplicas | None:
    """What so many replicas go on from; None if the checkpoint is of a training without any. Collective.

    `numbers`: of the optimizers' variables that each replica has, in their order. UsageError if it has others.
    `weights`: those of which each has its own; where the checkpoint has none, they are the model's.
    """

    def act(group: AbstractGroup) -> Result:
        given = _read_replicas(path, replicas, numbers, outer, weights) if group.rank == 0 else None
        taken = group.pass_on("the replicas in the checkpoint", 0, set(range(1, group.size)), given)
        found = given or taken
        assert found is not None
        return found

    (wrong,), arrays = worker_group.commit(act)
    if wrong:
        raise cannot_resume(path, wrong.decode())
    if not arrays:
        return None
    count = (len(arrays) - len(outer)) // replicas
    starts = range(len(outer), len(arrays), count)
    return KeptReplicas(arrays[: len(outer)], [arrays[start : start + count] for start in starts])


def _read_replicas(
    path: Place, replicas: int, numbers: Sequence[int], outer: Sequence[Named], weights: Sequence[Named]
) -> Result:
    """Whether they do not fit; and the arrays: the outer optimizer's, and each replica's."""
    shapes = describe(path).shapes
    kinds = {TensorName.of(name).kind for name in shapes}
    if OUTER not in kinds:
        return Result([b""], [])
    count = 1 + max((replica for kind in kinds if (replica := replica_of(kind)) is not None), default=0)
    if count != replicas:
        return Result([f"it is of a training with {count} replicas, and this one has {replicas}".encode()], [])
    theirs = {TensorName.of(name).number: shape for name, shape in shapes.items() if TensorName.of(name).kind == OUTER}
    if [theirs[number] for number in sorted(theirs)] != [shape for _, shape in outer]:
        return Result([b"it was trained with another kind of outer optimizer"], [])
    wanted = {OUTER, *map(kind_of_replica, range(replicas))}
    own = [kind_of_replicas_weights(replica) for replica in range(replicas)] if weights else []
    if own and own[0] in kinds:
        mine = [shape for _, shape in weights]
        for kind in own:
            found_shapes = {
                TensorName.of(name).number: s for name, s in shapes.items() if TensorName.of(name).kind == kind
            }
            if [found_shapes[number] for number in sorted(found_shapes)] != mine:
                return Result([b"its replicas have other weights"], [])
        wanted |= set(own)
    found = _by_kind(load(path, lambda name: TensorName.of(name).kind in wanted).arrays)
    states = [[np.asarray(found[kind_of_replica(r)][number]) for number in numbers] for r in range(replicas)]
    for state, kind in zip(states, own, strict=False):
        state += _in_order(found.get(kind, {}))
    return Result([b""], [*_in_order(found[OUTER]), *(array for state in states for array in state)])


# Differences --------------------------------------------------------------------------------------------


def differences(mine: Listed, theirs: Listed) -> str:
    """What of this model is not as in a checkpoint; empty if all is. By order: Keras's automatic names may differ."""
    told: dict[str, list[str]] = {}
    for kind, here in mine.items():
        there = theirs.get(kind, [])
        if _alike(here, there):
            continue
        named, known = dict(here), dict(there)
        for path, shape in here:
            if path not in known:
                told.setdefault("not in the checkpoint", []).append(_describe(path, shape))
            elif shape is not None and known[path] != shape:
                other = f"{path} {shape}, {known[path]} in the checkpoint"
                told.setdefault("of another shape", []).append(other)
        told.setdefault("only in the checkpoint", []).extend(
            _describe(path, shape) for path, shape in there if path not in named
        )
        if not any(told.values()):
            told["in another order"] = [f"the variables of the kind {kind!r}"]
    parts = [f"{what}: {_some(listed)}" for what, listed in told.items() if listed]
    return f"it is of another model ({'; '.join(parts)})" if parts else ""


def _alike(here: Sequence[Named], there: Sequence[Named]) -> bool:
    pairs = zip(here, there, strict=False)
    return len(here) == len(there) and all(shape is None or shape == other for (_, shape), (_, other) in pairs)


def _of_model(expected: Expected) -> Listed:
    variables = expected.engine.variables
    trainable = [variable for variable in variables.trainable if not is_window(variable)]
    listed: Listed = {
        TRAINABLE: _named(trainable),
        STATE: _named([variable for variable in variables.states if not is_window(variable)]),
        METRIC: _named(variables.metrics),
        TABLE: list(expected.tables),
    }
    if not expected.served:
        return listed | {OPTIMIZER: _named(variables.optimizer)}
    optimizer = expected.optimizer.whole(trainable)
    return listed if optimizer is None else listed | {OPTIMIZER: optimizer}


def tensors_of(engine: Engine, optimizer: TrainedOptimizer, served: bool) -> dict[str, int]:
    """How many tensors of each kind a checkpoint must have so that this model can go on from it."""
    listed = _of_model(Expected(engine, optimizer, (), served))
    return {kind: len(variables) for kind, variables in listed.items() if variables} | {SEEDS: 1}


def _of_checkpoint(manifest: Manifest) -> Listed:
    kinds: dict[str, dict[int, Named]] = {}
    for number, table in tables_in(manifest.shapes).items():
        kinds.setdefault(TABLE, {})[number] = (table.table, (table.rows, table.width))
    for name, shape in manifest.shapes.items():
        kind, number, path = TensorName.of(name)
        if kind != TABLE:
            kinds.setdefault(kind, {})[number] = (path, shape)
    return {kind: [found[number] for number in sorted(found)] for kind, found in kinds.items()}


def _named(variables: Sequence[Any]) -> list[Named]:
    return [(variable.path, tuple(variable.shape)) for variable in variables]


def _describe(path: str, shape: tuple[int, ...] | None) -> str:
    return path if shape is None else f"{path} {shape}"


def _some(listed: Sequence[str]) -> str:
    rest = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


# Names --------------------------------------------------------------------------------------------------


def _by_kind(arrays: Mapping[str, Array]) -> dict[str, dict[int, Array]]:
    kinds: dict[str, dict[int, Array]] = {}
    for name, array in arrays.items():
        kind, number, _ = TensorName.of(name)
        kinds.setdefault(kind, {})[number] = array
    return kinds


def _in_order(found: Mapping[int, Array]) -> list[Array]:
    return [np.asarray(found[index]) for index in sorted(found)]

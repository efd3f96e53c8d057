"""What a checkpoint holds for this worker's model; or how that model differs from the checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.checkpoint.manifest import Manifest
from shoal.checkpoint.read import describe, load
from shoal.checkpoint.resumed import to_bytes
from shoal.checkpoint.tensor_names import (
    CALLBACK,
    METRIC,
    OPTIMIZER,
    SEEDS,
    STATE,
    TABLE,
    TRAINABLE,
    TensorName,
    tables_in,
)
from shoal.collectives.group import AbstractGroup, Result, WorkerGroup
from shoal.errors import Diverged, UsageError
from shoal.strategies.schema import Array
from shoal.training import position
from shoal.training.engine import Engine, is_window
from shoal.training.optimizer import Named, TrainedOptimizer

_SHOWN = 4  # variables of each kind of difference that an error names

Listed = dict[str, list[Named]]  # by kind: path and shape of every variable, in order


class Expected(NamedTuple):
    """What a checkpoint must hold so that a model can go on from it."""

    engine: Engine
    optimizer: TrainedOptimizer
    tables: Sequence[tuple[str, tuple[int, int]]]  # on servers: name, rows and width
    served: bool  # servers hold the optimizer's state


def resume(worker_group: WorkerGroup, path: Path, expected: Expected) -> Result:
    """The state in a checkpoint, for `Training.take`. The chief reads it and passes it on. Collective.

    A UsageError, on all workers, if it is of another model.
    """

    def act(group: AbstractGroup) -> Result:
        given = _read(path, expected) if group.rank == 0 else None
        taken = group.pass_on("the checkpoint", 0, set(range(1, group.size)), given)
        found = given or taken
        assert found is not None
        return found

    (wrong, *values), arrays = worker_group.commit(act)
    if wrong:
        raise cannot_resume(path, wrong.decode())
    return Result(values, arrays)


def cannot_resume(path: Path, why: str | Diverged) -> UsageError:
    return UsageError(
        f"can't resume from {path}: {why}. Resume with the script, and the arguments, that it comes from."
    )


def _read(path: Path, expected: Expected) -> Result:
    """Whether it is of another model, the position, what callbacks remember; and the arrays in the engine's order."""
    manifest, engine = describe(path), expected.engine
    wrong = differences(_of_model(expected), _of_checkpoint(manifest))
    if wrong:
        return Result([wrong.encode(), b"", b""], [])
    own = expected.optimizer.known(engine.variables)
    scale = expected.optimizer.number_of_loss_scale if expected.served else None

    def is_mine(name: str) -> bool:
        kind, number, _ = TensorName.of(name)
        return kind != TABLE and (kind != OPTIMIZER or number in own or number == scale)

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

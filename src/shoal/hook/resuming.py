"""What a checkpoint holds for this worker's model; or how that model differs from the checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from shoal.checkpoint.manifest import Manifest
from shoal.checkpoint.read import describe, load
from shoal.checkpoint.resumed import to_bytes
from shoal.collectives.group import AbstractGroup, Company, Result
from shoal.errors import Diverged, UsageError
from shoal.hook import saved_rows
from shoal.hook.calls import encode_plain
from shoal.hook.engine import AbstractEngine, is_window
from shoal.hook.position import Position
from shoal.hook.tables import layers_of
from shoal.hook.whole_optimizer import Named, WholeOptimizer, known_to_workers, number_of_loss_scale
from shoal.strategies.schema import Array

_SHOWN = 4  # variables of each kind of difference that an error names

Listed = dict[str, list[Named]]  # by kind: path and shape of every variable, in order


class Expected(NamedTuple):
    """What a checkpoint must hold so that a model can go on from it."""

    engine: AbstractEngine
    served: bool  # servers hold the optimizer's state


def resume(company: Company, path: Path, expected: Expected) -> Result:
    """The state in a checkpoint, for `Training.take`. The chief reads it and passes it on. Collective.

    A UsageError, on all workers, if it is of another model.
    """

    def act(group: AbstractGroup) -> Result:
        given = _read(path, expected) if group.rank == 0 else None
        taken = group.pass_on("the checkpoint", 0, set(range(1, group.size)), given)
        found = given or taken
        assert found is not None
        return found

    (wrong, *values), arrays = company.commit(act)
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
    own = known_to_workers(engine.model.optimizer)
    scale = number_of_loss_scale(engine.model.optimizer) if expected.served else None

    def is_mine(name: str) -> bool:
        kind, index = _place(name)
        return kind != saved_rows.KIND and (kind != "optimizer" or index in own)

    found = load(path, lambda name: is_mine(name) or _place(name) == ("optimizer", scale)).arrays
    kinds = _by_kind(found)
    at, _ = msgspec.msgpack.decode(to_bytes(manifest.header["position"]), type=tuple[Position, int])
    at.loss_scale = None  # for workers that have the whole optimizer
    if scale is not None:
        told = kinds.get("optimizer", {}).get(scale)
        if told is None or told.shape:
            return Result([b"it was not trained with this scale of the loss", b"", b""], [])
        at.loss_scale = float(told)
        if scale not in own:
            del kinds["optimizer"][scale]
    state = [
        *_in_order(kinds.get("trainable", {})),
        *_in_order(kinds.get("state", {})),
        *_in_order(kinds.get("optimizer", {})),
        *_in_order(kinds.get("metric", {})),
        found["seeds"],
    ]
    position = encode_plain((at, len(state)))
    callbacks = _in_order(kinds.get("callback", {}))
    return Result([b"", position, to_bytes(manifest.header["callbacks"])], [*state, *callbacks])


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
    engine, variables = expected.engine, expected.engine.variables
    trainable = [variable for variable in variables.trainable if not is_window(variable)]
    listed: Listed = {
        "trainable": _named(trainable),
        "state": _named([variable for variable in variables.states if not is_window(variable)]),
        "metric": _named(variables.metrics),
        saved_rows.KIND: [(layer.name, (layer.input_dim, layer.output_dim)) for layer in layers_of(engine.model)],
    }
    if not expected.served:
        return listed | {"optimizer": _named(variables.optimizer)}
    optimizer = WholeOptimizer(engine.model.optimizer, trainable).variables()
    return listed if optimizer is None else listed | {"optimizer": optimizer}


def _of_checkpoint(manifest: Manifest) -> Listed:
    kinds: dict[str, dict[int, Named]] = {}
    for index, table in saved_rows.tables_in(manifest.shapes).items():
        kinds.setdefault(saved_rows.KIND, {})[index] = (table.table, (table.rows, table.width))
    for name, shape in manifest.shapes.items():
        kind, index = _place(name)
        if kind == saved_rows.KIND:
            continue
        kinds.setdefault(kind, {})[index] = (name.partition("/")[2].partition("/")[2], shape)
    return {kind: [found[index] for index in sorted(found)] for kind, found in kinds.items()}


def _named(variables: Sequence[Any]) -> list[Named]:
    return [(variable.path, tuple(variable.shape)) for variable in variables]


def _describe(path: str, shape: tuple[int, ...] | None) -> str:
    return path if shape is None else f"{path} {shape}"


def _some(listed: Sequence[str]) -> str:
    rest = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


# Names --------------------------------------------------------------------------------------------------


def _place(name: str) -> tuple[str, int]:
    """A tensor's kind, and its index among those."""
    kind, _, rest = name.partition("/")
    number = rest.partition("/")[0]
    return kind, int(number) if number.isdecimal() else 0


def _by_kind(arrays: Mapping[str, Array]) -> dict[str, dict[int, Array]]:
    kinds: dict[str, dict[int, Array]] = {}
    for name, array in arrays.items():
        kind, index = _place(name)
        kinds.setdefault(kind, {})[index] = array
    return kinds


def _in_order(found: Mapping[int, Array]) -> list[Array]:
    return [np.asarray(found[index]) for index in sorted(found)]

"""What codecs have left out of gradients so far (`TopK`, `LowRank`), in checkpoints.

A checkpoint that goes without would resume with other bits: what was left out comes later, and belongs to the training
like the optimizer's state. Each piece's is written by one worker that has it, and read by the one that computes the
piece next, whoever they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.checkpoint.addresses import Place
from shoal.checkpoint.read import describe, load
from shoal.checkpoint.tensor_names import TensorName, kind_of_left_out, left_out_of
from shoal.strategies.allreduce import Reduction
from shoal.strategies.schema import Array
from shoal.training.resuming import cannot_resume
from shoal.training.run import Run
from shoal.training.saving import needs_one_folder

Sizes = tuple[tuple[int, ...] | None, ...]  # by part


def left_out_tensors(reductions: Sequence[Reduction]) -> dict[str, Array]:
    """Between two steps: this worker's part of what a checkpoint has of it. Collective."""
    return {
        str(TensorName(kind_of_left_out(part, piece), number)): array
        for part, reduction in enumerate(reductions)
        for piece, arrays in reduction.left_out().items()
        for number, array in enumerate(arrays)
    }


def resume_left_out(run: Run, path: Place, reductions: Sequence[Reduction]) -> None:
    """Go on with what a checkpoint has of it. Collective. UsageError, on all, if it is of other gradients."""
    sizes = tuple(reduction.sizes_left_out for reduction in reductions)

    def wrong() -> bytes:
        return msgspec.msgpack.encode(_differences(path, sizes))

    told = run.worker_group.gather("what was left out: does it fit", lambda group: wrong() if group.rank == 0 else b"")
    there, why = msgspec.msgpack.decode(told.chiefs, type=tuple[bool, str])
    if why:
        raise cannot_resume(path, why)
    if not there:
        return
    if not any(sizes):
        run.tell(
            f"{path.name} has what a codec left out of gradients, and this run's codec keeps nothing: it is never sent"
        )
        return
    for part, reduction in enumerate(reductions):
        reduction.go_on_with(lambda pieces, part=part: _read(path, part, pieces))  # type: ignore[misc]


def _differences(path: Place, expected: Sizes) -> tuple[bool, str]:
    """Whether a checkpoint has something, and why it does not fit."""
    found: dict[tuple[int, int], dict[int, int]] = {}
    for name, shape in describe(path).shapes.items():
        kind, number, _ = TensorName.of(name)
        place = left_out_of(kind)
        if place is not None:
            found.setdefault(place, {})[number] = shape[0] if len(shape) == 1 else -1
    if not any(expected):
        return bool(found), ""
    for (part, _), sizes in found.items():
        if part >= len(expected) or tuple(sizes[number] for number in sorted(sizes)) != expected[part]:
            return True, "what a codec has left out there is of other gradients than this model's"
    return bool(found), ""


def _read(path: Place, part: int, pieces: Iterable[int]) -> dict[int, list[Array]]:
    """By piece, of those that have left out something."""
    wanted = {kind_of_left_out(part, piece): piece for piece in pieces}
    found: dict[int, dict[int, Array]] = {}
    for name, array in load(path, lambda name: TensorName.of(name).kind in wanted).arrays.items():
        kind, number, _ = TensorName.of(name)
        found.setdefault(wanted[kind], {})[number] = array
    return {piece: [arrays[number] for number in sorted(arrays)] for piece, arrays in sorted(found.items())}


def refuse_own_folders(run: Run, reductions: Sequence[Reduction]) -> None:
    """UsageError, before anything trains, if checkpoints of this run could not hold what codecs leave out."""
    is_left_out = any(reduction.sizes_left_out is not None for reduction in reductions)
    if run.saving is not None and run.own_folder is not None and is_left_out:
        raise needs_one_folder("what a codec has left out")

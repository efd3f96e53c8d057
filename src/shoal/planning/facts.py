"""What a plan is made from: what was measured of a model, its stages, the workers and the links between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from shoal.strategies.mesh.shape import Mesh

_ACROSS = 2e-4  # seconds from host to host, at least: two kernels and a switch


class PieceTime(msgspec.Struct, frozen=True):
    """What a piece of so many rows takes, on a worker of speed 1, and what it keeps from its way forward to its way
    back.
    """

    rows: int
    forward: float  # seconds; of a whole model, both passes
    backward: float = 0.0
    kept: int = 0  # bytes


class StageFacts(msgspec.Struct, frozen=True):
    """One stage; or, as the only one, the whole model."""

    times: tuple[PieceTime, ...]  # at least one, by their rows
    update: float  # seconds for all of its weights
    weights: int  # bytes
    gradients: int
    optimizer: int
    sends: tuple[tuple[int, float], ...] = ()  # the stage that takes it, and bytes for each row
    why_not_sliced: str = ""  # of the whole model; empty: its update can be sliced
    sliced: float = 0.0  # seconds that a sliced update takes, of all slices together
    adopting: float = 0.0  # seconds in which a worker takes over weights that others have updated
    compiling: float = 0.0  # seconds until there is a program for pieces of another size


class CutFacts(msgspec.Struct, frozen=True):
    """A model that is cut into stages."""

    stages: tuple[StageFacts, ...]
    costs: tuple[float, ...]  # by which workers are dealt to stages
    speeds: tuple[float, ...] = ()  # of the workers for which it is cut; empty: for equal ones


class MeshFacts(msgspec.Struct, frozen=True):
    """The whole model on the devices of one worker."""

    mesh: str  # as `--mesh` takes it
    devices: int
    whole: StageFacts  # bytes are those of one device


class LinkFacts(msgspec.Struct, frozen=True):
    """What lies between workers, and a worker's own memory."""

    latency: float  # seconds from one worker to another
    copying: float  # bytes per second, from memory to memory
    adding: float  # bytes per second that are added up
    bandwidth: float | None = None  # bytes per second between hosts; None: all workers share memory


class PlanFacts(msgspec.Struct, frozen=True):
    """All that is known of a model, its data, and who trains it."""

    batch: int  # rows
    speeds: tuple[float, ...]  # of each worker; 1.0 is the one that measured
    link: LinkFacts
    base: int  # bytes of a worker without any of the model
    limit: int | None = None  # bytes that a worker may use, where nobody has said how many
    overhead: float = 0.0  # seconds of a step that are nobody's computing: reading, callbacks, bookkeeping
    whole: StageFacts | None = None  # None: it was not measured
    cuts: tuple[CutFacts, ...] = ()
    meshes: tuple[MeshFacts, ...] = ()
    left_out: dict[str, str] = {}  # what is no candidate, and why

    @property
    def workers(self) -> int:
        return len(self.speeds)


def at_rows(times: Sequence[PieceTime], rows: float) -> tuple[float, float, float]:
    """Seconds forward and back, and bytes kept, of a piece of so many rows: measured, or between what was measured.

    Outside of it, along the line through the nearest two; but never less than in proportion to the smallest.
    """
    if len(times) == 1:
        part = rows / times[0].rows
        return times[0].forward * part, times[0].backward * part, times[0].kept * part
    low, high = next((pair for pair in pairwise(times) if rows <= pair[1].rows), (times[-2], times[-1]))
    along = (rows - low.rows) / (high.rows - low.rows)
    least = min(1.0, rows / times[0].rows)

    def between(a: float, b: float, smallest: float) -> float:
        return max(a + (b - a) * along, smallest * least)

    first = times[0]
    return (
        between(low.forward, high.forward, first.forward),
        between(low.backward, high.backward, first.backward),
        between(low.kept, high.kept, first.kept),
    )


def on_link(link: LinkFacts, bandwidth: int | None) -> LinkFacts:
    """The same workers with a link of so many bytes per second between them; None: on one host."""
    if bandwidth is None:
        return link
    return msgspec.structs.replace(link, bandwidth=float(bandwidth), latency=max(link.latency, _ACROSS))


def with_meshes(facts: PlanFacts, found: Mapping[str, PlanFacts], left_out: Mapping[str, str]) -> PlanFacts:
    """Workers with several devices: what was measured with each mesh of them."""
    meshes = tuple(
        MeshFacts(mesh, Mesh.parse(mesh).size, one.whole) for mesh, one in found.items() if one.whole is not None
    )
    return msgspec.structs.replace(facts, whole=None, cuts=(), meshes=meshes, left_out={**facts.left_out, **left_out})

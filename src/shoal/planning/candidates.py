"""The ways to train that are compared: all that a run can be told to do with these workers."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shoal.planning.facts import CutFacts, PlanFacts

_OF_WORKERS = 8  # pieces for each worker, at the most
_LARGER = 1.1  # pieces of a stage, than the largest that was timed, at the most
_COUNTS = 32  # of pieces, of one kind of plan
_OF_STAGES = (1, 2, 3, 4, 6, 8)  # pieces for each stage


class Kind(StrEnum):
    """From the simplest on: of plans that are as fast, the first is chosen."""

    DATA = "data parallel"
    SLICED = "sliced update"
    MESH = "mesh"
    PIPELINE = "pipeline"

    @property
    def simplicity(self) -> int:
        return list(Kind).index(self)


class PlanCandidate(msgspec.Struct, frozen=True):
    """One way to train."""

    kind: Kind
    pieces: int
    stages: int = 1
    mesh: str = ""
    devices: int = 1  # of each worker
    speeds: tuple[float, ...] = ()  # of the workers for which stages are cut; empty: for equal ones

    @property
    def name(self) -> str:
        pieces = f"{self.pieces} piece{'s' if self.pieces > 1 else ''}"
        match self.kind:
            case Kind.PIPELINE:
                return f"pipeline of {self.stages}{' unequal' if self.speeds else ''} stages, {pieces}"
            case Kind.MESH:
                return f"mesh {self.mesh}, {pieces}"
        return f"{self.kind}, {pieces}"

    @property
    def sort(self) -> tuple[Kind, str]:
        """What it is, whatever its numbers."""
        return self.kind, self.mesh

    @property
    def flags(self) -> str:
        """With which `shoal run` does just this."""
        match self.kind:
            case Kind.PIPELINE:
                speeds = f" --speeds {','.join(f'{one:g}' for one in self.speeds)}" if self.speeds else ""
                return f"--strategy pipeline --stages {self.stages}{speeds} --pieces {self.pieces}"
            case Kind.SLICED:
                return f"--sliced --pieces {self.pieces}"
            case Kind.MESH:
                return f"--devices-per-worker {self.devices} --mesh {self.mesh} --pieces {self.pieces}"
        return f"--pieces {self.pieces}"


def candidates(facts: PlanFacts, pieces: int | None = None) -> list[PlanCandidate]:
    """All of them. `pieces`: as the user has said; None: whatever is best."""
    workers = facts.workers
    found = []
    counts = [pieces] if pieces is not None else _counts(workers, facts)
    if facts.whole is not None:
        found += [PlanCandidate(Kind.DATA, count) for count in counts]
        if not facts.whole.why_not_sliced and workers > 1:
            found += [PlanCandidate(Kind.SLICED, count) for count in counts]
    for mesh in facts.meshes:
        found += [PlanCandidate(Kind.MESH, count, mesh=mesh.mesh, devices=mesh.devices) for count in counts]
    for cut in facts.cuts:
        stages = len(cut.stages)
        if stages > workers:
            continue
        counts = [pieces] if pieces is not None else [stages * more for more in _OF_STAGES]
        # Larger pieces than were timed may take longer than it seems from smaller ones: they leave the cache.
        largest = _LARGER * cut.stages[0].times[-1].rows
        found += [
            PlanCandidate(Kind.PIPELINE, count, stages, speeds=cut.speeds)
            for count in counts
            if count <= facts.batch <= count * largest
        ]
    return found


def cut_of(facts: PlanFacts, candidate: PlanCandidate) -> CutFacts:
    """The stages of a pipeline."""
    wanted = candidate.stages, candidate.speeds
    return next(cut for cut in facts.cuts if (len(cut.stages), cut.speeds) == wanted)


def _counts(workers: int, facts: PlanFacts) -> list[int]:
    """Numbers of pieces for workers that all do the same. Unequal ones may need any; equal ones as many each."""
    most = min(_OF_WORKERS * workers, facts.batch)
    if workers >= most:
        return [max(1, most)]
    if len(set(facts.speeds)) == 1:
        return [workers * more for more in (1, 2, 4, 8) if workers * more <= most]
    return list(range(workers, most + 1, -(-(most - workers) // _COUNTS)))

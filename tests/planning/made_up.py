"""Models, workers and links that nobody has: facts as the measuring would find them, and the truth behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.planning.facts import CutFacts, LinkFacts, PieceTime, PlanFacts, StageFacts

MB = 1_000_000
LINK = LinkFacts(latency=50e-6, copying=8e9, adding=5e9)
SLOW_LINK = LinkFacts(latency=500e-6, copying=8e9, adding=5e9, bandwidth=1e8)


class Layer(NamedTuple):
    """What a layer takes, whoever computes it."""

    forward: float = 1e-4  # seconds for each row
    start: float = 2e-4  # seconds of any piece
    weights: int = 4 * MB  # bytes
    kept: int = 20_000  # bytes for each row
    sends: int = 4_000  # bytes for each row, to the next layer

    def passes(self, rows: int) -> tuple[float, float]:
        """Seconds forward and back. Large pieces leave the cache."""
        forward = self.start + self.forward * rows * (1.0 if rows <= 64 else 1.15)
        return forward, 2 * forward


def facts_of(
    layers: Sequence[Layer],
    speeds: Sequence[float],
    batch: int = 240,
    link: LinkFacts = LINK,
    update: float = 1.5e-9,
    sliced: bool = True,
    base: int = 300 * MB,
) -> PlanFacts:
    """`update`: seconds for each byte of weights. The optimizer keeps two numbers for each weight."""
    workers = len(speeds)
    return PlanFacts(
        batch,
        tuple(speeds),
        link,
        base,
        overhead=5e-4,
        whole=_stage(layers, (), _measured(batch, workers, 3), update, "" if sliced else "it looks at whole tensors"),
        cuts=tuple(
            _cut(layers, count, sorted({max(1, batch // (4 * workers)), max(1, batch // workers)}), update)
            for count in range(2, workers + 1)
        ),
    )


def bounds_of(layers: Sequence[Layer], stages: int) -> list[int]:
    return [len(layers) * stage // stages for stage in range(stages + 1)]


def _measured(batch: int, most: int, sizes: int) -> list[int]:
    return sorted({max(1, batch // (most << power)) for power in range(sizes)})


def _cut(layers: Sequence[Layer], stages: int, rows: list[int], update: float) -> CutFacts:
    bounds = bounds_of(layers, stages)
    parts = [layers[bounds[stage] : bounds[stage + 1]] for stage in range(stages)]
    found = []
    for stage, part in enumerate(parts):
        sends = ((stage + 1, float(part[-1].sends)),) if stage < stages - 1 else ()
        found.append(_stage(part, sends, rows, update, "it is a stage"))
    return CutFacts(tuple(found), tuple(sum(layer.forward for layer in part) for part in parts))


def _stage(
    layers: Sequence[Layer], sends: tuple[tuple[int, float], ...], rows: list[int], update: float, not_sliced: str
) -> StageFacts:
    weights = sum(layer.weights for layer in layers)
    return StageFacts(
        tuple(_time(layers, count, is_whole=not_sliced != "it is a stage") for count in rows),
        update * weights,
        weights,
        weights,
        2 * weights,
        sends,
        not_sliced,
        1.05 * update * weights,
    )


def _time(layers: Sequence[Layer], rows: int, is_whole: bool) -> PieceTime:
    forward, backward = (sum(layer.passes(rows)[way] for layer in layers) for way in (0, 1))
    kept = sum(layer.kept * rows for layer in layers)
    return PieceTime(rows, forward + backward, 0.0, kept) if is_whole else PieceTime(rows, forward, backward, kept)

"""A ranking, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.observe.amounts import amount, duration
from shoal.planning.ranking import Ranked, Ranking, why_first

_MOST_SHOWN = 4  # workers whose busy shares are told one by one
_MOST_OF_A_KIND = 3  # rows of one kind of plan: the others differ in their pieces only


def table(ranking: Ranking, how: str) -> str:
    """`how`: with which workers, for the first line."""
    head = ("", "plan", "step", "busy", "moved", "memory", "fits")
    rows = [_row(place + 1, one) for place, one in enumerate(shown(ranking))]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]
    hidden = len(ranking.ranked) - len(rows)
    more = [f"and {hidden} more with other numbers of pieces: --json has them all"] if hidden else []
    left_out = [f"left out: {name}: {why}" for name, why in ranking.left_out.items()]
    return "\n".join([how, "", *lines, *more, *left_out, "", why_first(ranking), f"Run it: shoal run {_run(ranking)}"])


def shown(ranking: Ranking) -> list[Ranked]:
    """The best of each kind, with others that differ in their pieces, as many as can be read."""
    counts: dict[tuple[object, ...], int] = {}
    found = []
    for one in ranking.ranked:
        key = (*one.candidate.sort, one.candidate.stages)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= _MOST_OF_A_KIND:
            found.append(one)
    return found


def as_data(ranking: Ranking, asked: dict[str, Any]) -> dict[str, Any]:
    """The same, for `--json`."""
    return {
        **asked,
        "memory": ranking.memory,
        "plans": [
            {
                "plan": one.candidate.name,
                "kind": str(one.candidate.kind),
                "stages": one.candidate.stages,
                "pieces": one.candidate.pieces,
                "mesh": one.candidate.mesh,
                "flags": one.candidate.flags,
                "step_seconds": one.seconds,
                "busy": list(one.prediction.busy),
                "moved_bytes": one.prediction.moved,
                "memory_bytes": list(one.prediction.memory),
                "fits": one.fits,
            }
            for one in ranking.ranked
        ],
        "left_out": ranking.left_out,
        "why": why_first(ranking),
    }


def _run(ranking: Ranking) -> str:
    return f"-n {len(ranking.first.prediction.busy)} {ranking.first.candidate.flags}"


def _row(place: int, one: Ranked) -> Sequence[str]:
    prediction = one.prediction
    busy = [f"{100 * part:.0f}" for part in prediction.busy]
    shares = (
        f"{' '.join(busy)} %"
        if len(busy) <= _MOST_SHOWN
        else f"{min(prediction.busy):.0%} to {max(prediction.busy):.0%}"
    )
    return (
        str(place),
        one.candidate.name,
        duration(one.seconds),
        shares,
        amount(prediction.moved),
        amount(one.needs),
        "yes" if one.fits else "no",
    )

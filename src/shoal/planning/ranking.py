"""From predictions to an order, and to the plan that is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.errors import CannotDistribute
from shoal.observe.amounts import amount, duration, percent
from shoal.planning.candidates import Kind, PlanCandidate, candidates
from shoal.planning.facts import PlanFacts
from shoal.planning.replay import Prediction, predict

ALIKE = 1.02  # plans whose steps differ by less than this factor are equally fast: the simplest of them is first


class Ranked(msgspec.Struct, frozen=True):
    """A candidate and what is expected of it."""

    candidate: PlanCandidate
    prediction: Prediction
    fits: bool

    @property
    def seconds(self) -> float:
        return self.prediction.seconds

    @property
    def needs(self) -> float:
        """Bytes of the worker that needs most."""
        return max(self.prediction.memory)


class Ranking(msgspec.Struct, frozen=True):
    """All candidates: those that fit first, from the fastest to the slowest."""

    ranked: tuple[Ranked, ...]
    memory: int | None  # bytes that each worker has; None: nobody knows
    left_out: dict[str, str]  # what is no candidate, and why

    @property
    def first(self) -> Ranked:
        return self.ranked[0]


def rank(facts: PlanFacts, memory: int | None = None, pieces: int | None = None) -> Ranking:
    """The ranking. CannotDistribute if nothing fits, or if there is nothing to choose from."""
    found = [(candidate, predict(facts, candidate)) for candidate in candidates(facts, pieces)]
    if not found:
        why = "; ".join(f"{name}: {reason}" for name, reason in facts.left_out.items())
        raise CannotDistribute(f"there is no way to train this model on {facts.workers} workers. {why}")
    ranked = [Ranked(one, expected, memory is None or max(expected.memory) <= memory) for one, expected in found]
    if not any(one.fits for one in ranked):
        smallest = min(ranked, key=lambda one: one.needs)
        assert memory is not None
        raise CannotDistribute(
            f"nothing fits into {amount(memory)} per worker. What needs least is {smallest.candidate.name}: "
            f"{amount(smallest.needs)} per worker, of which {amount(facts.base)} are Python, the backend and the data. "
            "Give workers more memory, use more workers so that there can be more stages, or a smaller batch_size."
        )
    return Ranking(tuple(_ordered(ranked)), memory, facts.left_out)


def _ordered(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Those that fit first; the fastest first, but of those that are alike the simplest."""
    order = sorted(ranked, key=lambda one: (not one.fits, one.seconds))
    alike = [one for one in order if one.fits and one.seconds <= ALIKE * order[0].seconds]
    first = min(alike, key=lambda one: (one.candidate.kind.simplicity, one.candidate.pieces))
    return [first, *(one for one in order if one is not first)]


def why_first(ranking: Ranking) -> str:
    """A sentence or two."""
    first = ranking.first
    words = [f"{first.candidate.name}: {duration(first.seconds)} per step, the workers busy {_busy(first)}"]
    too_large = [one for one in ranking.ranked if not one.fits and one.seconds < first.seconds]
    if too_large and ranking.memory is not None:
        fastest = min(too_large, key=lambda one: one.seconds)
        words.append(
            f"{fastest.candidate.name} would be faster ({duration(fastest.seconds)}), but needs "
            f"{amount(fastest.needs)} per worker, and there are {amount(ranking.memory)}"
        )
    rivals = [one for one in ranking.ranked[1:] if one.fits and one.candidate.sort != first.candidate.sort]
    rival = next(iter(rivals), None)
    if rival is not None:
        words.append(_against(first, rival))
    return ". ".join(f"{one[0].upper()}{one[1:]}" for one in words) + "."


def _against(first: Ranked, rival: Ranked) -> str:
    name = rival.candidate.name
    if rival.seconds <= ALIKE * first.seconds:
        return f"{name} is as fast ({duration(rival.seconds)}), and less simple"
    times = f"{name} takes {rival.seconds / first.seconds:.2f} times as long"
    if rival.candidate.kind is Kind.PIPELINE and min(rival.prediction.busy) < min(first.prediction.busy):
        return f"{times}: its workers wait for each other, busy {_busy(rival)}"
    if rival.prediction.moved > 1.2 * first.prediction.moved:
        return (
            f"{times}, and moves {amount(rival.prediction.moved)} per step instead of {amount(first.prediction.moved)}"
        )
    return times


def _busy(one: Ranked) -> str:
    low, high = min(one.prediction.busy), max(one.prediction.busy)
    return percent(low) if round(100 * low) == round(100 * high) else f"{100 * low:.0f} to {percent(high)} of the time"

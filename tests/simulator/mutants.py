"""How deliberate bugs are kept, one at a time, and looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from .elastic import Simulation
from .plan import Plan
from .wrong import Wrong

RUNS = 40  # within which a mutant must be found

Change = Callable[[pytest.MonkeyPatch], None]


class Mutant(NamedTuple):
    """A bug, the plans under which it shows, and the seed of the first that is tried: looking costs seconds."""

    change: Change
    plans: Callable[[int], Plan]
    seed: int = 0


class Mutants(dict[str, Mutant]):
    """By name."""

    def shows(self, plans: Callable[[int], Plan], seed: int = 0) -> Callable[[Change], Change]:
        """A decorator of a change that shows under these plans."""

        def add(change: Change) -> Change:
            self[change.__name__] = Mutant(change, plans, seed)
            return change

        return add

    def plans(self) -> list[Callable[[int], Plan]]:
        """Each once."""
        return list(dict.fromkeys(mutant.plans for mutant in self.values()))


def found(mutant: Mutant, limit: float) -> tuple[int, Wrong] | None:
    """The seed under which a promise is broken, and which one; `limit`: simulated seconds after which a run hangs."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.change(patch)
        for seed in range(mutant.seed, mutant.seed + RUNS):
            try:
                Simulation(mutant.plans(seed)).play(limit)
            except Wrong as wrong:
                return seed, wrong
    return None

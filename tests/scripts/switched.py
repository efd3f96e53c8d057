"""Trains with plans that change as they are told, before some steps: `switched.py [STEP:KIND:PIECES ...]`."""

from __future__ import annotations

import sys

import keras
import models

import shoal
from shoal import session
from shoal.hook.scopes import Plans
from shoal.planning.candidates import Kind, PlanCandidate
from shoal.planning.correction import StepSeen
from shoal.planning.facts import LinkFacts, PieceTime, PlanFacts, StageFacts
from shoal.planning.replanning import Replan, Replanning

words = [word.split(":") for word in sys.argv[1:]]
orders = {int(step): PlanCandidate(Kind[kind], int(pieces)) for step, kind, pieces in words}


class Ordered(Replanning):
    """Changes when it is told to, whatever steps take."""

    def step(self, seen: StepSeen, total: int, left: int) -> Replan | None:
        assert len(seen.took) == len(seen.members)
        if total not in orders:
            return None
        self.standing = type(self.standing)(orders[total], 1.0)
        return Replan(orders[total], 1.0, f"plan: {orders[total].name} from step {total} on", is_advice=False)


keras.utils.set_random_seed(5)
x, y = models.images()
model = models.compile_for_classes(models.dense(), "adam")
whole = StageFacts((PieceTime(16, 1.0),), 1.0, 1, 1, 1)
facts = PlanFacts(32, (1.0, 1.0), LinkFacts(1e-4, 1e9, 1e9), 0, whole=whole)
first = PlanCandidate(Kind.DATA, 4)
session.current().memory.of(Plans).keep(model, shoal.AllReduce(4), Ordered(facts, first, 1.0))
model.fit(x, y, batch_size=8, epochs=2, verbose=0)
print("pieces", session.current().recorder.pieces, "weights", models.weights_hash(model), flush=True)

"""Rows of tables that a worker reads: for a synchronous step, to validate, to predict, to save. Pure.

    questions ──▶ Pull or List, of some shards ··all answered··▶ over

A question that is unanswered when the view or a connection is new is asked again, of the shard's primary of that view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from shoal.store.messages import List, Listed, Pull, Pulled
from shoal.store.placement import ShardView
from shoal.store.tensors import Array


@dataclass(frozen=True, slots=True)
class Question:
    """Send this to a server, with these arrays beside it."""

    server: str
    message: Pull | List
    beside: Sequence[Array]


class Look:
    """Questions to some shards, one each."""

    def __init__(self, questions: Mapping[int, tuple[Pull | List, Sequence[Array]]], least: int = 0) -> None:
        """By shard: the question, whose view does not matter, and what goes beside it. `least`: the first view that
        counts. Who was a primary before it may not know what was acknowledged since.
        """
        self._questions = questions
        self._least = least
        self._views: Sequence[ShardView] = ()
        self.answers: dict[int, tuple[Pulled | Listed, Sequence[Array]]] = {}

    @property
    def is_over(self) -> bool:
        return len(self.answers) == len(self._questions)

    def take_views(self, views: Sequence[ShardView]) -> list[Question]:
        """Every shard's place in a new view."""
        if views[0].number < self._least:
            return []
        self._views = views
        return self._ask()

    def reconnected(self, server: str) -> list[Question]:
        """The connection to this server was made anew: whatever was on its way may be lost."""
        return [question for question in self._ask() if question.server == server]

    def handle(self, answer: Pulled | Listed, arrays: Sequence[Array]) -> None:
        """Take an answer, if it is one to a question of these."""
        question = self._questions.get(answer.shard)
        if question is None or answer.shard in self.answers:
            return
        match question[0], answer:
            case Pull(batch=asked), Pulled(batch=told) if asked == told:
                self.answers[answer.shard] = (answer, arrays)
            case List(start=start), Listed(start=told_start) if start == told_start:
                self.answers[answer.shard] = (answer, arrays)

    def _ask(self) -> list[Question]:
        return [
            Question(view.primary, msgspec.structs.replace(message, view=view.number), beside)
            for shard, (message, beside) in self._questions.items()
            if shard not in self.answers and shard < len(self._views)
            for view in (self._views[shard],)
            if view.primary is not None
        ]

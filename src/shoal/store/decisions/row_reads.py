"""Rows of tables that a worker reads: for a synchronous step, to validate, to predict, to save. Pure.

questions ──▶ Pull or List, of some shards ··all answered··▶ over
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shoal.store.decisions.placement import Placement, ShardView
from shoal.store.decisions.requests import AbstractRequest, Ask
from shoal.store.values.messages import List, Listed, Pull, Pulled
from shoal.wire.messages import Message


class RowRead(AbstractRequest):
    """Questions to some shards, one each."""

    def __init__(self, questions: Mapping[int, tuple[Pull | List, Sequence[Any]]], least: int = 0) -> None:
        """By shard: the question, whose view does not matter, and what goes beside it. `least`: the first view that
        counts. Who was a primary before it may not know what was acknowledged since.
        """
        self._questions = questions
        self._least = least
        self._views: Sequence[ShardView] = ()
        self.answers: dict[int, tuple[Pulled | Listed, Sequence[Any]]] = {}

    @property
    def is_over(self) -> bool:
        return len(self.answers) == len(self._questions)

    def take_view(self, placement: Placement) -> list[Ask]:
        if placement.number < self._least:
            return []
        self._views = placement.views
        return self._ask()

    def reconnected(self, server: str) -> list[Ask]:
        return [ask for ask in self._ask() if ask.server == server]

    def hear(self, answer: Message, beside: Sequence[Any]) -> list[Ask]:
        if isinstance(answer, Pulled | Listed) and answer.shard not in self.answers:
            question = self._questions.get(answer.shard)
            match question and question[0], answer:
                case Pull(number=asked), Pulled(number=told) if asked == told:
                    self.answers[answer.shard] = (answer, beside)
                case List(start=start), Listed(start=told_start) if start == told_start:
                    self.answers[answer.shard] = (answer, beside)
        return []

    def outlasts_loss(self) -> bool:
        return True

    def _ask(self) -> list[Ask]:
        return [
            Ask(view.primary, msgspec.structs.replace(message, view=view.number), beside)
            for shard, (message, beside) in self._questions.items()
            if shard not in self.answers and shard < len(self._views)
            for view in (self._views[shard],)
            if view.primary is not None
        ]

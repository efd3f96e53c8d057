"""What a worker asks of servers, whatever it is: the one interface through which the client carries it. Pure.

    begins ──take_view──▶ questions ··answers, hear··▶ over
                              ▲
                              └── take_view, reconnected: what is unanswered is asked again

    WeightsRead   all weights, before an update is computed, at the end of an epoch, in a pause
    Delivery      one update, or weights that replace others, pushed to some shards
    RowRead       rows of tables, beside training
    Gathering     what servers write of a checkpoint

A request knows nothing of the others that go on. It holds no connection and no thread: arrays are tokens, given to it
beside an answer and handed on beside a question. A refusal is never answered: the view that it speaks of is on its way,
and comes with `take_view`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.store.decisions.placement import Placement
from shoal.wire.messages import Message


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this to a server, with these arrays beside it."""

    server: str
    message: Message
    beside: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class KeepNewest:
    """These are the newest weights of a shard that this worker has seen, for a server that lacks them."""

    shard: int
    version: int
    weights: Sequence[Any]


RequestDecision = Ask | KeepNewest


class AbstractRequest(ABC):
    """One thing that a worker wants of servers, from its first question to its last answer."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Nothing is unanswered. A new view may change that, if a shard was lost in it."""

    @abstractmethod
    def take_view(self, placement: Placement) -> Sequence[RequestDecision]:
        """Every shard's place in a new view. One that is too old for this request is not heeded."""

    @abstractmethod
    def reconnected(self, server: str) -> Sequence[RequestDecision]:
        """The connection to this server was made anew: whatever was on its way may be lost."""

    @abstractmethod
    def hear(self, answer: Message, beside: Sequence[Any]) -> Sequence[RequestDecision]:
        """A server has said this. What is no answer to this request is not heeded."""

    @abstractmethod
    def outlasts_loss(self) -> bool:
        """The others have taken this worker for lost, and go on without it. Whether the request goes on all the same;
        if it does not, nobody asks it anything more.
        """

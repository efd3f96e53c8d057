"""The door of this room: groups of workers, how to form one, and the worker group that lasts from view to view."""

from shoal.collectives.abstract import AbstractExchange, AbstractGroup, Outcome, Result
from shoal.collectives.alone import Alone
from shoal.collectives.formation import form
from shoal.collectives.peers import PeerGroup
from shoal.collectives.residuals import Residuals
from shoal.collectives.shared import prepare_bucket
from shoal.collectives.vector_encoding import VectorEncoding
from shoal.collectives.worker_group import Gathered, StateKeeper, WorkerGroup

__all__ = [
    "AbstractExchange",
    "AbstractGroup",
    "Alone",
    "Gathered",
    "Outcome",
    "PeerGroup",
    "Residuals",
    "Result",
    "StateKeeper",
    "VectorEncoding",
    "WorkerGroup",
    "form",
    "prepare_bucket",
]

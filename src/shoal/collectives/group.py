"""The door of this room: groups of workers, how to form one, and the company that lasts from view to view."""

from shoal.collectives.abstract import AbstractExchange, AbstractGroup, Outcome, Result
from shoal.collectives.alone import Alone
from shoal.collectives.company import Company, Keeper, Told
from shoal.collectives.formation import form
from shoal.collectives.peers import PeerGroup
from shoal.collectives.shared import prepare_bucket

__all__ = [
    "AbstractExchange",
    "AbstractGroup",
    "Alone",
    "Company",
    "Keeper",
    "Outcome",
    "PeerGroup",
    "Result",
    "Told",
    "form",
    "prepare_bucket",
]

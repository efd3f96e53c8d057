"""The door of this room: groups of workers, and how to form one."""

from shoal.collectives.abstract import AbstractExchange, AbstractGroup, Outcome
from shoal.collectives.alone import Alone
from shoal.collectives.formation import form
from shoal.collectives.peers import PeerGroup

__all__ = ["AbstractExchange", "AbstractGroup", "Alone", "Outcome", "PeerGroup", "form"]

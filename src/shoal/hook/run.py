"""What the hook asks of the run that this process takes part in. The session answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

from shoal.cluster.deposits import Deposits
from shoal.collectives.group import Company
from shoal.config import Saving, Servers
from shoal.hook.calls import Calls
from shoal.store.client import Client, Weights
from shoal.store.ledger import Ledger
from shoal.store.saves import Scribe
from shoal.store.server import Kept, Server
from shoal.store.tensors import AnyShapes, Tensors


class Run(Protocol):
    """The run, as one of its workers sees it."""

    @property
    def me(self) -> str:
        """This worker's id."""

    @property
    def saving(self) -> Saving | None:
        """Where and how often checkpoints are written, if at all."""

    @property
    def drains(self) -> bool:
        """Whether this worker should leave after its step."""

    def leave(self) -> NoReturn:
        """Gives up the seat; raises RunEnded."""

    @property
    def deposits(self) -> Deposits:
        """What is left for workers that come when all others are gone."""

    trained: int  # steps of the whole run so far

    calls: Calls  # of the script

    @property
    def workers(self) -> int:
        """How many the run was started with."""

    @property
    def is_plain(self) -> bool:
        """Whether there will never be another worker, nor anything else that Keras alone does not do."""

    @property
    def is_chief(self) -> bool: ...

    @property
    def pieces(self) -> int | None:
        """What the command line said; None if it said nothing."""

    @property
    def check_every(self) -> int:
        """Steps between two comparisons of the workers' weights."""

    @property
    def company(self) -> Company:
        """All workers, whoever they are at the moment."""

    @property
    def servers(self) -> Servers | None:
        """The run's parameter servers, if it has some."""

    @property
    def is_server(self) -> bool:
        """Whether this process is one of them."""

    def client(self, call: int, shapes: Sequence[AnyShapes], initial: Weights | None, ahead: int) -> Client:
        """For a worker: its part in the store of a training."""

    def server(
        self,
        call: int,
        shapes: Sequence[AnyShapes],
        make: Callable[[int], Tensors],
        scales: bool,
        scribe: Scribe | None,
        ledger: Ledger,
        kept: Mapping[int, Kept],
    ) -> Server:
        """For a server: the same."""

    def wait_in(self, call: int) -> bytes | None:
        """For a worker that came late: waits to be let in; what the call returned, if it is over before that."""

    def result_of(self, call: int) -> bytes:
        """Waits for what a call returned in which this process took no part."""

    def candidates(self, call: int) -> tuple[str, ...]:
        """Workers that have come late to this call and could be let in."""

    def say(self, doing: str, step: int | None = None) -> None:
        """What this worker does now, for `shoal status` and for errors."""

    def rest(self) -> None:
        """A call of fit, evaluate or predict is over: the script goes on."""

    def count(self, samples: int) -> None:
        """Samples that a committed step has trained on."""

    def announce(self, what: str, path: str) -> None:
        """Tells the other workers that the chief has written a file they may wait for."""

    def wait_for_chief(self, what: str, path: str) -> bool:
        """Waits for such an announcement; False, if this worker is the chief or becomes it meanwhile."""

"""What the hook asks of the run that this process takes part in. The session answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol, TypeVar

from shoal.cluster.figures import GlobalFigures
from shoal.cluster.snapshot_files import SnapshotFiles
from shoal.codecs.codec import AbstractCodec
from shoal.collectives.group import WorkerGroup
from shoal.config import Saving, Servers
from shoal.files import Files
from shoal.observe.counters import Counters
from shoal.observe.phases import Phase
from shoal.observe.story import StoryKind
from shoal.store.client import Client
from shoal.store.decisions.saves import ShardWriter
from shoal.store.decisions.worker_state import Weights
from shoal.store.server import KeptShard, Server
from shoal.store.values.ledger import Ledger
from shoal.store.values.tensors import AnyShapes, Tensors
from shoal.training.calls import Calls
from shoal.training.memory import Memory

Value = TypeVar("Value")


class Run(Protocol):
    """The run, as one of its workers sees it."""

    @property
    def me(self) -> str:
        """This worker's id."""

    @property
    def saving(self) -> Saving | None:
        """Where and how often checkpoints are written, if at all."""

    @property
    def own_folder(self) -> str | None:
        """None: all hosts see one folder of checkpoints. Otherwise the host whose folder this worker's is; empty: it
        has none.
        """

    save_now: bool  # somebody has asked for a checkpoint; taken back when one begins

    @property
    def drains(self) -> bool:
        """Whether this worker should leave after its step."""

    def leave(self) -> NoReturn:
        """Leaves the run; raises RunEnded."""

    @property
    def snapshots(self) -> SnapshotFiles:
        """What is left for workers that come when all others are gone."""

    trained: int  # steps of the whole run so far, on whichever workers
    seen: int  # samples in them

    calls: Calls  # of the script

    memory: Memory  # of this process, from call to call

    files: Files | None  # of the script, if other processes run it too

    rank_was_asked: bool  # whether the script asked for this worker's rank: its data and files may depend on it

    @property
    def workers(self) -> int:
        """How many the run was started with."""

    @property
    def is_single(self) -> bool:
        """Whether this process alone executes the script, now and later."""

    @property
    def backend(self) -> str | None:
        """The one that the run was started for; None without `shoal run`."""

    @property
    def is_plain(self) -> bool:
        """Whether there will never be another worker, nor anything else that Keras alone does not do."""

    @property
    def is_chief(self) -> bool: ...

    @property
    def pieces(self) -> int | None:
        """What the command line said; None if it said nothing."""

    @property
    def compress(self) -> str | None:
        """The codec of gradients that the command line named; None if it named none."""

    @property
    def mesh(self) -> str | None:
        """What the command line said of each worker's devices, or what follows from how many it has."""

    @property
    def mesh_hosts(self) -> int:
        """Processes of each worker."""

    def give_up(self, error: Exception) -> None:
        """Says why this worker can't go on, and ends the process at once, from any thread."""

    @property
    def check_every(self) -> int:
        """Steps between two comparisons of the workers' weights."""

    @property
    def worker_group(self) -> WorkerGroup:
        """All workers, whoever they are at the moment."""

    @property
    def servers(self) -> Servers | None:
        """The run's parameter servers, if it has some."""

    @property
    def stages(self) -> int | None:
        """With strategy pipeline: what the command line said."""

    @property
    def speeds(self) -> tuple[float, ...]:
        """The same: of the workers by rank, relative to each other; empty if it said nothing."""

    @property
    def sliced(self) -> bool:
        """Whether the command line said that updates are sliced."""

    @property
    def memory_limit(self) -> int | None:
        """Bytes that each worker may use, as the command line said; None if it said nothing."""

    @property
    def only_plans(self) -> bool:
        """Whether nothing is to be trained: somebody wants to know how it would be best trained."""

    def hand_over(self, facts: bytes) -> None:
        """Where there are only plans: gives what was measured to whoever wants it, and does not return."""

    def expect(self, plan: str, seconds: float) -> None:
        """Steps from now on are expected to take so long, by this plan: what they take is told in the story."""

    @property
    def every(self) -> int | None:
        """With strategy local: steps between two exchanges, if the command line said so."""

    @property
    def strategy(self) -> str:
        """The name of the strategy that the command line said."""

    @property
    def is_server(self) -> bool:
        """Whether this process is one of them."""

    def client(
        self, call: int, shapes: Sequence[AnyShapes], initial: Weights | None, ahead: int, codec: AbstractCodec
    ) -> Client:
        """For a worker: its part in the store of a training."""

    def server(
        self,
        call: int,
        shapes: Sequence[AnyShapes],
        make: Callable[[int], Tensors],
        scales: bool,
        shard_writer: ShardWriter | None,
        ledger: Ledger,
        kept: Mapping[int, KeptShard],
        codec: AbstractCodec,
    ) -> Server:
        """For a server: the same."""

    def wait_in(self, call: int) -> bytes | None:
        """For a worker that came late: waits to be let in; what the call returned, if it is over before that."""

    def result_of(self, call: int) -> bytes:
        """Waits for what a call returned in which this process took no part."""

    def candidates(self, call: int) -> tuple[str, ...]:
        """Workers that have come late to this call and could be let in."""

    def record(self, phase: Phase, detail: str = "", step: int | None = None) -> None:
        """What this worker does now, for `shoal status` and for errors."""

    @property
    def counters(self) -> Counters:
        """What this worker counts, for `shoal doctor`."""

    def rest(self) -> None:
        """A call of fit, evaluate or predict is over: the script goes on."""

    def script_line(self) -> str:
        """`train.py:41: `, for the beginning of a message: the line of the script that is being run."""

    def happened(self, kind: StoryKind, text: str, step: int | None = None) -> None:
        """For the run's story, from the chief."""

    def tell(self, text: str, below_bar: bool = False) -> None:
        """One line for the user, from the chief, the first time that it is said. `below_bar`: Keras shows its own."""

    def count(self, samples: int, pieces: int | None = None) -> None:
        """Samples that a committed step has trained on, and the pieces that batches are cut into."""

    def show(self, logs: Mapping[str, object]) -> None:
        """The logs of a step or an epoch, as the callbacks get them: for whoever watches the run."""

    def figures(self) -> GlobalFigures | None:
        """Of all workers together; None if nobody coordinates them. Waits for an answer; WireError if there is none."""

    def announce(self, what: str, path: str, failure: bytes = b"") -> None:
        """Tells the other workers that the chief has written a file they may wait for, or why it failed."""

    def unfollowed(self, act: Callable[[], Value]) -> Value:
        """Does something to files of which the other workers hear otherwise."""

    def wait_for_chief(self, what: str, path: str) -> bytes | None:
        """Waits for such an announcement, and gives what it says of a failure; None if this worker has to do it: it is
        the chief, or becomes it meanwhile.
        """

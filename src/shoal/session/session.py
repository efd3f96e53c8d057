"""One process's part in a run: the order of calls and nothing else."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from shoal import hook
from shoal.checkpoint.addresses import place_of
from shoal.checkpoint.resumed import look_into
from shoal.cluster.announcements import Announcements
from shoal.cluster.asking import ask
from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.cluster.figures import GlobalFigures, figures
from shoal.cluster.messages import StatusReply, StatusRequest, WorkDone
from shoal.cluster.snapshot_files import SnapshotFiles
from shoal.cluster.view import View, role_of
from shoal.codecs.codec import AbstractCodec
from shoal.collectives.group import AbstractGroup, Alone, WorkerGroup, form
from shoal.config import Deadlines, RunConfig, Saving, Servers
from shoal.errors import RunEnded
from shoal.files import Chief, Files
from shoal.hook.patching.script_line import at_script_line
from shoal.hook.profiling import StepProfile
from shoal.observe.counters import Counters
from shoal.observe.phases import Phase
from shoal.observe.record_keeper import RecordKeeper
from shoal.observe.recorder import Recorder, Waited
from shoal.observe.story import Story, StoryKind
from shoal.planning.pace import StepPace
from shoal.session.chief_watch import ChiefWatch
from shoal.session.user_lines import UserLines
from shoal.store.client import Client
from shoal.store.decisions.saves import ShardWriter
from shoal.store.decisions.worker_state import Weights
from shoal.store.server import KeptShard, Server
from shoal.store.values.ledger import Ledger
from shoal.store.values.tensors import AnyShapes, Tensors
from shoal.training.calls import Calls
from shoal.training.memory import Memory
from shoal.training.run import Value
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.wakeup import Wakeup

# Of a plain `python script.py`, which nobody has started with `shoal run`.
ALONE = RunConfig("", 1, 1, "jax", "", transport="tcp", deadlines=Deadlines(stall=0.0))


class Session:
    """This process in its run. Without a run (a plain `python script.py`) it is a run of one worker."""

    def __init__(
        self,
        me: str = "worker-0",
        config: RunConfig = ALONE,
        coordinator_link: CoordinatorLink | None = None,
        listener: Listener | None = None,
        key: RunKey | None = None,
        on_training: Callable[[], None] | None = None,
        folder: Path | None = None,
        files: Files | None = None,
        nearby: Listener | None = None,
        record_keeper: RecordKeeper | None = None,
        profile: StepProfile | None = None,
        planner: Callable[[bytes], None] | None = None,
    ) -> None:
        """Workers of the same host come to `nearby`, where there is one, and all others to `listener`.

        `planner`: gets what was measured when the script would train, and does not return.
        """
        self._planner = planner
        self._pace: StepPace | None = None
        self._me = me
        self._nearby = nearby
        self._record_keeper = record_keeper
        self._profile = profile
        self.files = files
        self._folder = folder
        self.snapshots = SnapshotFiles(folder)
        self._config = config
        self.coordinator_link = coordinator_link
        self._listener = listener
        self._key = key
        self._on_training = on_training
        self._worker_group: WorkerGroup | None = None
        self.recorder = coordinator_link.recorder if coordinator_link is not None else Recorder(ring=0)
        self.calls = Calls(
            coordinator_link,
            look_into(place_of(config.resume)) if config.resume is not None else None,
            lambda: self.worker_group.is_late,
            self.record,
            lambda: self.takes_part,
            config.deadlines.stall,
            files.come if files is not None else lambda: None,
        )
        self.memory = Memory()
        self.trained = 0
        self.seen = 0
        self.at_good_end: Callable[[], None] | None = None  # what the chief does when all have finished
        # A script that never asks for its rank can't mean other data or other files on one worker than on the others.
        self.rank_was_asked = False
        story = Story(Path(config.logs)) if config.logs else None
        self._user_lines = UserLines(story, me, coordinator_link.happened if coordinator_link is not None else None)
        self._chief_watch, self._announcements = None, None
        if coordinator_link is not None:
            self._chief_watch = ChiefWatch(coordinator_link, folder, self._attend)
            self._announcements = Announcements(coordinator_link, config.deadlines, self._attend)

    @property
    def rank(self) -> int:
        """This worker's place among the others; one that has come late, and is not in yet, stands behind them."""
        if self.coordinator_link is None:
            return 0
        view = self.coordinator_link.view
        return view.rank(self._me) if view.has(self._me) else len(view.workers)

    @property
    def size(self) -> int:
        return len(self.coordinator_link.view.workers) if self.coordinator_link is not None else 1

    @property
    def workers(self) -> int:
        """How many the run was started with."""
        return self._config.workers

    @property
    def backend(self) -> str | None:
        """The one that the run was started for; None without `shoal run`."""
        return self._config.backend if self.coordinator_link is not None or self.only_plans else None

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def is_single(self) -> bool:
        return self._config.is_single

    @property
    def is_plain(self) -> bool:
        """One worker, now and later, and nothing to write or to go on from: Keras does it all."""
        return self._config.is_plain

    @property
    def pieces(self) -> int | None:
        """What the command line said."""
        return self._config.pieces

    @property
    def compress(self) -> str | None:
        """The codec of gradients that the command line named."""
        return self._config.compress

    @property
    def mesh(self) -> str | None:
        """How each worker uses its devices, if they are several."""
        return self._config.mesh

    @property
    def mesh_hosts(self) -> int:
        return self._config.mesh_hosts

    def give_up(self, error: Exception) -> None:
        """Of the process nothing is left to save: its main thread may be in a call that never returns."""
        print(f"shoal: {error}", file=sys.stderr, flush=True)
        if self.coordinator_link is not None:
            self.coordinator_link.fail(error, str(error))
        os._exit(1)

    @property
    def check_every(self) -> int:
        """Steps between two comparisons of the workers' weights."""
        return self._config.check_every

    @property
    def worker_group(self) -> WorkerGroup:
        """All workers of the run. They connect when they first do something together."""
        if self._worker_group is None:
            self._worker_group = WorkerGroup(
                self._me,
                self.coordinator_link,
                self._form,
                self._config.deadlines.stall,
                self._config.least is not None,
                self._config.is_on_one_host,
                partial(self.record, Phase.WAITING),
                self.calls.take,
            )
        return self._worker_group

    @property
    def takes_part(self) -> bool:
        """Whether this is a worker that does what all others do; one that came late does, once it was let in."""
        return not self.is_server and not self.worker_group.is_late

    # Parameter servers ----------------------------------------------------------------------------------

    @property
    def servers(self) -> Servers | None:
        return self._config.servers

    @property
    def stages(self) -> int | None:
        """What the command line said, with strategy pipeline."""
        return self._config.stages

    @property
    def speeds(self) -> tuple[float, ...]:
        """What the command line said, with strategy pipeline."""
        return self._config.speeds

    @property
    def sliced(self) -> bool:
        return self._config.sliced

    @property
    def memory_limit(self) -> int | None:
        """What the command line said."""
        return self._config.memory

    @property
    def only_plans(self) -> bool:
        return self._planner is not None

    def hand_over(self, facts: bytes) -> None:
        assert self._planner is not None
        self._planner(facts)

    def expect(self, plan: str, seconds: float) -> None:
        self.recorder.plan = plan
        self._pace = StepPace(seconds)

    @property
    def every(self) -> int | None:
        """What the command line said, with strategy local."""
        return self._config.every

    @property
    def strategy(self) -> str:
        """What the command line said."""
        return self._config.strategy

    @property
    def is_server(self) -> bool:
        return role_of(self._me) == "server"

    def client(
        self, call: int, shapes: Sequence[AnyShapes], initial: Weights | None, ahead: int, codec: AbstractCodec
    ) -> Client:
        assert self.coordinator_link is not None
        assert self._key is not None
        patience = self._config.deadlines.stall
        link, traffic = self.coordinator_link, self.counters.traffic
        observed = self.counters.staleness
        return Client(self._me, call, link, self._key, shapes, initial, ahead, codec, patience, traffic, observed)

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
        assert self.coordinator_link is not None
        assert self._key is not None
        assert self._listener is not None
        return Server(
            self._me,
            call,
            self.coordinator_link,
            self._listener,
            self._key,
            shapes,
            make,
            scales,
            kept,
            codec,
            shard_writer,
            ledger,
        )

    def wait_in(self, call: int) -> bytes | None:
        """Until this worker, which came late, is let in; or what the call returned, if it is over before that."""
        assert self.coordinator_link is not None
        while not (view := self.coordinator_link.view).has(self._me):
            self.coordinator_link.ready(call)
            result = self.coordinator_link.wait_result_or_view(call, view.number)
            if result is not None:
                return result
        return None

    def result_of(self, call: int) -> bytes:
        """What a call of the script returned, in which this process took no part."""
        assert self.coordinator_link is not None
        while (kept := self.coordinator_link.wait_result_or_view(call, self.coordinator_link.view.number)) is None:
            pass
        return kept

    # Leaving and saving ----------------------------------------------------------------------------------

    @property
    def drains(self) -> bool:
        return self.coordinator_link is not None and self.coordinator_link.drain is not None

    def leave(self) -> NoReturn:
        assert self.coordinator_link is not None
        self.coordinator_link.leave()
        raise RunEnded(f"it has left the run: {self.coordinator_link.drain}")

    def drain(self, why: str) -> None:
        """Leave after the step that is going on, if there is one; otherwise at once. For signal handlers."""
        assert self.coordinator_link is not None
        self.coordinator_link.drain = why
        if self.calls.going_on is None:
            self.leave()

    @property
    def saving(self) -> Saving | None:
        return self._config.saving

    @property
    def own_folder(self) -> str | None:
        return self._config.own_folder

    @property
    def save_now(self) -> bool:
        return self.coordinator_link is not None and self.coordinator_link.save_now

    @save_now.setter
    def save_now(self, asked: bool) -> None:
        if self.coordinator_link is not None:
            self.coordinator_link.save_now = asked

    @property
    def me(self) -> str:
        return self._me

    def candidates(self, call: int) -> tuple[str, ...]:
        if self.coordinator_link is None:
            return ()
        return tuple(candidate.id for candidate in self.coordinator_link.candidates if candidate.call == call)

    # What this worker does ------------------------------------------------------------------------------

    def record(self, phase: Phase, detail: str = "", step: int | None = None) -> None:
        """What this worker does now: `shoal status` and every error shows it. Costs next to nothing."""
        self.recorder.record(phase, detail, step)

    @property
    def is_in_script(self) -> bool:
        """Whether it is in the script's own lines: no call of fit, evaluate or predict goes on, nor has one raised."""
        return self.recorder.now.activity.phase.is_scripts

    def rest(self) -> None:
        """A call of fit, evaluate or predict is over: the script goes on."""
        self.record(Phase.SCRIPT)

    def count(self, samples: int, pieces: int | None = None) -> None:
        """Samples that a committed step has trained on, and the pieces that batches are cut into."""
        if self._on_training is not None:
            self._on_training()
            self._on_training = None
        self.recorder.count(samples, pieces)
        if self._pace is not None and (text := self._pace.step(time.perf_counter())):
            self.happened(StoryKind.PLAN, text, self.trained)

    def show(self, logs: Mapping[str, object]) -> None:
        """The logs of a step or an epoch, as the callbacks get them."""
        self.recorder.logs = dict(logs)  # callbacks may change theirs

    def figures(self) -> GlobalFigures | None:
        """Of all workers together, as the coordinator knows them; None without one. WireError if it does not answer."""
        if self._folder is None:
            return None
        reply = ask(self._folder, StatusRequest())
        return figures(reply) if isinstance(reply, StatusReply) else None

    @property
    def counters(self) -> Counters:
        """Of this worker, for `shoal doctor`."""
        return self.recorder.counters

    def script_line(self) -> str:
        return at_script_line()

    def happened(self, kind: StoryKind, text: str, step: int | None = None) -> None:
        """For the run's story, from the chief. On another host than the launcher's it is sent there."""
        if self.is_chief:
            self._user_lines.happened(kind, text, step)

    def tell(self, text: str, below_bar: bool = False) -> None:
        """One line for the user: from the chief, and once, however often a script trains."""
        if self.is_chief:
            self._user_lines.tell(text, below_bar)

    def announce(self, what: str, path: str, failure: bytes = b"") -> None:
        """Tells the other workers that the chief has written a file they may wait for, or why it failed."""
        if self._announcements is not None:
            self._announcements.announce(what, self._as_the_chief_says(path), failure)

    def wait_for_chief(self, what: str, path: str) -> bytes | None:
        """Waits until the chief has written a file: returns nothing, or why it failed. None if this worker has to."""
        if self._announcements is None:
            return None
        self.calls.settle()
        path = self._as_the_chief_says(path)
        self.record(Phase.WAITING, f"for the chief to {what} {path}")
        waited = self._announcements.wait(what, path, self.calls.going_on)
        self.rest()
        if waited is not None and self.files is not None:
            self.files.settle(path)
        return waited

    def check_script(self) -> None:
        """The script has come to its end. Raises if what it trained was no part of the run."""
        hook.check(self)

    def _as_the_chief_says(self, path: str) -> str:
        return path if self.files is None else self.files.as_the_chief_says(path)

    # The script's files -----------------------------------------------------------------------------------

    def unfollowed(self, act: Callable[[], Value]) -> Value:
        return act() if self.files is None else self.files.unfollowed(act)

    @property
    def is_in_call(self) -> bool:
        return self.calls.going_on is not None

    def chief(self) -> Chief:
        assert self._chief_watch is not None
        return self._chief_watch.chief()

    def pause(self, seconds: float) -> None:
        """Sleeps; less if the run changes. Raises if it is over."""
        assert self._chief_watch is not None
        self._chief_watch.pause(seconds)

    def _attend(self) -> None:
        """This worker waits, and others may need it: only where it is the script's thread that waits, not another."""
        if self._worker_group is not None and threading.current_thread() is threading.main_thread():
            self._worker_group.attend_newest()

    def close(self, ok: bool) -> None:
        """Leaves the run. After a good end it waits for the others: they may still need this worker's last result."""
        if self._profile is not None:
            self._profile.close()
        if self.files is not None and ok:
            self.files.over()
        hook.end_group(self)
        if self.coordinator_link is not None and ok:
            self.calls.settle()
            hook.leave_servers(self)
            self._close_record(is_over=False)
            spent, counted = self.recorder.shares(), self.counters.figures()
            self.coordinator_link.done(WorkDone(dict(self.calls.made), self.trained, self.seen, spent, counted))
            worker_group = (
                self._worker_group if self._worker_group is not None and self._worker_group.has_acted else None
            )
            while not self.coordinator_link.wait_end(after=worker_group.view if worker_group else None):
                assert worker_group is not None
                worker_group.attend()
            if self.at_good_end is not None and self.is_chief:
                self.at_good_end()
        if self._worker_group is not None:
            self._worker_group.close()
        self._close_record()
        for listener in (self._listener, self._nearby):
            if listener is not None:
                listener.close()
        if self.coordinator_link is not None:
            self.coordinator_link.close()
        if self.files is not None:
            self.files.close()

    def _close_record(self, is_over: bool = True) -> None:
        """On another host, while the coordinator still listens."""
        if self._record_keeper is not None and (is_over or not self._config.logs):
            self._record_keeper.close()

    def _form(self, view: View, wakeup: Wakeup) -> AbstractGroup:
        if self.coordinator_link is None or self._listener is None or self._key is None:
            return Alone(self._me)
        return form(
            view,
            self._me,
            self._listener,
            self._key,
            self._config.transport,
            self._config.deadlines,
            wakeup,
            self._wait,
            self._nearby,
            self.counters.traffic,
        )

    def _wait(self, waiting: bool, waits: Sequence[Waited] = ()) -> None:
        """Whether this worker is in an exchange, where it can't go on unless all come; and when it waited there."""
        self.recorder.wait(waits)
        self.recorder.exchange(waiting)
        if self.files is not None:
            self.files.meet(waiting)

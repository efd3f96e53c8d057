"""Local training: each replica takes some steps by itself, then all of them meet (local SGD, DiLoCo).

The order of a round: every replica starts from the same weights → its steps, each on its own part of a batch → how far
it has moved, averaged over the replicas along the piece tree → the outer optimizer takes that as a gradient → the next
round. Replica r computes piece r of every batch, whoever hosts it. A round counts when its exchange has committed; if
somebody is lost before that, the round is done again from its start by those who are left. To callbacks a round is
what `steps_per_execution` steps are: they are called before and after it. A round ends with its epoch at the latest.

Where they are `uneven`, replicas of fast workers take more of a round's pieces (strategies/inner_counts.py). How many
is decided when the round before has committed, from what all have heard in it, and is part of where the fit stands:
whoever does the round, and however often, takes the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from shoal.checkpoint.addresses import Place
from shoal.checkpoint.tensor_names import OUTER, TensorName, kind_of_replica, kind_of_replicas_weights
from shoal.codecs.codec import AS_THEY_ARE
from shoal.collectives.group import AbstractGroup, Result
from shoal.data.columns import pack
from shoal.data.order import piece_bounds, pieces_of
from shoal.data.sources import Taken
from shoal.errors import UsageError
from shoal.observe.phases import Phase
from shoal.observe.story import StoryKind
from shoal.strategies.abstract import RoundSettings
from shoal.strategies.allreduce import Division, Exchanged, Reduction
from shoal.strategies.inner_counts import counts_for, counts_of, dealt_pieces
from shoal.strategies.notes import Note, stopped
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape, to_float
from shoal.training.left_out import left_out_tensors, resume_left_out
from shoal.training.logs import Logs
from shoal.training.model_state import fingerprint
from shoal.training.outer import OuterOptimizer
from shoal.training.prepared import FitArguments, Prepared
from shoal.training.replica_states import ReplicaStates
from shoal.training.replicas import HostedReplicas, InnerSteps, RoundStart, round_shape
from shoal.training.resuming import resume_replicas
from shoal.training.run import Run
from shoal.training.saving import ReplicaTensors
from shoal.training.together import AbstractTrainingTogether

_ROWS_AT_ONCE = 1 << 26  # bytes of rows that a worker with several replicas holds: each goes over them before the next
_SEVERAL = 2  # replicas: who hosts fewer never swaps them, and needs no rows at once
_OF_CHECKPOINT = 2  # values of a state that a checkpoint has too; a newcomer is told one more


class LocalTraining(AbstractTrainingTogether):
    """A `fit` in which replicas take steps of their own, and meet after every so many of them."""

    holds_apart = "the state of LocalSGD's replicas"

    def __init__(
        self,
        run: Run,
        prepared: Prepared,
        arguments: FitArguments,
        call: int,
        settings: RoundSettings,
        outer: OuterOptimizer,
    ) -> None:
        super().__init__(run, prepared, arguments, call)
        replicas = self._replicas = settings.replicas
        self._every = settings.every
        self._uneven = settings.uneven
        self._dealt: list[tuple[int, ...]] = []  # the pieces of each batch of this round, by replica
        self._outer = outer
        variables = self._engine.variables
        self._moves = round_shape(variables, self._shape)
        self._touched = [variables.weights[i] for i in (*self._moves.gradients, *self._moves.changed)]
        self._division = Division(replicas)
        self._copies = settings.copies
        self._met = self._met_shape()
        self._reduction = self._reduction_of(self._met, "fit")
        self._inner = InnerSteps(run, self._engine, self._shape)
        rates = {id(variable) for variable in self._optimizer.rates()}  # callbacks set them, for all replicas
        own = [variable for variable in variables.optimizer if id(variable) not in rates]
        weights = self._own_weights()
        self._states = ReplicaStates(self._engine, own, replicas, self._tell_of_lost_states, settings.copies, weights)
        self._hosted = range(0)  # the replicas whose states of the last round are this worker's
        self._round_start: RoundStart | None = None  # of the round that goes on: the model is not at it

    def _met_shape(self) -> PartShape:
        """What all replicas give out when they meet after a round."""
        return self._moves

    def _own_weights(self) -> Sequence[Any]:
        """Those that each replica has its own of from round to round."""
        return ()

    def _reduction_of(self, shape: PartShape, what: str | None) -> Reduction:
        return Reduction(
            self._run.worker_group,
            shape.schema,
            self._division,
            what,
            codec=self._prepared.codec if shape.gradients else AS_THEY_ARE,
            on_lost=self._tell_of_lost_residuals,
            copies=self._copies,
        )

    @property
    def _reductions(self) -> list[Reduction]:
        return [self._reduction]

    def prepare(self) -> None:
        """For a newcomer, before it is let in."""
        for reduction in self._reductions:
            reduction.prepare()

    def close(self) -> None:
        self._put_back()
        super().close()
        for reduction in self._reductions:
            reduction.close()
        self._states.close()

    def _start(self) -> None:
        path = self._run.calls.resumes(self._call)
        self._resume(served=False)
        if path is not None:
            self._resume_replicas(path)
            resume_left_out(self._run, path, self._reductions)

    def _resume_replicas(self, path: Place) -> None:
        """Go on with what a checkpoint has of the replicas. Collective."""
        numbers = list(self._numbers().values())
        weights = [(variable.path, tuple(variable.shape)) for variable in self._states.weights]
        kept = resume_replicas(self._run.worker_group, path, self._replicas, numbers, self._outer.named(), weights)
        if kept is None:
            self._run.tell(f"{path.name} is of a training without replicas: all begin with its optimizer's state")
            return
        self._outer.set_state(kept.outer)
        alike = [np.array(self._engine.read(variable)) for variable in self._states.weights]
        states = [[*state, *alike][: len(numbers) + len(alike)] for state in kept.states]
        self._host(lambda group, shares: self._states.begin_with(group, shares, states))
        self._states.commit()
        self._show_state()

    def _host(self, settle: Callable[[AbstractGroup, tuple[range, ...]], None]) -> None:
        """Between two rounds: every replica's state is with a worker that is there. Collective."""

        def act(group: AbstractGroup) -> Result:
            shares = self._division.balance.shares(self._replicas, group.members)
            settle(group, shares)
            group.gather("fit: all replicas are there", b"")
            mine = {member: (run.start, run.stop) for member, run in zip(group.members, shares, strict=True)}
            return Result([msgspec.msgpack.encode(mine)], [])

        (told,), _ = self._run.worker_group.commit(act)
        self._hosted = range(*msgspec.msgpack.decode(told, type=dict[str, tuple[int, int]])[self._run.me])

    def _end(self) -> None:
        self._save_last()
        self._show_first()
        if self._arguments.epochs > 0:
            self._outer.finish()

    def _show_first(self) -> None:
        """All models get the optimizer state of replica 0, from which a next fit begins, whoever is chief then."""
        if not self._states.are_kept:
            return

        def act(group: AbstractGroup) -> Result:
            shares = self._division.balance.shares(self._replicas, group.members)
            self._states.settle(group, shares)
            giver = next(rank for rank, share in enumerate(shares) if 0 in share)
            given = Result([], [np.array(value) for value in self._states.of(0) or ()]) if giver == group.rank else None
            takers = set(range(group.size)) - {giver}
            taken = group.pass_on("the first replica's optimizer", giver, takers, given)
            found = given or taken
            assert found is not None
            return found

        self._states.show(self._run.worker_group.commit(act).arrays)

    # Checkpoints ------------------------------------------------------------------------------------

    def _numbers(self) -> dict[int, int]:
        """Of the optimizers' variables that each replica has, in their order: the numbers in a checkpoint, by id."""
        known = {id(variable): number for number, variable in self._optimizer.known(self._engine.variables).items()}
        return {id(variable): known[id(variable)] for variable in self._states.variables}

    def _begin_checkpoint(self) -> None:
        assert self._saver is not None
        if self._states.are_kept:  # who hosted a replica in the last round may be gone
            self._host(self._states.settle)
        left_out = left_out_tensors(self._reductions)
        group, run, at = self._run.worker_group, self._run, self._at
        given, outer = self.give(), self._outer.state()
        count = len(given.arrays) - len(outer)
        told = Result(given.values[:_OF_CHECKPOINT], given.arrays[:count])
        replicas = ReplicaTensors(self._named_outer(outer), self._named_states(), self._needed())
        returned = run.calls.returned
        self._saver.begin(
            at.trained,
            group.view,
            group.members,
            told,
            self._call,
            returned,
            run.is_chief,
            replicas=replicas,
            left_out=left_out,
        )

    def _named_outer(self, values: Sequence[Array]) -> dict[str, Array]:
        named = zip(self._outer.named(), values, strict=True)
        return {str(TensorName(OUTER, number, path)): value for number, ((path, _), value) in enumerate(named)}

    def _needed(self) -> dict[str, int]:
        """How many tensors of each kind a checkpoint has of all replicas."""
        states, replicas = self._states, range(self._replicas)
        own = {kind_of_replica(replica): len(states.variables) for replica in replicas if replica}
        weights = len(states.weights) if states.are_kept else 0
        return {OUTER: len(self._outer.named())} | own | {kind_of_replicas_weights(r): weights for r in replicas}

    def _named_states(self) -> dict[str, Array]:
        """Of the replicas that this worker hosts. Before the first round all have what the model's optimizer has."""
        hosted = self._hosted
        if not self._states.are_kept:
            hosted = range(self._replicas if self._run.is_chief else 0)
        named = {}
        for replica in hosted:
            values = self._states.of(replica) or self._states.read()
            for variable, value in zip(self._states.variables, values, strict=True):
                number = self._numbers()[id(variable)]
                named[str(TensorName(kind_of_replica(replica), number, variable.path))] = value
            for number, (variable, value) in enumerate(
                zip(self._states.weights, self._states.weights_of(replica) or (), strict=False)
            ):
                named[str(TensorName(kind_of_replicas_weights(replica), number, variable.path))] = value
        return named

    # What a newcomer is told ------------------------------------------------------------------------

    def give(self) -> Result:
        self._put_back()
        self._at.pieces, self._at.balance = self._division.pieces, self._division.balance
        self._at.samples, self._at.extras = 0, []
        given, outer = super().give(), self._outer.state()
        told = msgspec.msgpack.encode((len(outer), self._states.are_kept))
        return Result([*given.values, told], [*given.arrays, *outer])

    def take(self, given: Result) -> None:
        values, arrays = given
        if len(values) <= _OF_CHECKPOINT:  # how fast the workers of another run were says nothing
            super().take(given)
            return
        outer, self._states.are_kept = msgspec.msgpack.decode(values[_OF_CHECKPOINT], type=tuple[int, bool])
        count = len(arrays) - outer
        self._outer.set_state(arrays[count:])
        super().take(Result(values[:_OF_CHECKPOINT], arrays[:count]))
        self._division.balance = self._at.balance

    def _put_back(self) -> None:
        """The model gets what it had when the round began, if one goes on."""
        start = self._round_start
        if start is None:
            return
        self._round_start = None
        self._engine.settle()
        self._engine.write(self._touched, start.weights)
        if start.optimizers:
            self._states.show(start.optimizers)
        self._show_state()
        self._engine.seeds = start.seeds
        self._engine.put_seeds_back()

    # Rounds -----------------------------------------------------------------------------------------

    def _steps(self, epoch: int) -> Logs:
        steps, at = self._source.steps, self._at
        while steps is None or at.step < steps:
            last = at.step + self._planned
            self._callbacks.on_train_batch_begin(at.step)
            logs = self._round(epoch)
            if logs is not None:
                at.logs = logs
                self._callbacks.on_train_batch_end(at.step - 1, logs)
            if at.step < last:  # the data ran out, or another worker stopped
                self._warn_if_short(at.step, steps)
                break
            if self._model.stop_training and at.step != steps:
                self._round(epoch, stop=True)
                break
        return at.logs

    @property
    def _planned(self) -> int:
        """Steps of the next round, if there is data for them. Counted from the epoch's start: all have the same."""
        left = self._every - self._at.step % self._every
        return left if self._source.steps is None else min(left, self._source.steps - self._at.step)

    def _round(self, epoch: int, stop: bool = False) -> Logs | None:
        """None when there is no data for it, or a worker stopped before it so that it does not count. `stop`: this one
        has.
        """
        at, engine = self._at, self._engine
        if self._source.is_over(at.step):
            return None
        self._do_what_is_due()
        self._source.hold(at.step)
        engine.settle()
        start = RoundStart(
            [np.array(engine.read(variable)) for variable in self._touched],
            [] if self._hosted else [np.array(value) for value in self._states.read()],
            engine.seeds,
        )
        attempt = RoundAttempt(f"fit epoch {epoch} step {at.step}", start, fingerprint(engine), self._planned, stop)
        result = self._run.worker_group.commit(
            lambda group: self._try(group, attempt), keeper=self, admit=self._newcomers, leavers=self._leavers
        )
        if not result.values:
            self._put_back()
            return None
        sizes = msgspec.msgpack.decode(result.values[0], type=list[int])
        exchanged = self._exchanged(Result(result.values[1:], result.arrays))
        self._hear(exchanged.shared.members, exchanged.notes)
        if stopped(exchanged.notes):
            self._put_back()
            self._model.stop_training = True
            return None
        return self._count(start, sizes, exchanged)

    def _try(self, group: AbstractGroup, attempt: RoundAttempt) -> Result:
        """A round up to its commit: from its start, whatever was tried of it before."""
        at, run, what = self._at, self._run, attempt.what
        if attempt.tried:
            run.happened(StoryKind.REDONE, "the round is computed anew among those who are left", at.trained)
            self._source.again(at.step)
        attempt.tried = True
        self._dealt = self._deal(attempt.steps)
        shares = self._division.balance.shares(self._replicas, group.members)
        self._states.settle(group, shares)
        mine = shares[group.rank]
        hosted = HostedReplicas(
            self._engine, self._inner, self._moves, self._states, attempt.start, self._begins(attempt.start)
        )
        self._round_start = attempt.start
        sizes: list[int] = []
        meanwhile, seconds = self._take_steps(group, attempt, shares, hosted, sizes)
        if not sizes:
            return Result([], [])
        run.record(Phase.EXCHANGING, step=at.trained)
        # A worker that was taken for lost and wakes up gets no further: only who is in this view may write the states.
        group.gather(f"{what}: all have computed", b"")
        if not attempt.stop:
            for replica in mine:
                hosted.keep(replica)
        self._tell_of_copies(self._states.copy(group, shares))
        traffic = run.counters.traffic
        before = traffic.sent + traffic.spared - self._reduction.copied
        share = 1 / self._replicas
        result = self._reduction.reduce(
            group,
            what,
            self._replicas,
            None if attempt.stop else lambda replica: (self._given(hosted, replica), share),
            lambda: self._note(attempt, seconds, len(sizes)),
            sum(sizes),
        )
        # What an exchange after each of the other steps would have sent.
        traffic.spared += (len(sizes) - 1) * (traffic.sent + traffic.spared - self._reduction.copied - before)
        values = [msgspec.msgpack.encode(sizes), *result.values, *meanwhile.values]
        return Result(values, [*result.arrays, *meanwhile.arrays])

    def _take_steps(
        self,
        group: AbstractGroup,
        attempt: RoundAttempt,
        shares: tuple[range, ...],
        hosted: HostedReplicas,
        sizes: list[int],
    ) -> tuple[Result, float]:
        """The steps of this worker's replicas: what was exchanged meanwhile, and the seconds they took."""
        seconds = 0.0
        for block in self._blocks(group, attempt.steps, shares, sizes):
            seconds += self._take_block(block, () if attempt.stop else shares[group.rank], hosted)
        return Result([], []), seconds

    def _take_block(self, block: Sequence[tuple[int, Taken]], replicas: Iterable[int], hosted: HostedReplicas) -> float:
        """These steps of each of the replicas; the seconds they took."""
        begun = time.perf_counter()
        for replica in replicas:
            for number, taken in block:
                self._step(hosted, replica, number, taken)
        return time.perf_counter() - begun

    def _begins(self, start: RoundStart) -> Callable[[int], list[Array]] | None:
        """The weights with which each replica begins the round, if those are not the same for all."""
        return None

    def _given(self, hosted: HostedReplicas, replica: int) -> list[Array]:
        """What a replica gives out when all meet after the round."""
        return hosted.result(replica)

    def _exchanged(self, result: Result) -> Exchanged:
        return self._reduction.exchanged(result)

    def _update_outer(self, moves: Sequence[Array]) -> None:
        """The average moves of a round that counts become the next weights."""
        shape, weights = self._moves, self._engine.variables.weights
        self._outer.apply([shaped(move, weights[i]) for i, move in zip(shape.gradients, moves, strict=True)])

    def _blocks(
        self, group: AbstractGroup, steps: int, shares: Sequence[range], sizes: list[int]
    ) -> Iterator[list[tuple[int, Taken]]]:
        """The steps of a round with this worker's rows, some at a time; adds the sizes of their batches to `sizes`."""

        def split(size: int) -> list[range]:
            bounds, pieces = self._bounds(size), self._dealt[len(sizes)]
            return [range(bounds[pieces[share.start]], bounds[pieces[share.stop]]) for share in shares]

        block: list[tuple[int, Taken]] = []
        nbytes = 0
        for number in range(steps):
            self._run.record(Phase.READING, step=self._at.trained + number)
            taken = self._source.take(self._at.step + number, split, group)
            if taken is None:
                break
            self._refuse_small(taken.size, number)
            sizes.append(taken.size)
            block.append((number, taken))
            nbytes += sum(array.nbytes for array in pack(taken.rows))
            if nbytes >= _ROWS_AT_ONCE or len(shares[group.rank]) < _SEVERAL:
                yield block
                block, nbytes = [], 0
        if block:
            yield block

    def _deal(self, steps: int) -> list[tuple[int, ...]]:
        return dealt_pieces(counts_of(self._at.inner if self._uneven else (), self._replicas, steps))

    def _bounds(self, size: int) -> list[int]:
        """Where the rows of each piece begin in a batch. The last of too few samples are nobody's but the first's."""
        bounds = piece_bounds(size, pieces_of(size, self._replicas))
        return bounds + [size] * (self._replicas + 1 - len(bounds))

    def _refuse_small(self, size: int, number: int) -> None:
        if size < self._replicas and self._at.total + number == 0:
            raise UsageError(
                f"fit(): a batch of {size} sample{'s' if size > 1 else ''} can't be divided among {self._replicas} "
                "replicas: each takes its steps on its own part of it. Use larger batches, or fewer replicas."
            )

    def _step(self, hosted: HostedReplicas, replica: int, number: int, taken: Taken) -> None:
        bounds, at, pieces = self._bounds(taken.size), self._at, self._dealt[number]
        for piece in range(pieces[replica], pieces[replica + 1]):
            low, high = bounds[piece], bounds[piece + 1]
            if low == high:
                continue
            names = self._source.names(at.step + number, range(low, high))
            self._run.record(Phase.COMPUTING, f"replica {replica}: {names}", at.trained + number)
            batch = self._engine.batch(self._source.spec(), taken.part(low, high))
            hosted.step(replica, number, piece, batch, high - low)

    def _count(self, start: RoundStart, sizes: Sequence[int], exchanged: Exchanged) -> Logs:
        """The round counts: what all of them come to."""
        engine, at, shape = self._engine, self._at, self._met
        moves, states, metrics, extras = shape.split(exchanged.totals)
        self._run.record(Phase.APPLYING, step=at.trained)
        self._states.commit()
        members = exchanged.shared.members
        self._hosted = range(*exchanged.shared.held[members.index(self._run.me)])
        engine.settle()
        engine.write(self._touched, start.weights)
        self._round_start = None
        self._update_outer(moves)
        changed = [engine.variables.weights[i] for i in shape.changed]
        engine.write(changed, [shaped(state, variable) for state, variable in zip(states, changed, strict=True)])
        self._show_state()
        engine.seeds = start.seeds.after(len(sizes))
        if engine.dirties_seeds:
            engine.put_seeds_back()
        engine.add_metrics(metrics, shape.metrics)
        logs = engine.metric_results() | extras
        at.step += len(sizes)
        at.total += len(sizes)
        at.trained += len(sizes)
        at.seen += sum(sizes)
        self._run.record(Phase.CALLBACKS, step=at.trained)
        for size in sizes:
            self._run.count(size, self._replicas)
        if self._uneven:
            self._learn_uneven(sizes, exchanged)
        elif sum(sizes) >= self._replicas:
            self._division.learn([exchanged])
        return {name: to_float(logs[name]) for name in self._shape.logs}

    def _learn_uneven(self, sizes: Sequence[int], exchanged: Exchanged) -> None:
        """What the next round's counts are, for everybody: from notes that all have, of a round that counts."""
        shared, division = exchanged.shared, self._division
        dealt = self._dealt[: len(sizes)]
        taken = [sum(pieces[stop] - pieces[start] for pieces in dealt) for start, stop in shared.held]
        ends = [sum(taken[: rank + 1]) for rank in range(len(taken))]
        held = tuple(range(end - count, end) for count, end in zip(taken, ends, strict=True))
        if sum(sizes) >= sum(taken):
            seconds = tuple(note.seconds for note in exchanged.notes)
            division.balance = division.balance.observe(shared.members, held, seconds, sum(sizes))
        counts = self._next_counts(shared.members)
        if counts != self._at.inner:
            told = ", ".join(map(str, counts))
            text = f"replicas take {told} steps of a round from now on"
            self._run.happened(StoryKind.BALANCE, text, self._at.trained)
        self._at.inner = counts

    def _next_counts(self, members: tuple[str, ...]) -> tuple[int, ...]:
        return counts_for(self._division.balance, members, self._replicas, self._every)

    def _show_state(self) -> None:
        """Between two rounds the model's optimizer has the state of the first replica that this worker hosts."""
        shown = self._states.of(self._hosted.start) if self._hosted else None
        if shown is not None:
            self._states.show(shown)

    def _note(self, attempt: RoundAttempt, seconds: float, steps: int) -> Note:
        at, run, saver = self._at, self._run, self._saver
        return Note(
            at.total,
            stop=attempt.stop,
            seconds=seconds,
            weights=attempt.weights,
            candidates=run.candidates(self._call),
            checkpoint=self._is_due(steps),
            part=saver.word() if saver is not None else None,
            leaves=run.drains,
        )

    def _tell_of_copies(self, nbytes: int) -> None:
        """`nbytes`: of a replica's state, if there are copies."""
        if nbytes:
            self._run.tell(
                f"a worker is alone on its host: its replicas' optimizers ({nbytes / 2**20:,.1f} MiB each) are copied "
                "to another host in every round, so that it can be killed. LocalSGD(copies=False) saves these bytes",
                below_bar=True,
            )

    def _tell_of_lost_residuals(self, slots: Sequence[int]) -> None:
        text = f"what {_replicas(slots)} had left out of moves was lost with a host: zero from now on, for everybody"
        self._run.happened(StoryKind.CODEC, text, self._at.trained)

    def _tell_of_lost_states(self, lost: Sequence[int], giver: int | None) -> None:
        instead = (
            "all begin again with what the model has" if giver is None else f"that of replica {giver} stands in for it"
        )
        text = f"the optimizer state of {_replicas(lost)} was lost with a host: {instead}"
        self._run.happened(StoryKind.REDONE, text, self._at.trained)


class RoundAttempt:
    """A round on its way to its commit, however often it is tried."""

    def __init__(self, what: str, start: RoundStart, weights: int, steps: int, stop: bool) -> None:
        """`weights`: their fingerprint at its start."""
        self.what = what
        self.start = start
        self.weights = weights
        self.steps = steps
        self.stop = stop
        self.tried = False


def shaped(total: Array, variable: Any) -> Array:
    """A copy: totals are written again."""
    return np.array(total).reshape(tuple(variable.shape))


def _replicas(numbers: Sequence[int]) -> str:
    return f"replica{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"

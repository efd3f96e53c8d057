"""Local training in which replicas never wait for an exchange: a fragment of the weights at a time, in the background.

A round is a stretch of steps (strategies/fragments.py). While it goes on, one fragment of the moves with which replicas
began it is exchanged; the outer optimizer is applied to that fragment when the round counts. Replicas go on with their
own weights from round to round: of the fragment that has come home, each takes the mean of its own and the outer ones
(Streaming DiLoCo). With the epoch all fragments are exchanged, and the next one begins with the same weights for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from shoal.collectives.group import AbstractGroup, Result
from shoal.collectives.layout import Vector
from shoal.errors import UsageError
from shoal.observe.phases import Phase
from shoal.strategies.abstract import RoundSettings
from shoal.strategies.allreduce import Exchanged, Reduction
from shoal.strategies.fragments import FragmentSchedule, cut
from shoal.strategies.notes import Note, stopped
from shoal.strategies.schema import Array
from shoal.training.background import InThread, Overlap
from shoal.training.engine import PartShape
from shoal.training.local import LocalTraining, RoundAttempt, shaped
from shoal.training.logs import Logs
from shoal.training.outer import OuterOptimizer
from shoal.training.prepared import FitArguments, Prepared
from shoal.training.replicas import HostedReplicas, RoundStart, fragment_shape, round_shape
from shoal.training.run import Run

_NOTHING = Result([], [])


class StreamedTraining(LocalTraining):
    """A `fit` in which replicas exchange a fragment at a time while they go on."""

    def __init__(
        self,
        run: Run,
        prepared: Prepared,
        arguments: FitArguments,
        call: int,
        settings: RoundSettings,
        outer: OuterOptimizer,
        overlap: Overlap = InThread,
    ) -> None:
        super().__init__(run, prepared, arguments, call, settings, outer)
        self._overlap = overlap
        count = settings.streaming or 1
        sizes = [entry.size for entry in self._moves.schema.entries[: len(self._moves.gradients)]]
        if count > len(sizes):
            raise UsageError(
                f"LocalSGD(streaming={count}): this model has {len(sizes)} weights that are trained, and a fragment "
                "has at least one of them. Use fewer fragments."
            )
        self._schedule = FragmentSchedule(settings.every, count)
        self._runs = cut(sizes, count)
        variables = self._engine.variables
        self._fragments = [
            self._reduction_of(fragment_shape(variables, self._moves, run), f"fit: fragment {number}")
            for number, run in enumerate(self._runs)
        ]
        self._home: Exchanged | None = None  # the fragment of the round that has just committed

    def _met_shape(self) -> PartShape:
        return round_shape(self._engine.variables, self._shape, moved=False)

    def _own_weights(self) -> Sequence[Any]:
        return self._touched[: len(self._moves.gradients)]

    @property
    def _reductions(self) -> list[Reduction]:
        return [self._reduction, *self._fragments]

    # Rounds -----------------------------------------------------------------------------------------

    @property
    def _planned(self) -> int:
        left, steps = self._schedule.left(self._at.step), self._source.steps
        return left if steps is None else min(left, steps - self._at.step)

    def _steps(self, epoch: int) -> Logs:
        logs = super()._steps(epoch)
        if self._at.step:
            self._gather_fragments(epoch)
        return logs

    def _begins(self, start: RoundStart) -> Callable[[int], list[Array]] | None:
        if self._at.step == 0:
            return None
        outer = start.weights[: len(self._moves.gradients)]
        return lambda replica: self._own(replica, outer)

    def _own(self, replica: int, outer: Sequence[Array]) -> list[Array]:
        """A replica's weights between two rounds: as it left them, but for the fragment that has come home. The outer
        ones, if those that it left are lost.
        """
        kept = self._states.weights_of(replica)
        if kept is None:  # whoever hosted a replica is lost, with all that replicas kept
            return [np.array(value) for value in outer]
        own = [np.array(value) for value in kept]
        home = self._schedule.before(self._at.step)
        for place in self._runs[home] if home is not None else ():
            own[place] = _mean(own[place], outer[place])
        return own

    def _take_steps(
        self,
        group: AbstractGroup,
        attempt: RoundAttempt,
        shares: tuple[range, ...],
        hosted: HostedReplicas,
        sizes: list[int],
    ) -> tuple[Result, float]:
        # All rows first: whoever hands them out needs the group, which the exchange has while steps go on.
        blocks = list(self._blocks(group, attempt.steps, shares, sizes))
        mine = () if attempt.stop else shares[group.rank]
        fragment = self._schedule.during(self._at.step)
        if not sizes or fragment is None:
            return _NOTHING, sum(self._take_block(block, mine, hosted) for block in blocks)
        begin = self._begins(attempt.start)
        assert begin is not None
        moves = {replica: self._moved(fragment, attempt.start.weights, begin(replica)) for replica in mine}
        what = f"{attempt.what}: fragment {fragment}"
        give = None if attempt.stop else moves.__getitem__
        traffic, seconds = self._run.counters.traffic, 0.0
        before = traffic.arriving
        pending = self._overlap(lambda: self._exchange_fragment(group, fragment, what, give, len(sizes)))
        try:
            for block in blocks:
                seconds += self._take_block(block, mine, hosted)
                pending.check()  # whoever was lost meanwhile is noticed now
        finally:
            begun = time.perf_counter()
            self._run.record(Phase.EXCHANGING, step=self._at.trained)
            found = pending.result()
            # While steps went on, the link was no limit.
            traffic.arriving = before + min(traffic.arriving - before, time.perf_counter() - begun)
        return found, seconds

    def _exchange_fragment(
        self,
        group: AbstractGroup,
        fragment: int,
        what: str,
        moves: Callable[[int], list[Array]] | None,
        steps: int = 1,
    ) -> Result:
        reduction, traffic, share = self._fragments[fragment], self._run.counters.traffic, 1 / self._replicas
        before = traffic.sent + traffic.spared - reduction.copied
        weighted = None if moves is None else lambda replica: (moves(replica), share)
        result = reduction.reduce(group, what, self._replicas, weighted, lambda: Note(self._at.total))
        # What an exchange of all fragments after each step would have sent more.
        sent = traffic.sent + traffic.spared - reduction.copied - before
        traffic.spared += (steps * len(self._runs) - 1) * sent if steps > 1 else 0
        return result

    def _moved(self, fragment: int, outer: Sequence[Array], own: Sequence[Array]) -> list[Array]:
        entries = self._moves.schema.entries
        return [
            np.subtract(outer[place], own[place], dtype=np.dtype(entries[place].dtype))
            for place in self._runs[fragment]
        ]

    def _given(self, hosted: HostedReplicas, replica: int) -> list[Array]:
        return hosted.result(replica)[len(self._moves.gradients) :]

    def _exchanged(self, result: Result) -> Exchanged:
        values, arrays = result
        fragment = self._schedule.during(self._at.step)
        self._home = None
        if fragment is None:
            return self._reduction.exchanged(result)
        half, sections = len(values) // 2, len(Vector._fields)
        met = self._reduction.exchanged(Result(values[:half], arrays[:sections]))
        # Only the round's own notes tell whether it counts: of one that does not, nothing of the fragment is kept.
        counts = not stopped(met.notes)
        self._home = self._fragments[fragment].exchanged(Result(values[half:], arrays[sections:]), counts)
        return met

    def _update_outer(self, moves: Sequence[Array]) -> None:
        fragment = self._schedule.during(self._at.step)
        if fragment is not None:
            assert self._home is not None
            self._apply(fragment, self._home)
            self._home = None

    def _apply(self, fragment: int, exchanged: Exchanged) -> None:
        run, weights = self._runs[fragment], self._engine.variables.weights
        variables = [weights[self._moves.gradients[place]] for place in run]
        moves = [shaped(move, variable) for move, variable in zip(exchanged.totals, variables, strict=True)]
        self._outer.apply(moves, run, counts=fragment == len(self._runs) - 1)

    # With the epoch -----------------------------------------------------------------------------------

    def _gather_fragments(self, epoch: int) -> None:
        """All fragments are exchanged: from the weights that this gives, all replicas go on."""
        engine = self._engine
        engine.settle()
        outer = [np.array(engine.read(variable)) for variable in self._states.weights]
        what = f"fit epoch {epoch}: all fragments"

        def act(group: AbstractGroup) -> Result:
            shares = self._division.balance.shares(self._replicas, group.members)
            self._states.settle(group, shares)
            own = {replica: self._own(replica, outer) for replica in shares[group.rank]}
            results = [
                self._exchange_fragment(
                    group,
                    number,
                    f"{what}, {number}",
                    lambda replica, number=number: self._moved(number, outer, own[replica]),  # type: ignore[misc]
                )
                for number in range(len(self._runs))
            ]
            counts = [(len(result.values), len(result.arrays)) for result in results]
            values = [value for result in results for value in result.values]
            arrays = [np.array(array) for result in results for array in result.arrays]
            return Result([msgspec.msgpack.encode(counts), *values], arrays)

        (told, *values), arrays = self._run.worker_group.commit(act)
        for fragment, (texts, sections) in enumerate(msgspec.msgpack.decode(told, type=list[tuple[int, int]])):
            found = Result(values[:texts], arrays[:sections])
            self._apply(fragment, self._fragments[fragment].exchanged(found))
            values, arrays = values[texts:], arrays[sections:]


def _mean(own: Array, outer: Array) -> Array:
    wide = np.float64 if own.dtype == np.float64 else np.float32
    mean: Array = ((own.astype(wide) + outer.astype(wide)) * wide(0.5)).astype(own.dtype)
    return mean

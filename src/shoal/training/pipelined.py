"""Training in stages: every step, pieces go through the workers' stages forward and back, and each stage is updated by
those who hold it.

The order of a step: take the rows of my pieces → my actions, one by one; what crosses a cut goes straight to who needs
it → for each of my stages, the sum of its gradients along the piece tree, among those who hold it → one exchange of
all, with the metrics and the notes → my stages' optimizers. The step counts when the last exchange has committed. Until
then nothing of the model has changed, and who is lost is replaced by others that hold the same stage: all pieces are
computed again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.collectives.group import AbstractGroup, Result
from shoal.collectives.layout import Vector
from shoal.data.order import piece_bounds, pieces_of
from shoal.errors import Diverged, StageLost
from shoal.observe.phases import Phase
from shoal.observe.story import StoryKind
from shoal.strategies.balance import Balance
from shoal.strategies.holders import deal, first_holder, lost_stages, may_leave, share, with_newcomers
from shoal.strategies.notes import Note, check_agreement, decode, encode, leavers, newcomers, stopped
from shoal.strategies.schedule import Held
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape, to_float
from shoal.training.fit_loop import AbstractTraining
from shoal.training.logs import Logs
from shoal.training.pipeline_step import PipelineStep, Sent
from shoal.training.prepared import FitArguments, Prepared
from shoal.training.run import Run
from shoal.training.stage_engine import AbstractStageEngine, AbstractStages
from shoal.training.stage_sums import StageSums

_OF_CHECKPOINT = 2  # values of a state that a checkpoint has too; a newcomer is told one more

_Stages = dict[str, tuple[int, ...]]


class PipelinedTraining(AbstractTraining):
    """A `fit` in which each worker trains its stages of the model."""

    def __init__(
        self,
        run: Run,
        prepared: Prepared,
        arguments: FitArguments,
        call: int,
        pieces: int,
        stages: AbstractStages,
        metrics: PartShape,
    ) -> None:
        """`metrics`: what the last stage gives out besides its gradients."""
        super().__init__(run, prepared, arguments, call)
        self._stages = stages
        self._pieces = pieces
        self._count = len(stages.engines)
        self._balances = [Balance.start()] * self._count
        self._holders: dict[str, tuple[int, ...]] = {}
        self._sums = StageSums([engine.shape.schema for engine in stages.engines], metrics.schema)
        self._metrics = metrics
        self._totals: dict[int, list[Array]] = {}  # of this worker's stages, in the step that is going on
        self._tied = _tied(stages.engines)
        self._saver = self._make_saver(None)
        self._save_next = False
        self._newcomers: tuple[str, ...] = ()  # to be let in before the next step
        self._leavers: tuple[str, ...] = ()  # gone before the next step
        self._is_whole = False  # whether this worker's model and its optimizer have the newest state of all stages

    def close(self) -> None:
        for engine in self._stages.engines:
            engine.forget()
        self._sums.close()
        self._engine.release()
        if self._saver is not None:
            self._saver.close()

    # Before and after -------------------------------------------------------------------------------

    def _begin(self) -> bytes | None:
        group = self._run.worker_group
        if group.is_late:
            self._run.record(Phase.JOINING)
            return group.enter(self, self._call)
        self._agree_on_start()
        if self._run.calls.resumes(self._call) is not None:
            self._stages.make_whole()
            self._resume(served=False)
            if self._saver is not None and self._resumed_at is not None:
                self._saver.resumed(self._resumed_at)
        told = group.gather("fit: the stages", self._stages.fingerprint)
        if odd := told.unlike_chiefs():
            raise Diverged(
                f"fit: the stages of {', '.join(odd)} are not the chief's. Every worker must build the same model: do "
                "not make it depend on the rank."
            )
        self._holders = deal(self._stages.costs, told.members)
        for stage in self._holders[self._run.me]:
            self._stages.engines[stage].open()
        self._tell_stages(told.members)
        return None

    def _tell_stages(self, members: Sequence[str]) -> None:
        total = sum(self._stages.costs)
        for stage, layers in enumerate(self._stages.described):
            names = ", ".join(member for member in members if stage in self._holders[member])
            part = self._stages.costs[stage] / total
            self._run.tell(f"stage {stage} ({layers}, {part:.0%} of the work): {names}")

    def _end(self) -> None:
        self._save_last()
        self._synchronise(with_optimizer=True)
        if self._arguments.epochs > 0:
            self._optimizer.finish()

    def give(self) -> Result:
        self._at.pieces, self._at.balance = self._pieces, Balance.start()
        self._at.samples, self._at.extras = 0, []
        given = super().give()
        return Result([*given.values, msgspec.msgpack.encode((self._holders, self._balances))], given.arrays)

    def take(self, given: Result) -> None:
        """From a checkpoint, or, for a newcomer, from one who had the newest state of all stages."""
        self._stages.make_whole()
        super().take(given)
        if len(given.values) > _OF_CHECKPOINT:
            told = given.values[_OF_CHECKPOINT]
            self._holders, self._balances = msgspec.msgpack.decode(told, type=tuple[_Stages, list[Balance]])
        self._is_whole = True

    def _save(self) -> None:
        """Between two steps: begin a checkpoint."""
        assert self._saver is not None
        self._save_next = False
        self._synchronise(with_optimizer=True)
        worker_group, run = self._run.worker_group, self._run
        run.record(Phase.SAVING, step=self._at.total)
        with run.counters.checkpointing():
            self._saver.begin(
                self._at.trained,
                worker_group.view,
                worker_group.members,
                self.give(),
                self._call,
                run.calls.returned,
                run.is_chief,
            )

    def _save_last(self) -> None:
        if self._saver is not None:
            self._finish_saving()
            self._save()
            self._finish_saving()

    # All stages in one place ------------------------------------------------------------------------

    def _synchronise(self, with_optimizer: bool) -> None:
        """Every worker's model gets the weights of all stages, and its optimizer their state if that is wanted.

        Collective. When it has committed anywhere, all have everything: the last thing in it is that all say so.
        """
        if with_optimizer:
            self._stages.make_whole()
        self._run.record(Phase.EXCHANGING, "the stages' weights", self._at.total)

        def act(group: AbstractGroup) -> Result:
            self._refuse_lost(group)
            for stage, engine in enumerate(self._stages.engines):
                holds = [stage in self._holders.get(member, ()) for member in group.members]
                giver = holds.index(True)
                given = None
                if holds[group.rank]:
                    numbers, arrays = engine.give(with_optimizer)
                    engine.take(numbers, arrays, is_held=True)
                    given = Result([msgspec.msgpack.encode(numbers)], arrays) if group.rank == giver else None
                takers = {rank for rank, is_held in enumerate(holds) if not is_held}
                taken = group.pass_on(f"fit: the weights of stage {stage}", giver, takers, given)
                if taken is not None:
                    engine.take(msgspec.msgpack.decode(taken.values[0], type=list[int]), taken.arrays, is_held=False)
            group.gather("fit: all have all stages", b"")
            return Result([], [])

        self._run.worker_group.commit(act)
        self._is_whole = self._is_whole or with_optimizer

    def _refuse_lost(self, group: AbstractGroup) -> None:
        lost = lost_stages(self._holders, self._count, group.members)
        if not lost:
            return
        gone = [member for member, held in self._holders.items() if set(held) & set(lost)]
        how = "" if self._saver is None else " Go on from the last checkpoint with --resume auto."
        more = self._count + len(lost)
        raise StageLost(
            f"{', '.join(gone)} held the only copy of stage{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost))}, "
            f"{' and '.join(self._stages.described[stage] for stage in lost)}, at step {self._at.total}. A run goes on "
            f"when another worker holds the same stage: start it with more workers (-n {more} or more), or write "
            f"checkpoints (--checkpoint).{how}"
        )

    # Steps ------------------------------------------------------------------------------------------

    def _steps(self, epoch: int) -> Logs:
        model, steps, at = self._model, self._source.steps, self._at
        while steps is None or at.step < steps:
            first = at.step
            last = first - first % model.steps_per_execution + model.steps_per_execution
            last = last if steps is None else min(last, steps)
            self._callbacks.on_train_batch_begin(first)
            while at.step < last and (done := self._train(epoch)) is not None:
                at.logs = done
            if at.step > first:
                self._callbacks.on_train_batch_end(at.step - 1, at.logs)
            if at.step < last:  # the data ran out, or a worker stopped
                break
            if model.stop_training and at.step != steps:
                self._train(epoch, stop=True)
                break
        # Validation and the callbacks of the epoch's end see the whole model.
        users = self._callbacks.run_users_code(("on_epoch_end", "on_test_begin", "on_test_end"))
        if self._validation is not None or self._arguments.callbacks or users:
            self._synchronise(with_optimizer=bool(self._arguments.callbacks))
        return at.logs

    def _train(self, epoch: int, stop: bool = False) -> Logs | None:
        """One step; None when there is no data for it, or a worker stopped before it so that it does not count."""
        engine, at = self._engine, self._at
        if self._source.is_over(at.step):
            return None
        if self._run.me in self._leavers:
            self._run.leave()
        if self._save_next:
            self._save()
        if self._newcomers:
            self._synchronise(with_optimizer=True)  # so that whoever is asked can tell them everything
        result = self._run.worker_group.commit(
            lambda group: self._act(group, f"fit epoch {epoch} step {at.step}", stop),
            keeper=self if self._is_whole else None,
            admit=self._newcomers,
            leavers=self._leavers,
        )
        if not result.values:
            return None
        size, members, held = msgspec.msgpack.decode(result.values[0], type=tuple[int, tuple[str, ...], list[Any]])
        notes = decode(result.values[1:])
        check_agreement(members, notes)
        self._newcomers = newcomers(notes)
        self._leavers = may_leave(self._holders, self._count, members, leavers(members, notes))
        if self._saver is not None:
            self._saver.hear(members, notes, self._run.is_chief)
            self._save_next = any(note.checkpoint for note in notes)
        if stopped(notes):
            self._model.stop_training = True
            return None
        engine.add_metrics(self._metrics.schema.views(Vector(*result.arrays)), self._metrics.metrics)
        logs = {log: to_float(value) for log, value in engine.metric_results().items()}
        self._run.record(Phase.APPLYING, step=at.total)
        rate = self._optimizer.rate()
        for stage, totals in self._totals.items():
            holder = self._stages.engines[stage]
            holder.follow_rate(rate)
            gradients, states, _, _ = holder.shape.split(totals)
            holder.apply(gradients, states)
        self._optimizer.count_updates(1)
        self._totals = {}
        self._is_whole = False
        engine.seeds.advance()
        if engine.dirties_seeds:
            engine.put_seeds_back()
        at.step += 1
        at.total += 1
        at.trained += 1
        at.seen += size
        self._run.record(Phase.CALLBACKS, step=at.total)
        self._run.count(size, self._pieces)
        self._learn(members, [[range(*run) for run in runs] for runs in held], notes, size)
        return {name: logs[name] for name in self._shape.logs}

    def _act(self, group: AbstractGroup, what: str, stop: bool) -> Result:
        """A step up to its commit. Leaves the totals of this worker's stages behind."""
        self._refuse_lost(group)
        self._meet_newcomers(group.members)
        for engine in self._stages.engines:
            engine.forget()
        at, members = self._at, group.members
        self._run.record(Phase.READING, step=at.total)
        held: Held = ()

        def split(size: int) -> Sequence[range]:
            nonlocal held
            pieces = pieces_of(size, self._pieces)
            held = share(self._holders, pieces, members, self._balances)
            bounds = piece_bounds(size, pieces)
            runs = [_hull([of_stage[rank] for of_stage in held]) for rank in range(len(members))]
            return [range(bounds[run.start], bounds[run.stop]) for run in runs]

        taken = self._source.take(at.step, split, group)
        if taken is None:
            return Result([], [])
        if not held:
            split(taken.size)
        step = PipelineStep(self._run, self._engine, self._stages.engines, self._source.spec(), taken, held, group)
        began = time.perf_counter()
        holding = [
            [rank for rank, member in enumerate(members) if stage in self._holders.get(member, ())]
            for stage in range(self._count)
        ]
        fillings = self._sums.open(group, held, holding)
        step.compute(what, fillings, at.total)
        self._run.record(Phase.EXCHANGING, step=at.total)
        group.flush(what)
        pieces = pieces_of(taken.size, self._pieces)
        self._totals = self._sums.reduce(group, what, pieces, held, holding)
        self._sum_tied(group, what)
        saver = self._saver
        note = Note(
            at.total,
            stop=stop,
            seconds=min(step.seconds, time.perf_counter() - began),
            checkpoint=saver is not None and self._run.is_chief and saver.is_due(at.trained + 1),
            part=saver.word() if saver is not None else None,
            candidates=self._run.candidates(self._call),
            leaves=self._run.drains,
        )
        total, notes = self._sums.reduce_metrics(what, pieces, held, encode(note))
        shared = msgspec.msgpack.encode((taken.size, members, [[(r.start, r.stop) for r in runs] for runs in held]))
        return Result([shared, *notes], list(total))

    def _meet_newcomers(self, members: tuple[str, ...]) -> None:
        """Decided alike by all. A newcomer's model has the newest state of all stages: its own begin from there."""
        before = self._holders.get(self._run.me)
        new = [member for member in members if member not in self._holders]
        self._holders = with_newcomers(self._holders, self._stages.costs, members)
        if before is None:
            for stage in self._holders[self._run.me]:
                self._stages.engines[stage].open()
        for member in new:
            held = ", ".join(map(str, self._holders[member]))
            self._run.happened(StoryKind.BALANCE, f"{member} holds stage {held}", self._at.total)

    def _sum_tied(self, group: AbstractGroup, what: str) -> None:
        """Weights that several stages use have the sum of their gradients, in the order of stages, on all of them."""
        for number, places in enumerate(self._tied):
            mine = [stage for stage in places if stage in self._totals]
            if not mine:
                continue
            parts = []
            for stage, place in places.items():
                speaks = first_holder(self._holders, stage, group.members)
                others = [
                    rank
                    for rank, member in enumerate(group.members)
                    if stage not in self._holders.get(member, ()) and set(self._holders.get(member, ())) & places.keys()
                ]
                if stage in self._totals:
                    parts.append(self._totals[stage][place])
                    if speaks == group.rank and others:
                        group.send(others, (Sent.TIED, number, stage), [parts[-1]])
                else:
                    (array,) = group.receive(speaks, (Sent.TIED, number, stage), what)
                    parts.append(array)
            total = parts[0] + parts[1]
            for part in parts[2:]:
                total = total + part
            for stage in mine:
                self._totals[stage][places[stage]] = total
        group.flush(what)

    def _learn(self, members: tuple[str, ...], held: Held, notes: Sequence[Note], size: int) -> None:
        """Those who share a stage share its pieces by their paces. Decided alike by all."""
        if any(len(self._holders.get(member, ())) != 1 for member in members):
            return
        for stage in range(self._count):
            ranks = [rank for rank, member in enumerate(members) if stage in self._holders[member]]
            if len(ranks) > 1:
                runs = tuple(held[stage][rank] for rank in ranks)
                seconds = tuple(notes[rank].seconds for rank in ranks)
                names = tuple(members[rank] for rank in ranks)
                self._balances[stage] = self._balances[stage].observe(names, runs, seconds, size)


def _hull(runs: Sequence[range]) -> range:
    filled = [run for run in runs if run]
    return range(min(run.start for run in filled), max(run.stop for run in filled)) if filled else range(0)


def _tied(engines: Sequence[AbstractStageEngine]) -> list[dict[int, int]]:
    """Weights that several stages train: for each, the stages and its place among their gradients."""
    places: dict[int, dict[int, int]] = {}
    for engine in engines:
        for place, variable in enumerate(engine.trainable):
            places.setdefault(id(variable), {})[engine.stage.number] = place
    return [found for found in places.values() if len(found) > 1]

"""The stages of a model as the workers have them: who holds which, and how they come and go.

A worker has the weights and the optimizer's state of the stages that it holds, and of no others: their memory is given
back before the first step. They come back when somebody may look at the whole model (`gather`).

Who is to hold a stage that it does not have gets it within the act of the next step, from one who has it. Such a
placement counts when the step has committed: if that has to be done again, among others, stages are passed on again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from shoal.checkpoint.divide import divide
from shoal.checkpoint.tensor_names import TensorName
from shoal.collectives.group import AbstractGroup, Result
from shoal.errors import StageLost
from shoal.observe.phases import Phase
from shoal.observe.story import StoryKind
from shoal.strategies.holders import lost_stages
from shoal.strategies.placement import Move, StagePlacement, moves, place, settle
from shoal.strategies.schema import Array
from shoal.training.optimizer import TrainedOptimizer
from shoal.training.run import Run
from shoal.training.stage_engine import AbstractStages

Key = tuple[str, int]  # of a tensor in a checkpoint: kind and number
Read = Callable[[Callable[[str], bool]], Mapping[str, Array]]  # from a checkpoint: the tensors that are wanted, by name


class HeldStages:
    """This worker's part. `placement` is what has committed last."""

    def __init__(self, run: Run, stages: AbstractStages, optimizer: TrainedOptimizer, copies: bool) -> None:
        self._run = run
        self._stages = stages
        self._optimizer = optimizer
        self._copies = copies
        self.placement = StagePlacement()
        self._wanted: StagePlacement | None = None
        self._open: set[int] = set()
        self._has_others = True  # whether there is memory for stages that this worker does not hold

    # Who holds what ---------------------------------------------------------------------------------

    def start(self, members: Sequence[str], speeds: Sequence[float] = ()) -> None:
        """All have the same weights and the same optimizer. `speeds`: of the members, where they are unequal."""
        known = speeds if len(speeds) == len(members) else None
        self.placement = place(self._stages.costs, members, self._copies, known)
        for stage in self.placement.of(self._run.me):
            self._stages.engines[stage].open()
            self._open.add(stage)

    def settle(self, group: AbstractGroup) -> StagePlacement:
        """Within an act: who holds what among these members. Who does not have what it is to hold gets it."""
        self.refuse_lost(group.members)
        after = settle(self.placement, self._stages.costs, group.members, self._copies)
        if self._wanted is not None and tuple(self._wanted.computes) == group.members:
            after = self._wanted
        for move in moves(self.placement, after, group.members):
            self._pass_on(group, move)
        if self._has_others:
            self._stages.let_go(self._open)
            self._has_others = False
        return after

    def want(self, placement: StagePlacement) -> None:
        """From the next step on, if it is taken by the same members. The same on all."""
        self._wanted = placement

    def settled(self, placement: StagePlacement, step: int) -> None:
        """The act has committed."""
        before, self.placement = self.placement, placement
        self._wanted = None  # or somebody has come or gone, and it is not wanted any more
        for member, stages in placement.computes.items():
            if stages != before.computes.get(member):
                self._tell(member, stages, before, step)
        gone = self._open - set(placement.of(self._run.me))
        for stage in gone:
            self._stages.engines[stage].shut()
        self._open -= gone
        if gone:
            self._stages.let_go(self._open)

    def refuse_lost(self, members: Sequence[str]) -> None:
        lost = lost_stages(self.placement.holds, len(self._stages.costs), members)
        if not lost:
            return
        gone = [member for member, held in self.placement.holds.items() if set(held) & set(lost)]
        layers = " and ".join(self._stages.described[stage] for stage in lost)
        why = f"{', '.join(gone)} held the only copy of stage {' and '.join(map(str, lost))}, {layers}"
        keep = "" if self._copies else ", keep copies (Pipeline without lean=True)"
        raise StageLost(
            why,
            "A run goes on when somebody else has the stage: start it with more workers (-n "
            f"{len(self._stages.costs) + len(lost)} or more){keep}; or when it has a checkpoint (--checkpoint).",
        )

    def ranks(self, placement: StagePlacement, members: Sequence[str]) -> list[list[int]]:
        """Of each stage: who holds it."""
        holds = placement.holds
        return [
            [rank for rank, member in enumerate(members) if stage in holds.get(member, ())]
            for stage in range(len(self._stages.costs))
        ]

    def close(self) -> None:
        for stage in self._open:
            self._stages.engines[stage].shut()
        self._open = set()

    def _pass_on(self, group: AbstractGroup, move: Move) -> None:
        engine, given = self._stages.engines[move.stage], None
        if group.rank == move.giver:
            engine.follow_rate(self._optimizer.rate())
            given = _result(engine.give(with_optimizer=True))
        taken = group.pass_on(f"fit: stage {move.stage} for who is to hold it", move.giver, move.takers, given)
        if taken is not None:
            engine.open(_tensors(taken))
            self._open.add(move.stage)

    def _tell(self, member: str, stages: tuple[int, ...], before: StagePlacement, step: int) -> None:
        text = f"{member} computes stage {' and '.join(map(str, stages))}"
        had = before.computes.get(member)
        taken_over = set(stages) - set(had) if had is not None else set()
        if taken_over:
            text += f": whoever did is lost, and it had a copy of stage {' and '.join(map(str, sorted(taken_over)))}"
        self._run.happened(StoryKind.BALANCE, text, step)
        if taken_over and self._run.is_chief:
            self._run.tell(text, below_bar=True)

    def finish(self) -> None:
        """The fit is over: weights become averages, where the optimizer keeps those."""
        for stage in self._open:
            self._stages.engines[stage].finish()

    # All stages in one place ------------------------------------------------------------------------

    def gather(self, with_optimizer: bool, step: int) -> None:
        """Every worker's model gets the weights of all stages, and its optimizer their state if that is wanted.

        Collective. When it has committed anywhere, all have everything: the last thing in it is that all say so.
        """
        self._run.record(Phase.EXCHANGING, "the stages' weights", step)
        self._stages.make_room(with_optimizer)
        self._has_others = True
        for stage in self._open:
            self._stages.engines[stage].follow_rate(self._optimizer.rate())

        def act(group: AbstractGroup) -> Result:
            self.refuse_lost(group.members)
            for stage, holding in enumerate(self.ranks(self.placement, group.members)):
                engine, giver, mine = self._stages.engines[stage], holding[0], None
                if group.rank in holding and (with_optimizer or group.rank == giver):
                    mine = engine.give(with_optimizer)
                    engine.show(mine)
                given = _result(mine) if mine is not None and group.rank == giver else None
                takers = set(range(group.size)) - set(holding)
                taken = group.pass_on(f"fit: the weights of stage {stage}", giver, takers, given)
                if taken is not None:
                    engine.show(_tensors(taken))
            group.gather("fit: all have all stages", b"")
            return Result([], [])

        self._run.worker_group.commit(act)

    # Checkpoints ------------------------------------------------------------------------------------

    def whole_among(self) -> tuple[tuple[str, ...], int]:
        """Those who have all stages among them, the same for all of them, and their view. StageLost, on all, if they
        do not. Collective.
        """
        worker_group = self._run.worker_group

        def act(group: AbstractGroup) -> Result:
            self.refuse_lost(group.members)
            group.gather("fit: the stages of a checkpoint are held", b"")
            return Result([msgspec.msgpack.encode((group.members, worker_group.view))], [])

        (told,), _ = worker_group.commit(act)
        members, view = msgspec.msgpack.decode(told, type=tuple[tuple[str, ...], int])
        return members, view

    def to_write(self, members: Sequence[str]) -> dict[str, Array]:
        """This worker's part of a checkpoint of all stages, by name: those who hold a stage share it."""
        rank = members.index(self._run.me)
        mine: dict[str, Array] = {}
        for stage, holding in enumerate(self.ranks(self.placement, members)):
            if rank in holding:
                self._stages.engines[stage].follow_rate(self._optimizer.rate())
                tensors = self._stages.engines[stage].give(with_optimizer=True, apart=True)
                shares = divide({name: array.nbytes for name, array in tensors.items()}, len(holding))
                mine |= {name: tensors[name] for name in shares[holding.index(rank)]}
        return mine | (self._stages.unheld() if rank == 0 else {})

    def load(self, group: AbstractGroup, read: Read) -> None:
        """Within an act: the stages as a checkpoint has them, which the chief reads, one after another."""
        self.refuse_lost(group.members)
        for stage, holding in enumerate(self.ranks(self.placement, group.members)):
            engine = self._stages.engines[stage]
            needs = msgspec.msgpack.encode(sorted(engine.needs())) if group.rank == holding[0] else b""
            told = group.gather(f"fit: what stage {stage} needs of the checkpoint", needs)[holding[0]]
            wanted = msgspec.msgpack.decode(told, type=set[Key])
            tensors = read(_chosen(wanted)) if group.rank == 0 else None
            given = _result(tensors) if tensors is not None else None
            taken = group.pass_on(f"fit: stage {stage} of the checkpoint", 0, set(holding) - {0}, given)
            if group.rank in holding:
                engine.open(tensors if tensors is not None else _tensors(taken))
        group.gather("fit: all stages are read", b"")


def _chosen(wanted: Collection[Key]) -> Callable[[str], bool]:
    return lambda name: TensorName.of(name)[:2] in wanted


def _result(tensors: Mapping[str, Array]) -> Result:
    return Result([msgspec.msgpack.encode(list(tensors))], list(tensors.values()))


def _tensors(given: Result | None) -> dict[str, Array]:
    assert given is not None, "who takes is given"
    return dict(zip(msgspec.msgpack.decode(given.values[0], type=list[str]), given.arrays, strict=True))

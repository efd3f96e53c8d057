"""Deliberate bugs, one at a time: the simulator must find each of them within a few runs."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.cluster.membership import Membership
from shoal.cluster.membership.losses import LossJudge
from shoal.cluster.membership.member_state import MemberState
from shoal.cluster.messages import Decline, Finished
from shoal.cluster.view import View
from shoal.collectives import formation
from shoal.collectives import worker_group as worker_group_module
from shoal.collectives.abstract import Result
from shoal.collectives.messages import PeerHello
from shoal.collectives.protocol import Commit, Exchanges
from shoal.collectives.resync import Orders, resync
from shoal.collectives.worker_group import WorkerGroup
from shoal.errors import PeerClosed, Refused
from shoal.strategies.allreduce import Reduction
from shoal.training import synchronous
from shoal.training.calls import Calls
from shoal.training.fit_loop import AbstractTraining
from shoal.training.stepwise import AbstractStepwiseTraining
from shoal.training.synchronous import SynchronousTraining
from shoal.training.updates import OwnUpdates

from .elastic import DEADLINES, LIMIT, Fault, Plan, Simulation, Wrong, play

RUNS = 40  # within which a mutant must be found


def kills(seed: int) -> Plan:
    """One loss in the middle of something, on a slow network: members are torn apart."""
    moment = ("step 1", "evaluate", "step 4", "step 6")[seed % 4]
    return Plan(seed, 4, pieces=8, restarts=0, late=0.15, faults=(Fault("kill", seed % 4, moment, 0.003),))


def at_the_end(seed: int) -> Plan:
    return Plan(seed, 4, restarts=0, late=0.2, faults=(Fault("kill", 2, "done", 0.001),))


def replacements(seed: int) -> Plan:
    return Plan(seed, restarts=2, late=0.05, faults=(Fault("kill", 1, "step 0"),))


def too_few(seed: int) -> Plan:
    moment = ("step 2", "evaluate", "step 5", "step 0")[seed % 4]
    return Plan(seed, 4, least=4, restarts=1, late=0.1, faults=(Fault("kill", 3, moment, 0.002),))


def stopped(seed: int) -> Plan:
    pause = Fault("pause", 1, f"step {seed % 6}", 0.002, seconds=DEADLINES.silence + 30.0)
    return Plan(seed, fences_kill=False, restarts=0, faults=(pause,))


def cut_off(seed: int) -> Plan:
    return Plan(seed, restarts=0, faults=(Fault("cut", 0, f"step {seed % 5}", 0.002, seconds=250.0, other=1),))


def dawdling(seed: int) -> Plan:
    return Plan(seed, 4, restarts=0, faults=(Fault("dawdle", 1, "view 1", 0.002, seconds=60.0),))


def haunted(seed: int) -> Plan:
    ghosts = (Fault("ghost", 0, "view 2", 0.05 * i) for i in range(1, 6))
    return Plan(seed, restarts=0, faults=(Fault("kill", 2, "step 0"), *ghosts))


def newcomers_at_a_bad_moment(seed: int) -> Plan:
    """Who let a newcomer in is killed; the others stand in the middle of an epoch's end."""
    faults = (Fault("kill", 3, ("step 2", "evaluate")[seed % 2], 0.002), Fault("kill", "admitter", "admit", 0.001))
    return Plan(seed, 4, least=4, restarts=2, late=0.2, faults=faults)


def twice(seed: int) -> Plan:
    """One more is lost while the others form the view without the first."""
    first, second = Fault("kill", 3, "step 2"), Fault("kill", 4, "view 2", 0.001 * (seed % 5))
    return Plan(seed, 5, pieces=8, restarts=0, late=0.2, faults=(first, second))


def again_and_again(seed: int) -> Plan:
    """Views change faster than they can be formed."""
    newcomers = (Fault("kill", "newest", f"view {number}", 0.001) for number in (3, 5))
    faults = (Fault("kill", 0, "step 4", 0.004), *newcomers)
    return Plan(seed, 5, least=5, pieces=8, restarts=3, late=0.3, faults=faults)


def apart(seed: int) -> Plan:
    """Who gave a newcomer the state, and one more who had the last result, are lost at that moment."""
    faults = (Fault("kill", 3, "step 0", 0.002), Fault("kill", "chief", "let in"), Fault("kill", 1, "let in"))
    return Plan(seed, 4, restarts=1, late=0.4, validates=False, faults=faults)


def replacements_and_a_loss(seed: int) -> Plan:
    return Plan(seed, restarts=1, late=0.05, faults=(Fault("kill", 1, "step 0"), Fault("kill", 0, "let in", 0.3)))


def admitted(seed: int) -> Plan:
    faults = (Fault("kill", 1, "step 0"), Fault("kill", 0, "admit", 0.0))
    return Plan(seed, 4, restarts=2, late=0.2, faults=faults)


def headless(seed: int) -> Plan:
    """A worker is lost; then the coordinator that had said so."""
    faults = (Fault("kill", 1, "step 1"), Fault("coordinator", mark="view 2", delay=0.02 * (seed % 8)))
    return Plan(seed, 4, restarts=1, late=0.05, faults=faults)


def headless_at_the_end(seed: int) -> Plan:
    return Plan(seed, 3, restarts=0, faults=(Fault("coordinator", mark="done", delay=0.001 * (seed % 4)),))


def asked_to_leave(seed: int) -> Plan:
    """And without it there are too few."""
    return Plan(seed, 3, least=3, restarts=0, late=0.05, faults=(Fault("drain", seed % 3, f"step {seed % 4}", 0.002),))


def trials(seed: int) -> Plan:
    """A call raises on one worker, or on all, and is caught; the messages take their time."""
    return Plan(seed, 4, pieces=8, restarts=0, late=0.2, raises=(0, 3, "all")[seed % 3])


def let_in_in_the_middle(seed: int) -> Plan:
    """Of an epoch; callbacks hear of two steps at a time."""
    fault = Fault("kill", 1, ("view 1", "step 0", "step 3")[seed % 3], 0.05 * (seed % 5))
    return Plan(seed, restarts=2, executes=2, validates=False, faults=(fault,))


def late_for_everything(seed: int) -> Plan:
    """Calls within calls; and who is lost in the second fit is replaced by one that was not there for the first."""
    faults = (Fault("kill", seed % 3, "step 0"), Fault("kill", "chief", f"step {6 + seed % 2}"))
    return Plan(seed, 3, least=3, restarts=2, nested=True, faults=faults)


def a_newcomer_and_a_trial(seed: int) -> Plan:
    """One comes in after calls within the fit; later a call raises, and all must know which one that was."""
    return Plan(seed, 3, restarts=1, nested=True, raises="all", faults=(Fault("kill", 1, f"step {seed % 3}"),))


def torn_steps(seed: int) -> Plan:
    """A worker is lost between two parts of a step."""
    kill = Fault("kill", seed % 3, f"step {seed % 4}", 0.03 * (seed % 6))
    return Plan(seed, parts=3, pieces=(4, 8)[seed % 2], restarts=0, pieces_last=seed % 4 > 1, late=0.05, faults=(kill,))


def one_stops(seed: int) -> Plan:
    """The callbacks of one worker stop the fit, those of the others do not: in an epoch's middle, or at its end."""
    return Plan(seed, 3, stop_at=2 + seed % 2, stops_on=seed % 3, executes=1 + seed % 2)


# The mutants --------------------------------------------------------------------------------------------

Mutant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Mutant, Callable[[int], Plan]]] = {}


def mutant(plans: Callable[[int], Plan]) -> Callable[[Mutant], Mutant]:
    def add(change: Mutant) -> Mutant:
        MUTANTS[change.__name__] = (change, plans)
        return change

    return add


@mutant(haunted)
def messages_of_another_view_are_taken(patch: pytest.MonkeyPatch) -> None:
    real = Exchanges.handle

    def handle(self: Any, sender: str, event: Any, now: float) -> Any:
        if hasattr(event, "view"):
            event = msgspec.structs.replace(event, view=self._view)
        return real(self, sender, event, now)

    patch.setattr(Exchanges, "handle", handle)


@mutant(twice)
def whoever_says_hello_is_welcome_in_any_view(patch: pytest.MonkeyPatch) -> None:
    real = formation._refusal

    def refusal(view: View, me: str, awaited: set[str], hello: Any) -> Any:
        if isinstance(hello, PeerHello):
            hello = PeerHello(view.number, hello.member)
        return real(view, me, awaited, hello)

    patch.setattr(formation, "_refusal", refusal)


@mutant(kills)
def a_lost_piece_is_not_computed_again(patch: pytest.MonkeyPatch) -> None:
    real = Reduction.reduce

    def reduce(self: Any, group: Any, what: str, pieces: int, weighted: Any, note: Any, size: int = 0) -> Any:
        held = self._division.balance.shares(pieces, group.members, size)[group.rank]
        before = getattr(self, "held_before", held)
        self.held_before = held

        def only_what_it_had(piece: int) -> Any:
            arrays, weight = weighted(piece)
            return (arrays if piece in before else [np.zeros_like(array) for array in arrays]), weight

        return real(self, group, what, pieces, weighted and only_what_it_had, note, size)

    patch.setattr(Reduction, "reduce", reduce)


@mutant(kills)
def an_exchange_commits_before_all_have_come(patch: pytest.MonkeyPatch) -> None:
    real = Exchanges._progress

    def progress(self: Any, now: float) -> Any:
        if self._round == 1 and self._rounds == 1 and len(self._published) == max(2, len(self._members) - 1):
            self._round = 0
            mine = self._published[self._me]
            return [Commit([self._published.get(member, mine).note for member in self._members])]
        return real(self, now)

    patch.setattr(Exchanges, "_progress", progress)


@mutant(kills)
def who_is_behind_gets_nothing(patch: pytest.MonkeyPatch) -> None:
    def no_behind(members: Any, standings: Any) -> Orders:
        return msgspec.structs.replace(resync(members, standings), behind=frozenset())

    patch.setattr(worker_group_module, "resync", no_behind)


@mutant(kills)
def who_is_ahead_does_the_act_again(patch: pytest.MonkeyPatch) -> None:
    """Behind is taken for equal, and all go on from the lower count."""

    def lower(members: Any, standings: Any) -> Orders:
        known = [standing.acts for standing in standings if standing.acts is not None]
        alike = [msgspec.structs.replace(s, acts=min(known)) if s.acts is not None else s for s in standings]
        return resync(members, alike)

    patch.setattr(worker_group_module, "resync", lower)


@mutant(kills)
def the_result_of_an_older_act_is_passed_on(patch: pytest.MonkeyPatch) -> None:
    keep, pass_result = WorkerGroup._keep, WorkerGroup._pass_result

    def remember(self: Any, result: Result) -> None:
        self.before = self._last
        keep(self, result)

    def pass_older(self: Any, group: Any, orders: Any) -> None:
        last, self._last = self._last, getattr(self, "before", self._last)
        acts = self._acts
        try:
            pass_result(self, group, orders)
        finally:
            if self._acts == acts:
                self._last = last

    patch.setattr(WorkerGroup, "_keep", remember)
    patch.setattr(WorkerGroup, "_pass_result", pass_older)


@mutant(replacements_and_a_loss)
def a_newcomer_is_not_told_how_many_acts_there_were(patch: pytest.MonkeyPatch) -> None:
    real = WorkerGroup._pass_state

    def pass_state(self: Any, group: Any, orders: Any, keeper: Any) -> None:
        was_late = self._acts is None
        real(self, group, orders, keeper)
        if was_late:
            self._acts = 0

    patch.setattr(WorkerGroup, "_pass_state", pass_state)


@mutant(replacements)
def a_newcomer_keeps_its_own_weights(patch: pytest.MonkeyPatch) -> None:
    real = AbstractTraining.take

    def take(self: Any, given: Result) -> None:
        own = self._engine.read(self._engine.variables.trainable[0]).copy()
        real(self, Result(given.values, [own, *given.arrays[1:]]))

    patch.setattr(AbstractTraining, "take", take)


@mutant(newcomers_at_a_bad_moment)
def newcomers_are_let_in_in_the_middle_of_an_epochs_end(patch: pytest.MonkeyPatch) -> None:
    def anyone_can_tell(members: Any, standings: Any) -> Orders:
        return resync(members, [msgspec.structs.replace(standing, between_steps=True) for standing in standings])

    patch.setattr(worker_group_module, "resync", anyone_can_tell)


@mutant(newcomers_at_a_bad_moment)
def a_decline_is_ignored(patch: pytest.MonkeyPatch) -> None:
    real = Membership._said

    def said(self: Any, link: int, message: Any, now: float) -> Any:
        return [] if isinstance(message, Decline) else real(self, link, message, now)

    patch.setattr(Membership, "_said", said)


@mutant(kills)
def a_view_number_is_used_twice(patch: pytest.MonkeyPatch) -> None:
    real = Membership._publish

    def publish(self: Any, members: Any) -> Any:
        if self.view is not None and self.view.number > 1:
            self.view = msgspec.structs.replace(self.view, number=self.view.number - 1)
        elif self.view is not None:
            self.view = msgspec.structs.replace(self.view, number=0)
        return real(self, members)

    patch.setattr(Membership, "_publish", publish)


@mutant(replacements)
def a_lost_member_stays_in_the_view(patch: pytest.MonkeyPatch) -> None:
    real = Membership._publish

    def publish(self: Any, members: Any) -> Any:
        before = self.view.workers if self.view else ()
        return real(self, list({member.id: member for member in (*before, *members)}.values()))

    patch.setattr(Membership, "_publish", publish)


@mutant(admitted)
def an_admit_of_an_old_view_is_honoured(patch: pytest.MonkeyPatch) -> None:
    """With the members of the view that it speaks of."""
    publish, admit = Membership._publish, Membership._admit

    def remember(self: Any, members: Any) -> Any:
        decisions = publish(self, members)
        self.__dict__.setdefault("views", {})[self.view.number] = self.view
        return decisions

    def honour(self: Any, view: int, candidates: Any) -> Any:
        if self.view is not None and view < self.view.number:
            return remember(self, self.views[view].workers)
        return admit(self, view, candidates)

    patch.setattr(Membership, "_publish", remember)
    patch.setattr(Membership, "_admit", honour)


@mutant(at_the_end)
def a_finished_worker_serves_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerGroup, "has_acted", property(lambda self: False))


@mutant(stopped)
def a_stopped_member_is_not_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LossJudge, "_judge_silence", lambda self, id, coordinator_link, now: None)


@mutant(cut_off)
def complaints_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LossJudge, "complain", lambda self, view, by, complaint, now: False)


@mutant(dawdling)
def one_that_does_not_come_is_waited_for_again(patch: pytest.MonkeyPatch) -> None:
    """As it was: it was lost after three times its deadline."""
    patch.setattr(LossJudge, "lose_overdue", lambda self, view, by, about, now: False)


@mutant(dawdling)
def who_waits_as_well_is_taken_for_one_that_does_not_come(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberState, "waits", property(lambda self: False))


@mutant(too_few)
def a_step_begins_with_too_few_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerGroup, "_wait_for_more", lambda self, coordinator_link, view: None)
    meet = WorkerGroup._meet
    patch.setattr(WorkerGroup, "_meet", lambda *which: msgspec.structs.replace(meet(*which), enough=True))


@mutant(too_few)
def too_few_workers_wait_before_all_stand_at_the_same_point(patch: pytest.MonkeyPatch) -> None:
    """As it was before the simulator found it."""
    real = WorkerGroup._gather_round

    def gather_round(self: Any, keeper: Any, admit: Any) -> None:
        if keeper is not None and self._acts is not None:
            while not (view := self._coordinator_link.view).enough:
                self._wait_for_more(self._coordinator_link, view)
        real(self, keeper, admit)

    patch.setattr(WorkerGroup, "_gather_round", gather_round)


@mutant(too_few)
def what_calls_returned_is_not_told_to_those_who_wait(patch: pytest.MonkeyPatch) -> None:
    real = Membership._said

    def said(self: Any, link: int, message: Any, now: float) -> Any:
        return [] if isinstance(message, Finished) else real(self, link, message, now)

    patch.setattr(Membership, "_said", said)


@mutant(again_and_again)
def who_hangs_up_for_a_new_view_is_complained_about(patch: pytest.MonkeyPatch) -> None:
    """As it was before the simulator found it."""
    real = formation._greet

    def greet(view: View, me: str, peer: Any, *more: Any) -> Any:
        try:
            return real(view, me, peer, *more)
        except Refused as refused:
            if "hung up" in refused.text:
                raise PeerClosed(peer.id, refused.text) from refused
            raise

    patch.setattr(formation, "_greet", greet)


@mutant(apart)
def a_result_is_forgotten_when_the_view_changes_before_newcomers_have_the_state(patch: pytest.MonkeyPatch) -> None:
    """As it was before the simulator found it: the newcomer then gave an empty result to who was behind."""
    real = WorkerGroup._catch_up

    def catch_up(self: Any, *more: Any) -> None:
        before = self._acts, self._last
        try:
            real(self, *more)
        except BaseException:
            if before[0] is not None:
                self._acts, self._last = before
            raise

    patch.setattr(WorkerGroup, "_catch_up", catch_up)


@mutant(headless)
def the_coordinator_writes_nothing_down(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "whole", lambda self: None)


@mutant(headless)
def the_coordinator_appends_nothing_to_its_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "changes", lambda self: None)


@mutant(headless)
def the_coordinator_writes_down_the_view_before_the_last(patch: pytest.MonkeyPatch) -> None:
    record, publish = Membership._outlined, Membership._publish

    def remember(self: Any, members: Any) -> Any:
        self.view_before = self.view
        return publish(self, members)

    def older(self: Any) -> Any:
        written = record(self)
        before = getattr(self, "view_before", None)
        return msgspec.structs.replace(written, view=before) if written and before else written

    patch.setattr(Membership, "_publish", remember)
    patch.setattr(Membership, "_outlined", older)


@mutant(headless_at_the_end)
def what_a_dead_coordinator_was_told_is_not_repeated(patch: pytest.MonkeyPatch) -> None:
    real = CoordinatorLink._find_again

    def find_again(self: Any) -> bool:
        self._outbox._said.clear()
        return real(self)

    patch.setattr(CoordinatorLink, "_find_again", find_again)


@mutant(asked_to_leave)
def a_run_that_waits_for_more_has_no_place_for_them(patch: pytest.MonkeyPatch) -> None:
    """As it was before the simulator found it."""
    real = Membership._serve

    def serve(self: Any, link: int, request: Any) -> Any:
        before = self._most
        decisions = real(self, link, request)
        self._most = max(1, before - 1)
        return decisions

    patch.setattr(Membership, "_serve", serve)


@mutant(trials)
def acts_of_a_call_that_was_left_are_remembered(patch: pytest.MonkeyPatch) -> None:
    real = WorkerGroup._meet

    def meet(self: Any, coordinator_link: Any, keeper: Any) -> Any:
        self._call = 1 << 30
        return real(self, coordinator_link, keeper)

    patch.setattr(WorkerGroup, "_meet", meet)


@mutant(trials)
def who_has_caught_an_error_goes_on_before_the_others_know(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatorLink, "caught", lambda self, call, next, outcome, deadline: next)


@mutant(trials)
def nobody_leaves_a_call_because_another_has(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Calls, "take", lambda self, view: None)


# Of the training itself, in whose own lines they are ----------------------------------------------------


def edit(patch: pytest.MonkeyPatch, owner: Any, name: str, was: str, becomes: str) -> None:
    """Changes some words in the source of a function of the product: of a class, or of a module."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(was) == 1, f"{name} has {was!r} {source.count(was)} times"
    source = source.replace(was, becomes).replace("super()", f"super({owner.__name__}, self)")
    made: dict[str, Any] = {}
    code = compile(source, f"<{name}, changed>", "exec", flags=__future__.annotations.compiler_flag)
    exec(code, function.__globals__, made)
    patch.setattr(owner, name, made[name])


EDITS: dict[str, tuple[Any, str, str, str, Callable[[int], Plan]]] = {
    "a newcomer shuffles by its own seed": (
        AbstractTraining,
        "take",
        "self._source.use_seed(at.seed)",
        "pass",
        replacements,
    ),
    "a newcomer's callbacks remember nothing": (
        AbstractTraining,
        "take",
        "self._remembered = (given.values[1], given.arrays[count:])",
        "pass",
        replacements,
    ),
    "a newcomer draws random numbers of its own": (
        AbstractTraining,
        "take",
        "self._set_state(given.arrays[:count])",
        "self._set_state([*given.arrays[: count - 1], self._engine.seeds.rows()])",
        replacements,
    ),
    "a newcomer counts the script's calls from its own": (
        AbstractTraining,
        "take",
        "self._run.calls.number = at.calls",
        "pass",
        a_newcomer_and_a_trial,
    ),
    "a newcomer counts steps from zero": (
        AbstractTraining,
        "take",
        "at = self._at\n",
        "at = self._at\n    at.total = 0\n",
        replacements,
    ),
    "a newcomer in the middle of an epoch begins its metrics anew": (
        AbstractTraining,
        "_epoch",
        "if self._at.step == 0:",
        "if True:",
        replacements,
    ),
    "a newcomer divides batches by speeds of its own": (
        SynchronousTraining,
        "take",
        "self._division.balance = self._at.balance",
        "pass",
        replacements,
    ),
    "a newcomer's callbacks hear of steps when the others' do not": (
        AbstractStepwiseTraining,
        "_steps",
        "last = first - first % model.steps_per_execution + model.steps_per_execution",
        "last = first + model.steps_per_execution",
        let_in_in_the_middle,
    ),
    "random numbers are not put back after an epoch": (
        AbstractTraining,
        "_epoch",
        "self._engine.put_seeds_back()",
        "pass",
        kills,
    ),
    "random numbers are drawn again in the next step": (
        AbstractStepwiseTraining,
        "_step_is_done",
        "engine.seeds.advance()",
        "pass",
        kills,
    ),
    "every epoch has the order of the first": (
        AbstractTraining,
        "_epoch",
        "self._source.begin(epoch, ",
        "self._source.begin(0, ",
        kills,
    ),
    "a fit forgets the steps before it": (
        AbstractTraining,
        "run",
        "self._run.trained, self._run.seen = self._at.trained, self._at.seen",
        "pass",
        kills,
    ),
    "samples of a whole batch are counted for the last": (
        AbstractStepwiseTraining,
        "_step_is_done",
        "at.seen += samples",
        "at.seen += 16",
        kills,
    ),
    "rows are not taken anew when the view changes in the middle of a step": (
        synchronous._StepTask,
        "take",
        "if self.part == 0 or group is not self._taken_in:",
        "if self.part == 0:",
        torn_steps,
    ),
    "a piece is remembered from one part of a step to the next": (
        synchronous._StepTask,
        "compute",
        "self._last[:2] == (self.part, piece)",
        "self._last[1] == piece",
        torn_steps,
    ),
    "what a step assigns itself is not assigned": (
        OwnUpdates,
        "apply",
        "(part, totals.gradients, totals.states)\n",
        "(part, totals.gradients, [])\n",
        kills,
    ),
    "a step before which somebody stopped counts": (
        SynchronousTraining,
        "_exchange",
        "return None if stopped(exchanged.notes) else exchanged",
        "return exchanged",
        one_stops,
    ),
    "who stops does not say so": (
        AbstractStepwiseTraining,
        "_steps",
        "self._tell_stop(epoch)",
        "pass",
        one_stops,
    ),
    "who stops at an epoch's end is not heard": (
        AbstractTraining,
        "_agree_on_stop",
        "any(told",
        "all(told",
        one_stops,
    ),
    "a call that is over for the others leaves the count as it is": (
        Calls,
        "_unpack",
        "self.number = outcome.next",
        "pass",
        late_for_everything,
    ),
    "what a call returned is not kept": (
        Calls,
        "count",
        "self._keep(call, returned)",
        "pass",
        late_for_everything,
    ),
    "averages are not taken at a fit's end": (
        OwnUpdates,
        "finish",
        "if is_trained:",
        "if not is_trained:",
        kills,
    ),
}

for _name, (*_words, _plans) in EDITS.items():
    MUTANTS[_name.replace(" ", "_")] = (partial(lambda patch, words: edit(patch, *words), words=_words), _plans)


def found(change: Mutant, plans: Callable[[int], Plan]) -> tuple[int, Wrong] | None:
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        for seed in range(RUNS):
            try:
                Simulation(plans(seed)).play(LIMIT)
            except Wrong as wrong:
                return seed, wrong
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_found(name):
    assert found(*MUTANTS[name]) is not None, f"{name} was not found in {RUNS} runs"


@pytest.mark.parametrize("plans", dict.fromkeys(plans for _, plans in MUTANTS.values()))
def test_without_a_mutant_the_same_plans_keep_every_promise(plans):
    for seed in range(8):
        play(plans(seed))

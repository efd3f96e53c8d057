"""Who waits for whom, in words: once it has become long, and again whenever it is twice as long as before. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.cluster.membership.roster import Roster
from shoal.cluster.messages import Beat
from shoal.cluster.trouble import Whereabouts, listed
from shoal.cluster.view import View
from shoal.config import Deadlines
from shoal.observe.phases import Phase, TimeUse

WORTH_A_WORD = 0.1  # of a wait's deadline
_FRESH = 0.3  # of the time after which silence is a loss: so long what a member said last is taken for what it does
# Times the usual patience, where nobody gets on. Scripts import and load data; the first step is compiled for minutes.
_WITH_DATA, _WITH_SCRIPTS, _WITH_COMPUTING = 2, 6, 24
_SHOWN = 2  # stacks, where all are stuck: they are likely to be alike


class Wait(NamedTuple):
    """A wait that is going on."""

    seconds: float
    remark: float  # after so many it is worth a word
    text: str
    late: tuple[str, ...] = ()  # members that would be there if they could


def going_on(view: View, roster: Roster, deadlines: Deadlines, now: float) -> Wait | None:
    """The wait that is going on among the members of this view, for the user to know."""
    members = {id: state for id, state in roster.of_view(view).items() if not state.done}
    # One that was stopped in an exchange may have said so last. It does not wait: it is waited for.
    fresh = _FRESH * deadlines.silence
    beats = {id: _by_now(state.beat, now - state.heard) for id, state in members.items()}
    waiting = {id: beats[id] for id, state in members.items() if state.waits and now - state.heard < fresh}
    late = {id: state.whereabouts(now) for id, state in members.items() if id not in waiting}
    remark, chief = deadlines.remark, view.chief.id
    if (exchange := for_exchange(waiting, late, deadlines.stall, remark)) is not None:
        return exchange
    if waiting or chief not in members:
        return None
    return for_chief(beats, chief, late[chief], remark) or for_nobody(beats, late, remark)


def for_joining(missing: Sequence[str], seconds: float, deadline: float) -> Wait | None:
    """Of the run, for members that it can't begin without."""
    if not missing:
        return None
    waited = f"the run has waited for {seconds:.0f} s for {listed(missing)} to join"
    return Wait(seconds, deadline * WORTH_A_WORD, f"{waited}; it gives up after {deadline:.0f} s")


def for_exchange(
    waiting: Mapping[str, Beat], late: Mapping[str, Whereabouts], deadline: float, remark: float
) -> Wait | None:
    """Of those who can't go on, for those who have not come. That a model is compiled for long is nothing unusual."""
    if not waiting or not late:
        return None
    seconds = max(beat.lasting for beat in waiting.values())
    waited = f"{listed(tuple(waiting))} {'has' if len(waiting) == 1 else 'have'} waited for {seconds:.0f} s"
    missing = ", ".join(f"{id}, which is {where}" for id, where in late.items())
    lost = f"{'it is' if len(late) == 1 else 'they are'} lost after {deadline:.0f} s"
    compiles = any(where.doing.phase in (Phase.BUILDING, Phase.TRACING) for where in late.values())
    first = max(remark, deadline * WORTH_A_WORD) if compiles else min(remark, deadline / 2)
    return Wait(seconds, first, f"{waited} for {missing}; {lost}", tuple(late))


def for_chief(members: Mapping[str, Beat], chief: str, where: Whereabouts, remark: float) -> Wait | None:
    """Of those that can't go on before the chief has written or read something for all."""
    waiting = {id: beat for id, beat in members.items() if id != chief and _waits_for(beat, chief)}
    if not waiting or _is_waiting(members[chief]):
        return None
    seconds = max(beat.lasting for beat in waiting.values())
    waited = f"{listed(tuple(waiting))} {'has' if len(waiting) == 1 else 'have'} waited for {seconds:.0f} s"
    return Wait(seconds, remark, f"{waited} for {chief}, which is {where}", (chief,))


def for_nobody(members: Mapping[str, Beat], where: Mapping[str, Whereabouts], remark: float) -> Wait | None:
    """Nobody waits for another, and nobody gets on: all are in something of their own."""
    times = max(_patience_with(beat.doing.phase) for beat in members.values())
    # What a single worker does outside of fit is nobody else's business, and plain Keras does not tell it.
    if times == math.inf or (len(members) == 1 and times > _WITH_DATA):
        return None
    seconds = min(beat.lasting for beat in members.values())
    told = "; ".join(f"{id} is {where[id]}" for id in members)
    return Wait(seconds, times * remark, f"no worker has got on for {seconds:.0f} s: {told}", tuple(members)[:_SHOWN])


def _patience_with(phase: Phase) -> float:
    """How many times as long as usual a worker may be in it. Without end where it waits, or is about to go."""
    match phase:
        case Phase.READING | Phase.CALLBACKS:
            return _WITH_DATA
        case Phase.STARTING | Phase.SCRIPT | Phase.LOOP | Phase.SAVING | Phase.RESUMING:
            return _WITH_SCRIPTS
        case _ if phase.use is TimeUse.COMPUTING or phase in (Phase.BUILDING, Phase.TRACING):
            return _WITH_COMPUTING
        case _:
            return math.inf


def _by_now(beat: Beat, ago: float) -> Beat:
    """What it has said some seconds ago, if it still does it."""
    return msgspec.structs.replace(beat, lasting=beat.lasting + ago)


def _waits_for(beat: Beat, chief: str) -> bool:
    doing = beat.doing
    return doing.phase is Phase.WAITING and doing.detail.startswith(("for the chief ", f"for {chief} "))


def _is_waiting(beat: Beat) -> bool:
    return beat.exchanging or beat.doing.phase is Phase.WAITING


class News:
    """Remembers what was said of the wait that is going on."""

    def __init__(self) -> None:
        self._doubled = -1  # how often, since it was worth a word

    def of(self, wait: Wait | None) -> Wait | None:
        """What is to be said of now, if anything."""
        first = wait.remark if wait is not None else math.inf
        doubled = int(math.log2(wait.seconds / first)) if wait is not None and wait.seconds >= first else -1
        before, self._doubled = self._doubled, doubled
        return wait if wait is not None and doubled > before else None

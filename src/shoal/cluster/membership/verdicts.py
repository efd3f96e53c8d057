"""Whether a trouble ends a run that could go on without the lost, and the words of a run's end. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.cluster.exits import is_scripts
from shoal.cluster.membership.losses import LossJudge
from shoal.cluster.membership.roster import Roster
from shoal.cluster.messages import End, WorkDone
from shoal.cluster.trouble import Deserted, Died, ScriptRaised, Trouble, Unlike, Vanished, same_fault
from shoal.cluster.view import View
from shoal.observe.counters import summed
from shoal.observe.time_shares import together


def fault(roster: Roster, judge: LossJudge, view: View | None, now: float) -> dict[str, Trouble] | None:
    """Troubles that would come again whoever takes over: no use in going on."""
    troubles = judge.troubles()
    initial = view is None
    for id, trouble in troubles.items():
        if isinstance(trouble, Deserted) or (initial and isinstance(trouble, Unlike)):
            return {id: trouble}
        if initial and isinstance(trouble, Died) and trouble.code >= 0:
            return {id: trouble}  # it could not even start
        if isinstance(trouble, ScriptRaised) and trouble.failed.of_all:
            return {id: trouble}
        if isinstance(trouble, Died) and is_scripts(trouble.code) and trouble.code and led_the_script(id, roster, view):
            return {id: trouble}  # whoever took the chief's place would come to the same line
        again = {other: it for other, it in troubles.items() if other == id or same_fault(trouble, it)}
        if len(again) > 1:
            return again
    if troubles and not judge.may_explain(now) and not any(state.counts for state in roster.members.values()):
        return troubles
    return None


def led_the_script(id: str, roster: Roster, view: View | None) -> bool:
    """Whether it is the chief, in the script's own lines as far as it has said."""
    is_chief = view is not None and id == view.chief.id
    return is_chief and roster.members[id].beat.doing.phase.is_scripts


def may_have_ended_the_script(id: str, roster: Roster, judge: LossJudge, view: View, now: float) -> bool:
    """It is gone from there: how its process ended, which is about to be known, tells whether the run goes on."""
    gone = isinstance(roster.members[id].trouble, Vanished)
    return gone and led_the_script(id, roster, view) and judge.is_fresh(id, now)


def good_end(works: Sequence[WorkDone], unfinished: tuple[str, ...], losses: int) -> End:
    """Every worker has finished. `works`: what each of them has done."""
    # One that came when the last training was over knows less of it than the others.
    work = max(works, key=lambda work: (work.steps, work.samples))
    spent, counted = together(one.spent for one in works), summed(one.counted for one in works)
    work = msgspec.structs.replace(work, spent=spent, counted=counted)
    reason = "every worker finished its script"
    return End(True, 0, reason, unfinished, work=work, finishers=len(works), losses=losses)

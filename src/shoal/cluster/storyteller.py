"""What of a coordinator's events and decisions belongs into the run's story. Pure."""

from __future__ import annotations

from typing import NamedTuple

from shoal.cluster.events import Decision, Event, Exited, KeepStory, ReportTrouble, RunOver, Started, Tell
from shoal.cluster.messages import End, RefusalReason, Refuse, ViewChange
from shoal.cluster.trouble import ending
from shoal.cluster.view import View
from shoal.observe.amounts import amount
from shoal.observe.story import StoryKind


class StoryLine(NamedTuple):
    """What is worth a line."""

    kind: StoryKind
    text: str
    member: str = ""
    step: int | None = None


class Storyteller:
    """Remembers the last view, to say who came and who went, and the last refusal."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._refused = ""  # the last one: who comes again and again is told once

    def of_event(self, event: Event) -> list[StoryLine]:
        match event:
            case Started(id):
                return [StoryLine(StoryKind.PROCESS, f"{id} was started", id)]
            case Exited(id, code):
                return [StoryLine(StoryKind.PROCESS, f"the process of {id} {ending(code)}", id)]
            case _:
                return []

    def of_decision(self, decision: Decision) -> list[StoryLine]:
        match decision:
            case Tell(_, ViewChange(view)) if self._view is None or view.number > self._view.number:
                return [self._of_view(view)]
            case ReportTrouble(text):
                return [StoryLine(StoryKind.TROUBLE, text)]
            case Tell(_, Refuse(reason, text)) if reason is not RefusalReason.OVER and text != self._refused:
                self._refused = text
                return [StoryLine(StoryKind.REFUSED, f"somebody was not let in: {text}")]
            case KeepStory(member, told):
                return [StoryLine(told.kind, told.text, member, told.step)]
            case RunOver(end):
                return [*_of_link(end), StoryLine(StoryKind.END, end.reason)]
            case _:
                return []

    def _of_view(self, view: View) -> StoryLine:
        before = {member.id for member in self._view.workers} if self._view is not None else set()
        now = [member.id for member in view.workers]
        came = [id for id in now if id not in before]
        went = sorted(before - set(now))
        news = [*([f"{', '.join(came)} came"] if came else []), *([f"without {', '.join(went)}"] if went else [])]
        self._view = view
        who = f"{len(now)} workers, chief {view.chief.id}" if len(now) > 1 else f"{now[0]} alone"
        return StoryLine(StoryKind.VIEW, "; ".join([f"view {view.number}: {who}", *news]))


def _of_link(end: End) -> list[StoryLine]:
    """What went over sockets in a run that went well, if anything did."""
    counted = end.work.counted
    if not counted.sent:
        return []
    spared = f", {amount(counted.spared)} were spared" if counted.spared else ""
    waited = counted.arriving / max(1, end.finishers)
    text = (
        f"{amount(counted.sent)} went over sockets{spared}; each worker waited {waited:,.1f} s for bytes on their way"
    )
    return [StoryLine(StoryKind.LINK, text)]

"""What a coordinator tells of what it hears and decides."""

from __future__ import annotations

from shoal.cluster.events import Exited, ReportTrouble, RunOver, Started, Tell, Tick
from shoal.cluster.messages import End, RefusalReason, Refuse, ViewChange, WorkDone
from shoal.cluster.storyteller import StoryLine, Storyteller
from shoal.cluster.view import View
from shoal.observe.counters import WorkerFigures
from shoal.observe.story import StoryKind

from .scene import member


def views(storyteller: Storyteller, *views: tuple[int, list[int]]) -> list[str]:
    told = [Tell((1,), ViewChange(View(number, tuple(map(member, who))))) for number, who in views]
    return [line.text for decision in told for line in storyteller.of_decision(decision)]


def test_a_view_is_told_once_with_who_came_and_who_went() -> None:
    assert views(Storyteller(), (1, [0, 1]), (1, [0, 1]), (2, [1]), (3, [1, 2])) == [
        "view 1: 2 workers, chief worker-0; worker-0, worker-1 came",
        "view 2: worker-1 alone; without worker-0",
        "view 3: 2 workers, chief worker-1; worker-2 came",
    ]


def test_processes_troubles_and_the_end_are_told_and_nothing_else() -> None:
    teller = Storyteller()
    assert teller.of_event(Started("worker-1")) == [StoryLine(StoryKind.PROCESS, "worker-1 was started", "worker-1")]
    (exited,) = teller.of_event(Exited("worker-1", -9))
    assert exited.text == "the process of worker-1 was killed by SIGKILL"
    assert teller.of_event(Tick({})) == []
    assert teller.of_decision(ReportTrouble("worker-1 is silent")) == [
        StoryLine(StoryKind.TROUBLE, "worker-1 is silent")
    ]
    assert teller.of_decision(RunOver(End(True, 0, "all finished"))) == [StoryLine(StoryKind.END, "all finished")]
    figures = WorkerFigures(sent=3_000_000, spared=9_000_000, arriving=3.0)
    far = End(True, 0, "all finished", work=WorkDone(counted=figures), finishers=2)
    link = "3.0 MB went over sockets, 9.0 MB were spared; each worker waited 1.5 s for bytes on their way"
    assert teller.of_decision(RunOver(far))[0] == StoryLine(StoryKind.LINK, link)


def test_who_is_refused_is_told_once_however_often_it_comes() -> None:
    teller = Storyteller()
    refusal = Tell((4,), Refuse(RefusalReason.NOT_JOINED, "Beat came before Join"))
    told = [line for _ in range(5) for line in teller.of_decision(refusal)]
    assert told == [StoryLine(StoryKind.REFUSED, "somebody was not let in: Beat came before Join")]
    assert teller.of_decision(Tell((4,), Refuse(RefusalReason.OVER, "all finished"))) == []

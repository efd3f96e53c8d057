"""Who is in the run and when it is over. First runs that end with their first loss, then those that go on."""

from __future__ import annotations

import signal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cluster.events import (
    Decision,
    Ending,
    Event,
    Evidence,
    Exited,
    Fence,
    HangUp,
    Interrupted,
    LinkClosed,
    Noted,
    ReportTrouble,
    RunOver,
    Said,
    ShowStack,
    Started,
    Tell,
    Tick,
    WantWorkers,
)
from shoal.cluster.membership import GATHERING, Membership
from shoal.cluster.membership.losses import COMPLAINED_WITHIN, COMPLAINTS, DETAILS
from shoal.cluster.membership_record import MembershipRecord
from shoal.cluster.messages import (
    Admit,
    Answer,
    Beat,
    Candidate,
    Candidates,
    Caught,
    Complaint,
    Decline,
    Done,
    Drain,
    DrainRequest,
    End,
    Failed,
    Finished,
    Join,
    JoinerPlace,
    Leave,
    PlaceRequest,
    Post,
    Ready,
    RefusalReason,
    Refuse,
    ScaleRequest,
    StatusReply,
    StatusRequest,
    ViewChange,
    WorkDone,
)
from shoal.cluster.view import Member
from shoal.config import Deadlines, Servers
from shoal.observe.phases import Activity, Phase
from shoal.wire.messages import Message

from .scene import COORDINATOR, IDENTITY, Scene, config, ids, member, new_view, reports, told


def raised(error: str = "boom", blames: tuple[str, ...] = (), step: int = 3) -> Failed:
    kind = "PeerClosed" if blames else "ValueError"
    return Failed(step, Activity(Phase.COMPUTING), kind, error, f"Traceback: {error}", blames)


def test_the_first_view_comes_when_the_last_has_joined():
    scene = Scene(workers=2, joined=False)
    assert scene.say(1, Join(member(1), IDENTITY)) == []
    decisions = scene.say(0, Join(member(0), IDENTITY))
    (change,) = told(decisions, 1)
    assert told(decisions, 2) == [change]
    assert isinstance(change, ViewChange)
    assert change.view.number == 1
    assert [m.id for m in change.view.members] == ["worker-0", "worker-1"]


def test_joining_twice_on_one_link_changes_nothing():
    scene = Scene(workers=2)
    assert scene.say(0, Join(member(0), IDENTITY)) == []


@pytest.mark.parametrize(
    ("join", "reason", "text"),
    [
        (Join(member(7), IDENTITY), RefusalReason.UNKNOWN_MEMBER, "worker-7 is not one of worker-0, worker-1"),
        (Join(member(0), IDENTITY), RefusalReason.TAKEN, "worker-0 has already joined, with pid 100"),
    ],
)
def test_a_stranger_is_refused_and_the_run_goes_on(join, reason, text):
    scene = Scene()
    decisions = scene.happen(Said(99, join))
    (refusal,) = told(decisions, 99)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is reason
    assert text in refusal.text
    assert decisions[-1] == HangUp(99)
    assert scene.membership.end is None


def test_a_member_with_another_numeric_identity_is_refused_and_both_values_are_named():
    scene = Scene(joined=False)
    scene.say(0, Join(member(0), IDENTITY))
    other = msgspec.structs.replace(IDENTITY, threads=2, keras="3.16")
    (refusal, *_) = told(scene.say(1, Join(member(1), other)), 2)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is RefusalReason.UNLIKE
    assert "threads is 2 on worker-1 and 1 on worker-0" in refusal.text
    scene.happen(Tick(), after=GATHERING)
    assert "keras is '3.16' on worker-1 and '3.15' on worker-0" in scene.end.reason
    assert scene.end.culprits == ("worker-1",)


def test_a_message_before_join_is_refused():
    scene = Scene(joined=False)
    (refusal,) = told(scene.say(0, Beat()), 1)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is RefusalReason.NOT_JOINED


def test_a_post_reaches_all_and_those_who_come_later():
    scene = Scene(workers=2, joined=False)
    scene.say(0, Join(member(0), IDENTITY))
    post = Post("seed", b"7")
    assert told(scene.say(0, post), 1) == [post]
    assert told(scene.say(1, Join(member(1), IDENTITY)), 2)[0] == post


def test_the_run_ends_well_when_the_last_is_done():
    scene = Scene()
    assert scene.say(0, Done(10)) == []
    decisions = scene.say(1, Done(10))
    assert scene.end.ok
    assert decisions[0] == RunOver(scene.end)
    assert told(decisions, 1) == told(decisions, 2) == [scene.end]


def test_an_error_waits_for_more_to_know_and_then_ends_the_run():
    scene = Scene()
    assert scene.say(1, raised()) == []
    assert scene.happen(Tick(), after=GATHERING / 2) == []
    decisions = scene.happen(Tick(), after=GATHERING / 2)
    assert told(decisions, 1) == [scene.end]
    assert scene.end.reason == "worker-1 raised ValueError: boom at step 3 (computing)"
    assert scene.end.traceback == "Traceback: boom"
    assert scene.end.code == 1


def test_nothing_is_waited_for_when_all_have_failed():
    scene = Scene()
    scene.say(0, raised())
    scene.say(1, raised(), after=0.01)
    assert scene.end.reason == "all 2 workers raised ValueError: boom at step 3 (computing)"


def test_some_of_many_with_one_error_are_listed():
    scene = Scene(workers=4)
    for number in (3, 1):
        scene.say(number, raised())
    scene.happen(Tick(), after=GATHERING)
    assert scene.end.reason.startswith("worker-3 and worker-1 raised ValueError")


def test_a_cause_outweighs_its_consequence():
    scene = Scene(workers=3)
    scene.say(0, raised("worker-2 closed", blames=("worker-2",)))
    scene.say(2, raised("the real one"), after=0.1)
    scene.happen(Tick(), after=GATHERING)
    assert scene.end.culprits == ("worker-2",)
    assert "the real one" in scene.end.reason


def test_a_consequence_alone_names_who_is_missed_and_who_missed_them():
    scene = Scene(workers=2)
    scene.say(1, Done(10))
    scene.say(0, raised("worker-1 did not come for 300 s", blames=("worker-1",)), after=300)
    assert scene.end.culprits == ("worker-1",)
    assert scene.end.reason.startswith("worker-1 (its script had finished) did not come to worker-0 at step 3")


def test_blaming_someone_outside_the_run_is_an_error_of_ones_own():
    scene = Scene(workers=1)
    scene.say(0, raised("no answer", blames=("database",)))
    assert scene.end.culprits == ("worker-0",)


def test_last_words_that_are_read_after_the_process_was_seen_to_end_still_count():
    scene = Scene(workers=1)
    assert scene.happen(Exited("worker-0", 1)) == []
    scene.say(0, raised())
    assert "raised ValueError: boom" in scene.end.reason


def test_how_a_process_died_is_waited_for_after_its_connection_closed():
    scene = Scene()
    scene.say(1, Beat(8, Activity(Phase.EXCHANGING)))
    scene.happen(LinkClosed(2), after=1.0)
    scene.happen(Exited("worker-1", -9), after=0.1)
    scene.happen(Tick(), after=GATHERING)
    assert scene.end.reason == (
        "worker-1 (pid 101) was killed by SIGKILL at step 8 (exchanging gradients), 1.1 s after it was last heard"
    )
    assert "out of memory" in scene.end.advice


def test_a_process_that_ends_before_it_joined_is_named():
    scene = Scene(joined=False)
    scene.happen(Exited("worker-1", 3))
    scene.happen(Tick(), after=GATHERING)
    assert "worker-1 exited with code 3" in scene.end.reason
    assert "before it had joined" in scene.end.reason


def silent_for(scene: Scene, seconds: float, evidence: dict[str, Evidence]) -> list[Decision]:
    """Worker 1 says nothing; worker 0 goes on; the coordinator ticks."""
    decisions = []
    for _ in range(round(seconds * 10)):
        decisions += scene.say(0, Beat(1, Activity(Phase.TRAINING)), after=0.1)
        decisions += scene.happen(Tick(evidence))
    return decisions


def test_silence_without_evidence_is_a_loss():
    scene = Scene()
    silent_for(scene, 6, {})
    assert scene.end.culprits == ("worker-1",)
    assert "was silent for 5.1 s (deadline 5.0 s)" in scene.end.reason


def test_silence_of_a_stopped_process_says_so():
    scene = Scene()
    silent_for(scene, 6, {"worker-1": Evidence("T", 1.0)})
    assert "its process is stopped" in scene.end.reason


def test_silence_of_a_working_process_is_no_loss_until_its_stall():
    scene = Scene()
    for second in range(200):
        silent_for(scene, 1, {"worker-1": Evidence("R", float(second))})
    assert scene.membership.end is None
    for second in range(200, 310):
        silent_for(scene, 1, {"worker-1": Evidence("R", float(second))})
        if scene.membership.end:
            break
    assert "deadline 300.0 s" in scene.end.reason
    assert "is at work" in scene.end.reason


def test_a_working_process_that_is_then_stopped_is_lost_a_silence_later():
    scene = Scene()
    for second in range(20):
        silent_for(scene, 1, {"worker-1": Evidence("R", float(second))})
    stopped = scene.now
    while scene.membership.end is None:
        silent_for(scene, 0.1, {"worker-1": Evidence("T", 19.0)})
    assert 4.0 < scene.now - stopped < 5.5


def test_a_process_that_is_stopped_again_and_again_is_not_at_work():
    scene = Scene()
    for second in range(6):
        silent_for(scene, 1, {"worker-1": Evidence("t", float(second))})
    assert "its process is stopped" in scene.end.reason


def test_only_those_who_missed_beats_are_suspects():
    scene = Scene()
    scene.say(0, Beat(), after=3.0)
    assert [m.id for m in scene.membership.suspects(scene.now)] == ["worker-1"]


def test_nobody_is_lost_while_the_coordinator_itself_was_away():
    scene = Scene()
    scene.happen(Tick(), after=0.1)
    scene.happen(Tick(), after=60.0)
    for _ in range(10):
        scene.happen(Tick(), after=0.1)
    assert scene.membership.end is None


def test_a_worker_that_finished_while_another_needs_it_is_a_deserter():
    scene = Scene()
    scene.say(1, Done(9))
    for _ in range(60):
        scene.say(0, Beat(10, Activity(Phase.EXCHANGING), scene.now, exchanging=True), after=0.1)
        scene.say(1, Beat(9, Activity(Phase.FINISHED)))
        scene.happen(Tick())
    assert scene.end.culprits == ("worker-1",)
    assert "worker-1 finished its script at step 9, but worker-0 has been waiting for it" in scene.end.reason


def test_a_worker_that_finished_while_another_does_something_of_its_own_is_none():
    scene = Scene()
    scene.say(1, Done(9))
    for _ in range(600):
        scene.say(0, Beat(9, Activity(Phase.SCRIPT), scene.now), after=0.1)
        scene.say(1, Beat(9, Activity(Phase.FINISHED)))
        scene.happen(Tick())
    assert scene.membership.end is None


def test_who_did_not_come_is_named_after_the_start_deadline():
    scene = Scene(workers=3, joined=False)
    scene.say(0, Join(member(0), IDENTITY))
    for _ in range(3010):
        scene.say(0, Beat(), after=0.1)
        scene.happen(Tick())
    assert scene.end.reason == "worker-1 and worker-2 did not join within 300 s; 1 of 3 came"


def test_the_same_exit_code_everywhere_is_the_runs_exit_code():
    scene = Scene()
    for number in range(2):
        scene.say(number, Failed(0, Activity(), "SystemExit", "4", "", code=4))
    assert scene.end.code == 4
    assert "the script on all 2 workers exited with code 4" in scene.end.reason


def test_an_interrupt_ends_at_once_and_is_the_last_word():
    scene = Scene()
    decisions = scene.happen(Interrupted("it was interrupted", 130))
    assert scene.end == End(False, 130, "it was interrupted")
    assert told(decisions, 1) == [scene.end]
    assert scene.happen(LinkClosed(1)) == scene.happen(Tick(), after=1.0) == []
    (refusal, *_) = told(scene.happen(Said(9, Join(member(0), IDENTITY))), 9)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is RefusalReason.OVER


def test_status_shows_what_the_beats_said():
    scene = Scene()
    scene.say(1, Beat(12, Activity(Phase.TRAINING), 0.1, 512.0))
    (reply,) = told(scene.happen(Said(77, StatusRequest()), after=2.0), 77)
    assert isinstance(reply, StatusReply)
    assert (reply.run, reply.view, reply.uptime, reply.pieces) == ("r1", 1, 2.0, 2)
    coordinator, idle, busy = reply.members
    assert (coordinator.role, coordinator.pid, coordinator.state) == ("coordinator", 99, "serving")
    assert (idle.state, busy.state) == ("training", "training")
    assert (busy.step, busy.doing, busy.samples_per_second, busy.pid) == (12, "training", 512.0, 101)


def test_status_shows_the_pieces_of_now():
    scene = Scene()
    scene.say(0, Beat(20, Activity(Phase.TRAINING), pieces=2))
    scene.say(1, Beat(21, Activity(Phase.TRAINING), pieces=6))  # they became more, and the other is about to say so
    assert scene.membership.status(scene.now).pieces == 6


# Runs that go on after a loss -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [LinkClosed(2), Exited("worker-1", -9), Said(2, raised())],
    ids=["gone", "killed", "raised"],
)
def test_a_loss_makes_the_next_view_at_once(loss: Event):
    scene = Scene(3, least=1)
    decisions = scene.happen(loss)
    view = new_view(decisions)
    assert view is not None
    assert (view.number, ids(view), view.enough) == (2, ["worker-0", "worker-2"], True)
    assert told(decisions, 1) == told(decisions, 3) == [ViewChange(view)]
    assert scene.membership.view == view
    assert scene.membership.end is None
    assert [m.state for m in scene.membership.status(0.0).members[1:]] == ["training", "lost", "training"]


def test_what_is_learnt_about_a_loss_later_makes_no_other_view():
    scene = Scene(3, least=1)
    scene.happen(LinkClosed(2))
    assert new_view(scene.happen(Exited("worker-1", -9), after=0.1)) is None
    assert new_view(scene.happen(Tick(), after=GATHERING)) is None
    assert scene.membership.view is not None
    assert scene.membership.view.number == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("can't be cut.", "train.py:3: can't be cut"),
        ("model.py:41: apply() outside of fit() …", "model.py:41: apply() outside of fit() …"),  # it knows better
    ],
)
def test_a_refusal_names_one_line_of_the_script(error: str, said: str):
    scene = Scene(1)
    scene.say(0, msgspec.structs.replace(raised(error), where="train.py:3", of_all=True))
    scene.happen(Tick(), after=GATHERING)
    assert scene.end.reason == said


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.SCRIPT])
def test_a_chief_that_ends_the_script_in_its_own_lines_ends_the_run_and_nobody_takes_its_place(phase: Phase):
    """Its lines, and what it printed, would come again."""
    scene = Scene(3, least=1)
    scene.say(0, Beat(0, Activity(phase)))
    assert new_view(scene.happen(LinkClosed(1))) is None
    scene.happen(Exited("worker-0", 4), after=0.05)
    assert scene.end.code == 4


@pytest.mark.parametrize("later", [Exited("worker-0", -9), Tick()], ids=["killed", "nobody knows"])
def test_a_chief_that_is_killed_in_the_scripts_own_lines_is_followed_by_another(later: Event):
    scene = Scene(3, least=1)
    assert new_view(scene.happen(LinkClosed(1))) is None
    assert ids(new_view(scene.happen(later, after=DETAILS))) == ["worker-1", "worker-2"]


def test_several_losses_make_one_view_each():
    scene = Scene(4, least=1)
    for number in range(4):
        scene.say(number, Beat(1, Activity(Phase.COMPUTING)))
    assert ids(new_view(scene.happen(LinkClosed(1)))) == ["worker-1", "worker-2", "worker-3"]
    assert ids(new_view(scene.happen(LinkClosed(4)))) == ["worker-1", "worker-2"]
    view = new_view(scene.happen(Exited("worker-1", -9)))
    assert view is not None
    assert (view.number, ids(view), view.chief.id) == (4, ["worker-2"], "worker-2")


def test_the_last_survivor_goes_on_and_ends_the_run_well():
    scene = Scene(3, least=1)
    for number in (0, 2):
        scene.happen(Exited(f"worker-{number}", -9))
    assert scene.membership.end is None
    scene.say(1, Done(30))
    lost = ("worker-0", "worker-2")
    assert scene.end == End(True, 0, "every worker finished its script", lost, finishers=1, losses=2)


def test_the_run_ends_with_its_last_worker_and_all_are_named():
    scene = Scene(2, least=1)
    scene.happen(Exited("worker-1", -9))
    decisions = scene.happen(Exited("worker-0", -9))
    assert scene.end.culprits == ("worker-1", "worker-0")
    assert "killed by SIGKILL" in scene.end.reason
    assert not scene.end.ok
    assert decisions[-2] == RunOver(scene.end)


def test_with_fewer_than_the_least_the_view_is_not_enough_until_another_comes():
    scene = Scene(3, least=2)
    views = [new_view(scene.happen(Exited(f"worker-{number}", -9))) for number in (1, 2)]
    assert [view.enough for view in views if view] == [True, False]
    scene.come_late(3, call=0)
    admitted = new_view(scene.say(0, Admit(3, ("worker-3",))))
    assert admitted is not None
    assert (ids(admitted), admitted.enough) == (["worker-0", "worker-3"], True)


def test_one_that_is_lost_before_the_first_view_is_not_waited_for():
    scene = Scene(3, joined=False, least=1)
    scene.say(0, Join(member(0), IDENTITY))
    scene.say(2, Join(member(2), IDENTITY))
    decisions = scene.happen(Exited("worker-1", -9))
    view = new_view(decisions)
    assert view is not None
    assert (view.number, ids(view)) == (1, ["worker-0", "worker-2"])
    assert reports(decisions) == [
        "worker-1 was killed by SIGKILL before it had joined the run; going on with 2 workers"
    ]


def test_a_standby_stays_outside_of_the_first_view_and_is_not_waited_for():
    scene = Scene(2, joined=False, least=1)
    scene.happen(Started("worker-2"))
    scene.say(2, Join(member(2), IDENTITY))
    scene.say(1, Join(member(1), IDENTITY))
    decisions = scene.say(0, Join(member(0), IDENTITY))
    view = new_view(decisions)
    assert ids(view) == ["worker-0", "worker-1"]
    assert told(decisions, 3) == [ViewChange(view)]
    scene.say(2, Ready(0))
    assert told(scene.happen(Exited("worker-1", -9)), 1)[-1] == Candidates((Candidate("worker-2", 0),))


def test_a_standby_takes_the_place_of_one_that_is_lost_before_the_first_view():
    scene = Scene(2, joined=False, least=1)
    scene.happen(Started("worker-2"))
    for number in (0, 2):
        scene.say(number, Join(member(number), IDENTITY))
    assert ids(new_view(scene.happen(Exited("worker-1", -9)))) == ["worker-0", "worker-2"]


def test_one_that_can_not_even_start_ends_the_run():
    scene = Scene(3, joined=False, least=1)
    scene.happen(Exited("worker-1", 3))
    assert scene.end.culprits == ("worker-1",)
    assert "worker-1 exited with code 3 before it had joined" in scene.end.reason


def test_one_that_is_unlike_the_others_ends_a_run_that_has_not_begun():
    scene = Scene(joined=False, least=1)
    scene.say(0, Join(member(0), IDENTITY))
    scene.say(1, Join(member(1), msgspec.structs.replace(IDENTITY, threads=2)))
    assert "threads is 2 on worker-1 and 1 on worker-0" in scene.end.reason


def test_one_that_is_unlike_the_others_and_comes_late_is_refused_and_the_run_goes_on():
    scene = Scene(2, least=1)
    scene.happen(Started("worker-2"))
    decisions = scene.say(2, Join(member(2), msgspec.structs.replace(IDENTITY, threads=2)))
    assert isinstance(told(decisions, 3)[0], Refuse)
    assert HangUp(3) in decisions
    assert any("worker-2 can't join" in text for text in reports(decisions))
    assert new_view(decisions) is None
    assert scene.membership.end is None


def test_those_who_did_not_come_are_not_waited_for_for_ever():
    scene = Scene(3, joined=False, least=1)
    scene.say(0, Join(member(0), IDENTITY))
    decisions: list[Decision] = []
    while scene.now <= 300:
        scene.say(0, Beat(), after=1.0)
        decisions += scene.happen(Tick())
    assert ids(new_view(decisions)) == ["worker-0"]
    assert [text.partition(" ")[0] for text in reports(decisions)][-2:] == ["worker-1", "worker-2"]


# What is said about a loss.


def test_a_loss_is_reported_once_with_who_and_why():
    scene = Scene(3, least=1)
    scene.say(1, Beat(8, Activity(Phase.EXCHANGING)))
    assert reports(scene.happen(LinkClosed(2), after=1.0)) == []  # how its process ended is about to be known
    assert reports(scene.happen(Exited("worker-1", -9), after=0.1)) == [
        "worker-1 (pid 101) was killed by SIGKILL at step 8 (exchanging gradients), 1.1 s after it was last heard"
        "; going on with 2 workers"
    ]
    for _ in range(10):
        assert reports(scene.happen(Tick(), after=GATHERING)) == []


def test_a_connection_that_closed_is_reported_as_such_when_nobody_saw_why():
    scene = Scene(2, least=1)
    scene.happen(LinkClosed(2))
    assert reports(scene.happen(Tick(), after=DETAILS / 2)) == []
    (text,) = reports(scene.happen(Tick(), after=DETAILS / 2))
    assert text.startswith("worker-1 (pid 101) closed its connection at step 0 (starting)")
    assert text.endswith("; going on with 1 worker")
    assert reports(scene.happen(Exited("worker-1", -9), after=1.0)) == []


def test_a_loss_just_before_the_good_end_is_reported_too():
    scene = Scene(3, least=1)
    scene.say(0, Done(10))
    scene.say(1, raised())
    decisions = scene.say(2, Done(10))
    assert scene.end.ok
    assert reports(decisions) == ["worker-1 raised ValueError: boom at step 3 (computing); going on with 2 workers"]


def test_the_good_end_tells_what_was_trained_and_how_many_losses_were_survived_by_any_coordinator():
    scene = Scene(4, least=1)
    scene.say(1, raised())
    scene.happen(Tick(), after=2 * DETAILS)
    record = scene.membership.record()
    assert record is not None
    scene.membership = Membership.restored(record, config(4, least=1), COORDINATOR, scene.now)
    for number in (0, 2, 3):
        scene.say(number, Join(member(number), IDENTITY))
    scene.happen(LinkClosed(3))
    late = WorkDone({"fit": 2})  # it came when the fits were over
    scene.say(0, Done(10, late))
    scene.say(3, Done(10, WorkDone({"fit": 2}, 20, 640)))
    assert (scene.end.work, scene.end.finishers, scene.end.losses) == (WorkDone({"fit": 2}, 20, 640), 2, 2)


def test_last_words_that_are_read_after_the_connection_was_lost_are_the_reason():
    scene = Scene(3, least=1)
    scene.happen(Exited("worker-1", 1))  # reported already
    scene.say(1, raised("out of disk"))
    scene.happen(Exited("worker-0", -9))
    scene.happen(Exited("worker-2", -9))
    assert "raised ValueError: out of disk" in scene.end.reason


def test_a_silent_member_is_cut_off_so_that_it_can_do_no_more_harm():
    scene = Scene(2, least=1)
    decisions = silent_for(scene, 6, {"worker-1": Evidence("T", 1.0)})
    assert decisions.count(Fence(member(1))) == 1
    assert decisions.count(HangUp(2)) == 1
    (report,) = reports(decisions)
    assert "worker-1 (pid 101) was silent for 5.1 s" in report
    assert "its process is stopped" in report
    assert ids(new_view(decisions)) == ["worker-0"]
    assert decisions.index(Fence(member(1))) < next(i for i, d in enumerate(decisions) if told([d], 1))
    assert reports(scene.happen(Exited("worker-1", -9))) == []  # as it was told to


def test_an_error_that_all_workers_come_to_ends_the_run_as_soon_as_one_says_it():
    """The others may be torn out of what they found it in, when the first leaves, and would go on without it."""
    scene = Scene(workers=3, least=1)
    scene.say(1, msgspec.structs.replace(raised("the data differs"), of_all=True))
    assert not scene.end.ok
    assert scene.end.reason == "worker-1 raised ValueError: the data differs at step 3 (computing)"


def test_an_error_of_one_who_has_left_is_not_told():
    scene = Scene(workers=2, least=1)
    assert reports(scene.say(1, Leave())) == ["worker-1 has left the run"]
    assert reports([*scene.say(1, raised()), *scene.happen(Tick(), after=1.0)]) == []


def test_who_ended_of_its_own_accord_is_judged_when_its_last_words_were_heard():
    scene = Scene(3, least=1)
    assert scene.happen(Exited("worker-1", 75)) == []
    assert reports(scene.say(1, Leave())) == ["worker-1 has left the run"]
    assert reports(scene.happen(LinkClosed(2)) + scene.happen(Tick(), after=2.0)) == []
    assert scene.happen(Exited("worker-2", 3)) == []
    assert reports(scene.happen(LinkClosed(3))) == [], "the others may be about to do the same"
    (report,) = reports(scene.happen(Tick(), after=DETAILS))
    assert "worker-2 (pid 102) exited with code 3 without having finished its script" in report


@pytest.mark.parametrize(
    ("codes", "code"), [((4, 4), 4), ((0, 0), 0), ((4, 0), 4), ((0, 4), 1), ((-9, -9), 1), ((75, 75), 1)]
)
def test_processes_that_the_script_ends_give_the_run_their_code(codes, code):
    scene = Scene(2, least=1)
    for number in range(2):
        scene.happen(LinkClosed(number + 1))  # how they ended is known a little later
    assert scene.membership.end is None
    for number in range(2):
        scene.happen(Exited(f"worker-{number}", codes[number]))
    scene.happen(Tick(), after=DETAILS)
    assert (scene.end.ok, scene.end.code) == (False, code)


def test_a_refusal_is_the_reason_with_its_place_in_the_script():
    scene = Scene(2, least=1)
    refusal = Failed(
        0, "building", "UsageError", "2 pieces need\nat least 2 samples.", "…", of_all=True, where="t.py:7"
    )
    scene.say(0, refusal)
    end = scene.end
    assert (end.reason, end.refused, end.traceback) == ("t.py:7: 2 pieces need\nat least 2 samples", True, "")
    assert end.advice == "UsageError on worker-0 at step 0 (building)."


def test_one_whose_process_ended_by_itself_needs_no_fence():
    scene = Scene(2, least=1)
    decisions = scene.happen(Exited("worker-1", -9)) + scene.happen(Tick(), after=1.0)
    assert not [d for d in decisions if isinstance(d, Fence | HangUp)]


def test_nothing_that_a_lost_member_says_is_heeded():
    scene = Scene(3, least=1)
    scene.say(1, raised())
    for message in (
        Beat(99, Activity(Phase.TRAINING)),
        Post("seed", b"7"),
        Finished(0, b"result"),
        Admit(2, ()),
        Decline(2, ("worker-0",)),
        Complaint(2, ("worker-0",), "no answer"),
        Ready(0),
        Done(9),
        Leave(),
    ):
        assert scene.say(1, message, after=0.01) == [], message
    assert reports(scene.happen(Tick(), after=DETAILS)) == [
        "worker-1 raised ValueError: boom at step 3 (computing); going on with 2 workers"
    ]
    assert scene.membership.view is not None
    assert scene.membership.view.number == 2
    lost = scene.membership.status(scene.now).members[2]
    assert (lost.step, lost.state) == (3, "lost")
    late = told(scene.come_late(3), 4)
    assert not [message for message in late if isinstance(message, Post | Finished)]


def test_a_lost_member_that_comes_back_is_told_that_and_why_the_run_went_on_without_it():
    scene = Scene(3, least=1)
    scene.happen(LinkClosed(2))
    decisions = scene.happen(Said(9, Join(member(1), IDENTITY)), after=3.0)
    (refusal,) = told(decisions, 9)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is RefusalReason.OUTSIDE
    assert "worker-1 (pid 101) closed its connection at step 0" in refusal.text
    assert decisions[1] == HangUp(9)
    assert ids(scene.membership.view) == ["worker-0", "worker-2"]


def test_another_process_can_not_take_the_name_of_a_lost_member():
    scene = Scene(3, least=1)
    scene.happen(LinkClosed(2))
    stranger = msgspec.structs.replace(member(1), pid=999)
    (refusal, *_) = told(scene.happen(Said(9, Join(stranger, IDENTITY))), 9)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is RefusalReason.TAKEN


# Faults that whoever takes over would run into.


def test_the_same_error_on_two_workers_ends_the_run():
    scene = Scene(3, least=1)
    scene.say(1, raised("no such column", step=5))
    assert scene.membership.end is None
    scene.say(2, raised("no such column", step=9), after=60.0)
    assert scene.end.culprits == ("worker-1", "worker-2")
    assert "worker-1 and worker-2 raised ValueError: no such column" in scene.end.reason
    assert scene.end.traceback == "Traceback: no such column"


def test_errors_of_one_kind_at_the_same_step_are_the_same_fault():
    scene = Scene(3, least=1)
    scene.say(1, raised("sample 7 is broken", step=5))
    scene.say(2, raised("sample 8 is broken", step=5), after=60.0)
    assert "sample 7 is broken" in scene.end.reason


def test_different_errors_do_not_end_the_run():
    scene = Scene(4, least=1)
    scene.say(0, raised("disk full", step=5))
    scene.say(1, raised("no memory", step=6))
    scene.say(2, Failed(5, Activity(Phase.COMPUTING), "OSError", "disk full", ""))
    assert scene.membership.end is None
    assert ids(scene.membership.view) == ["worker-3"]


def test_two_that_blame_a_third_did_not_fail_by_themselves():
    scene = Scene(4, least=1)
    scene.say(1, raised("worker-3 is gone", blames=("worker-3",)))
    scene.say(2, raised("worker-3 is gone", blames=("worker-3",)))
    assert scene.membership.end is None


@pytest.mark.parametrize(
    ("number", "steps", "ends"),
    [
        (signal.SIGSEGV, (7, 7), True),
        (signal.SIGABRT, (7, 7), True),
        (signal.SIGSEGV, (7, 8), False),
        (signal.SIGKILL, (7, 7), False),
        (signal.SIGTERM, (7, 7), False),
    ],
)
def test_a_crash_at_the_same_step_twice_ends_the_run(number: int, steps: tuple[int, int], ends: bool):
    scene = Scene(3, least=1)
    for worker, step in enumerate(steps):
        scene.happen(Noted(f"worker-{worker}", step, "computing"))
        scene.happen(Exited(f"worker-{worker}", -number), after=20.0)
    assert (scene.membership.end is not None) == ends
    if ends:
        assert scene.end.culprits == ("worker-0", "worker-1")
        assert "at step 7 (computing)" in scene.end.reason


@pytest.mark.parametrize("death", [LinkClosed(1), Exited("worker-0", -9)])
def test_a_worker_that_dies_after_it_was_done_does_not_matter(death: Event):
    scene = Scene(2, least=1)
    scene.say(0, Done(10))
    decisions = scene.happen(death)
    assert ids(new_view(decisions)) == ["worker-1"]  # so that it does not wait for it
    scene.say(1, Done(10))
    assert scene.end.ok


def test_a_worker_that_finished_while_another_needs_it_ends_the_run_as_ever():
    scene = Scene(2, least=1)
    scene.say(1, Done(9))
    while scene.membership.end is None:
        scene.say(0, Beat(10, Activity(Phase.EXCHANGING), scene.now, exchanging=True), after=0.1)
        scene.say(1, Beat(9, Activity(Phase.FINISHED)))
        scene.happen(Tick())
    assert scene.end.culprits == ("worker-1",)


# Coming late.


def test_who_was_not_started_is_not_expected():
    scene = Scene(2, least=1)
    refused = scene.say(2, Join(member(2), IDENTITY))
    assert isinstance(told(refused, 3)[0], Refuse)
    scene.happen(Started("worker-2"))
    assert ViewChange(scene.membership.view) in told(scene.say(2, Join(member(2), IDENTITY)), 3)
    scene.happen(Started("worker-0"))  # said of one that is known: nothing new
    assert ids(scene.membership.view) == ["worker-0", "worker-1"]


def test_who_joins_late_hears_all_posts_the_finished_calls_and_the_view_in_which_it_is_not():
    scene = Scene(2, least=1)
    posts = [Post("seed", b"7"), Post("size", b"2")]
    for post in (*posts, Post("seed", b"8")):
        scene.say(0, post)
    calls = [Finished(0, b"first"), Finished(1, b"second")]
    for call in calls:
        scene.say(0, call)
    decisions = scene.come_late(2)
    assert told(decisions, 3)[:5] == [Post("seed", b"8"), posts[1], *calls, ViewChange(scene.membership.view)]
    assert told(decisions, 1) == told(decisions, 2) == []
    assert ids(scene.membership.view) == ["worker-0", "worker-1"]
    assert [m.state for m in scene.membership.status(0.0).members[1:]] == ["training", "training", "joined"]


def test_what_a_call_returned_is_kept_once_and_told_to_late_ones_only():
    scene = Scene(2, least=1)
    decisions = scene.say(0, Finished(0, b"history"))
    assert told(decisions, 1) == told(decisions, 2) == []
    scene.come_late(2)
    assert scene.say(1, Finished(0, b"history")) == []  # everyone says it; the first is kept
    decisions = scene.say(1, Finished(1, b"metrics"))
    assert told(decisions, 3) == [Finished(1, b"metrics")]
    assert told(decisions, 1) == told(decisions, 2) == []
    assert scene.say(0, Finished(1, b"other")) == []
    late = told(scene.come_late(3), 4)
    assert [m.result for m in late if isinstance(m, Finished)] == [b"history", b"metrics"]


def test_a_call_that_one_has_left_with_an_error_is_over_for_all():
    scene = Scene(2, least=1)
    scene.come_late(2, call=3)
    decisions = scene.say(1, Caught(3, 5, b"boom"))
    view = scene.membership.view
    assert (view.number, view.call, ids(view)) == (2, 5, ["worker-0", "worker-1"])
    for link in (1, 2, 3):
        assert told(decisions, link)[:2] == [Finished(3, b"boom"), ViewChange(view)]
    assert scene.say(0, Caught(3, 4, b"boom too")) == []  # who has raised it too comes later
    assert scene.say(0, Finished(3, b"history")) == []
    scene.happen(Exited("worker-0", -9))
    assert scene.membership.view.call == 5  # in later views too


def test_an_error_that_one_has_caught_who_takes_no_part_is_its_own():
    scene = Scene(2, least=1)
    scene.come_late(2)
    assert scene.say(2, Caught(0, 1, b"boom")) == []
    assert scene.membership.view.number == 1


def test_one_that_is_ready_is_offered_to_all_when_a_place_is_free():
    scene = Scene(2, least=1)
    assert scene.come_late(2, call=4) == []  # no place is free
    decisions = scene.happen(Exited("worker-1", -9))
    assert told(decisions, 1)[-1] == Candidates((Candidate("worker-2", 4),))
    assert scene.happen(Tick(), after=0.1) == []  # said once
    assert scene.membership.status(0.0).members[3].state == "ready"


def test_never_more_are_offered_than_there_are_places():
    scene = Scene(3, least=1)
    for number in (1, 2):
        scene.happen(Exited(f"worker-{number}", -9))
    for number in (3, 4, 5):
        scene.come_late(number)
    offers: list[Decision] = []
    for number in (5, 4, 3):
        offers += scene.say(number, Ready(0))
    assert [len(m.who) for m in told(offers, 1) if isinstance(m, Candidates)] == [1, 2, 2]
    decisions = scene.say(0, Admit(3, ("worker-3", "worker-4")))
    assert ids(new_view(decisions)) == ["worker-0", "worker-3", "worker-4"]
    assert told(decisions, 1)[-1] == Candidates(())  # full again


def test_one_that_is_lost_is_no_longer_offered():
    scene = Scene(2, least=1)
    scene.happen(Exited("worker-1", -9))
    scene.come_late(2, call=0)
    decisions = scene.happen(Exited("worker-2", -9))
    assert told(decisions, 1)[-1] == Candidates(())
    assert new_view(decisions) is None  # it was in none


def test_who_is_let_in_is_in_the_next_view_and_is_told():
    scene = Scene(2, least=1)
    scene.happen(Exited("worker-0", -9))
    scene.come_late(2, call=0)
    decisions = scene.say(1, Admit(2, ("worker-2",)))
    view = new_view(decisions)
    assert view is not None
    assert (view.number, ids(view)) == (3, ["worker-1", "worker-2"])
    assert ViewChange(view) in told(decisions, 3)
    assert scene.membership.status(0.0).members[3].state == "training"


def test_to_let_in_what_others_have_let_in_already_changes_nothing():
    scene = Scene(3, least=1)
    scene.happen(Exited("worker-0", -9))
    scene.come_late(3, call=0)
    scene.say(1, Admit(2, ("worker-3",)))
    assert scene.say(2, Admit(2, ("worker-3",))) == []
    assert scene.membership.view is not None
    assert scene.membership.view.number == 3


@pytest.mark.parametrize("who", ["worker-1", "worker-3", "worker-9"], ids=["lost", "not ready", "unknown"])
def test_those_who_let_in_one_that_can_not_come_get_a_view_without_it_and_go_on(who: str):
    scene = Scene(2, least=1)
    scene.happen(Exited("worker-1", -9))
    scene.come_late(3)
    assert ids(new_view(scene.say(0, Admit(2, (who,))))) == ["worker-0"]


def test_newcomers_that_nobody_can_tell_anything_are_sent_back_and_may_be_ready_again():
    scene = Scene(2, least=1)
    scene.happen(Exited("worker-1", -9))
    scene.come_late(2, call=0)
    scene.say(0, Admit(2, ("worker-2",)))
    decisions = scene.say(0, Decline(3, ("worker-2",)))
    assert ids(new_view(decisions)) == ["worker-0"]
    assert ViewChange(scene.membership.view) in told(decisions, 3)
    assert scene.say(2, Decline(3, ("worker-2",))) == []  # the newcomer says it too
    assert told(scene.say(2, Ready(1)), 1) == [Candidates((Candidate("worker-2", 1),))]


def test_when_the_last_in_the_view_is_lost_those_who_wait_outside_can_not_go_on():
    scene = Scene(2, least=1)
    scene.happen(Exited("worker-1", -9))
    scene.come_late(2, call=0)
    scene.happen(Exited("worker-0", -9))
    assert not scene.end.ok
    assert "SIGKILL" in scene.end.reason


def test_one_that_waits_outside_does_not_keep_the_run_from_its_good_end():
    scene = Scene(2, least=1)
    scene.happen(Exited("worker-1", -9))
    scene.come_late(2, call=0)
    decisions = scene.say(0, Done(10))
    assert scene.end.ok
    assert told(decisions, 3) == [scene.end]


# Complaints.


def test_those_who_can_not_reach_each_other_get_a_fresh_view_after_a_moment():
    scene = Scene(3, least=1)
    assert scene.say(0, Complaint(1, ("worker-2",), "refused")) == []
    assert scene.happen(Tick(), after=GATHERING / 2) == []
    view = new_view(scene.happen(Tick(), after=GATHERING / 2))
    assert view is not None
    assert (view.number, ids(view)) == (2, ["worker-0", "worker-1", "worker-2"])
    assert scene.happen(Tick(), after=GATHERING) == []  # once


def test_a_complaint_about_one_that_turns_out_to_be_dead_is_settled_by_the_view_without_it():
    scene = Scene(3, least=1)
    scene.say(0, Complaint(1, ("worker-2",), "closed"))
    assert ids(new_view(scene.happen(Exited("worker-2", -9), after=0.1))) == ["worker-0", "worker-1"]
    assert new_view(scene.happen(Tick(), after=1.0)) is None


def test_one_that_others_can_not_reach_for_the_third_time_is_lost_and_cut_off():
    scene = Scene(3, least=1)
    for view in (1, 2):
        scene.say(0, Complaint(view, ("worker-2",), "no route"))
        assert len(ids(new_view(scene.happen(Tick(), after=GATHERING)))) == 3
    decisions = scene.say(0, Complaint(3, ("worker-2",), "no route"))
    assert ids(new_view(decisions)) == ["worker-0", "worker-1"]
    assert decisions.count(Fence(member(2))) == decisions.count(HangUp(3)) == 1
    (report,) = reports(decisions)
    assert "worker-2 (pid 102) could not be reached by worker-0" in report
    assert "no route" in report


def test_complaints_of_long_ago_do_not_count():
    scene = Scene(3, least=1)
    for view in range(1, 6):
        scene.say(0, Complaint(view, ("worker-2",), "no route"))
        scene.happen(Tick(), after=GATHERING)
        for number in range(3):
            scene.say(number, Beat(), after=(COMPLAINED_WITHIN + COMPLAINTS * Deadlines().stall) / 4)
    assert ids(scene.membership.view) == ["worker-0", "worker-1", "worker-2"]


@pytest.mark.parametrize("complaint", [Complaint(7, ("worker-2",), ""), Complaint(0, ("worker-2",), "")])
def test_a_complaint_in_another_view_is_none(complaint: Complaint):
    scene = Scene(3, least=1)
    scene.say(0, complaint)
    assert scene.happen(Tick(), after=1.0) == []


# One that lives but does not come.


def hangs(scene: Scene, seconds: float, every: float = 0.5) -> list[str]:
    """worker-1 runs its callbacks for so long while the others wait for it; all beat. What the user is told."""
    said: list[str] = []
    begun = scene.now
    while (waited := scene.now + every - begun) <= seconds:
        for number in range(3):
            doing = Activity(Phase.CALLBACKS if number == 1 else Phase.EXCHANGING)
            scene.say(number, Beat(4, doing, waited - every, exchanging=number != 1))
        said += reports(scene.happen(Tick(), after=every))
    return said


@pytest.mark.parametrize("by", [0, 2])
def test_one_that_lives_but_does_not_come_is_lost_when_its_time_is_up(by: int):
    scene = Scene(3, least=1)
    hangs(scene, 300)
    assert len(ids(scene.membership.view)) == 3
    # Who waits to connect can't tell the one that hangs from another that waits for it, too.
    missed = tuple(f"worker-{number}" for number in range(3) if number != by)
    decisions = scene.say(by, Complaint(1, missed, "worker-1 did not come", late=True))
    assert ids(new_view(decisions)) == ["worker-0", "worker-2"]
    assert decisions.count(Fence(member(1))) == decisions.count(HangUp(2)) == 1
    (report,) = reports(decisions)
    assert report == (
        f"worker-1 (pid 101) did not come within 300.0 s (deadline 300.0 s) to worker-{by}, which waited "
        "at step 4 (exchanging gradients); it was alive at step 4 (running callbacks); going on with 2 workers"
    )


def test_where_the_first_loss_ends_the_run_its_end_says_what_the_missing_one_did():
    scene = Scene(3)
    hangs(scene, 300)
    late = Failed(4, Activity(Phase.EXCHANGING), "PeerTimeout", "worker-1 did not come", "", ("worker-1",), late=True)
    scene.say(0, late)
    scene.happen(Tick(), after=GATHERING)
    assert scene.end.culprits == ("worker-1",)
    assert "worker-1 (pid 101) did not come within 300.0 s (deadline 300.0 s) to worker-0" in scene.end.reason
    assert "it was alive at step 4 (running callbacks)" in scene.end.reason
    assert "--timeout" in scene.end.advice


def test_of_those_who_wait_for_each_other_nobody_is_late():
    scene = Scene(2, least=1)
    for number in range(2):
        scene.say(number, Beat(4, Activity(Phase.EXCHANGING), 300.0, exchanging=True))
    scene.say(0, Complaint(1, ("worker-1",), "did not come", late=True))
    assert ids(new_view(scene.happen(Tick(), after=GATHERING))) == ["worker-0", "worker-1"]


def test_one_that_has_gone_on_is_not_late():
    """It had all it needed for a step that another could not end: the two can't hear each other."""
    scene = Scene(2, least=1)
    scene.say(0, Beat(4, Activity(Phase.EXCHANGING), 300.0, exchanging=True))
    scene.say(1, Beat(5, Activity(Phase.COMPUTING, "piece 3"), 299.0))
    scene.say(0, Complaint(1, ("worker-1",), "did not come", late=True))
    assert ids(new_view(scene.happen(Tick(), after=GATHERING))) == ["worker-0", "worker-1"]


def test_who_waits_for_whom_is_said_meanwhile_less_and_less_often():
    scene = Scene(3, least=1)
    assert hangs(scene, 4.5) == []
    scene = Scene(3, least=1)
    where = "which is at step 4 (running callbacks); it is lost after 300 s"
    assert hangs(scene, 299) == [
        f"worker-0 and worker-2 have waited for {waited} s for worker-1, {where}" for waited in (5, 10, 20, 40, 80, 160)
    ]
    assert hangs(scene, 9) == [f"worker-0 and worker-2 have waited for 5 s for worker-1, {where}"], "another wait"


def test_one_that_was_stopped_in_an_exchange_is_named_although_it_said_that_it_waits():
    scene = Scene(2, least=1)
    scene.say(1, Beat(4, Activity(Phase.EXCHANGING), 0.0, exchanging=True))  # and no more
    said = []
    for tenths in range(1, 48):
        scene.say(0, Beat(4, Activity(Phase.EXCHANGING), 1.0 + tenths / 10, exchanging=True), after=0.1)
        said += reports(scene.happen(Tick()))
    assert said == [
        "worker-0 has waited for 5 s for worker-1, which is at step 4 (exchanging gradients); it is lost after 300 s"
    ]


def test_what_a_beat_says_goes_on_until_the_next_one():
    """The stall time is over between two beats: nobody waits for the second one to say so."""
    scene = Scene(2, least=1)
    scene.say(0, Beat(4, Activity(Phase.EXCHANGING), 4.7, exchanging=True))
    scene.say(1, Beat(4, Activity(Phase.CALLBACKS), 4.7))
    assert reports(scene.happen(Tick(), after=0.2)) == []
    assert len(reports(scene.happen(Tick(), after=0.2))) == 1


@pytest.mark.parametrize(
    ("phase", "after"),
    [
        (Phase.READING, 10),
        (Phase.CALLBACKS, 10),
        (Phase.SCRIPT, 30),
        (Phase.STARTING, 30),
        (Phase.SAVING, 30),
        (Phase.EVALUATING, 120),
        (Phase.PREDICTING, 120),
        (Phase.COMPUTING, 120),
        (Phase.TRACING, 120),
        (Phase.JOINING, None),
    ],
)
def test_if_no_worker_gets_on_whatever_they_are_in_that_is_said_with_their_stacks(phase: Phase, after: float | None):
    scene, said = Scene(2, least=1), []
    for second in range(200):
        for number in range(2):
            scene.say(number, Beat(0, Activity(phase), float(second)))
        decisions = scene.happen(Tick(), after=1.0)
        if reports(decisions) and not said:
            said = [*reports(decisions), *(one.member for one in decisions if isinstance(one, ShowStack))]
    where = f"worker-0 is at step 0 ({phase}); worker-1 is at step 0 ({phase})"
    told = [f"no worker has got on for {after} s: {where}", "worker-0", "worker-1"]
    assert said == (told if after is not None else [])


def test_a_single_worker_may_do_outside_of_fit_what_it_likes():
    scene = Scene(1)
    scene.say(0, Beat(0, Activity(Phase.SCRIPT), 4000.0))
    assert reports(scene.happen(Tick())) == []


def test_the_stack_of_the_one_that_is_waited_for_is_asked_for():
    scene = Scene(3, least=1)
    for number in range(3):
        doing = Activity(Phase.CALLBACKS if number == 1 else Phase.EXCHANGING)
        scene.say(number, Beat(4, doing, 6.0, exchanging=number != 1))
    assert [decision.member for decision in scene.happen(Tick()) if isinstance(decision, ShowStack)] == ["worker-1"]


def test_that_a_model_is_compiled_for_long_is_nothing_unusual():
    scene = Scene(2, least=1)
    scene.say(0, Beat(0, Activity(Phase.EXCHANGING), 20.0, exchanging=True))
    scene.say(1, Beat(0, Activity(Phase.TRACING), 20.0))
    assert reports(scene.happen(Tick())) == []
    scene.say(0, Beat(0, Activity(Phase.EXCHANGING), 31.0, exchanging=True))
    assert len(reports(scene.happen(Tick()))) == 1


def test_who_has_not_joined_yet_is_said_meanwhile():
    scene = Scene(3, joined=False)
    scene.say(0, Join(member(0), IDENTITY))
    said = []
    for _ in range(290):
        scene.say(0, Beat())
        said += reports(scene.happen(Tick(), after=1.0))
    assert said == [
        f"the run has waited for {waited} s for worker-1 and worker-2 to join; it gives up after 300 s"
        for waited in (30, 60, 120, 240)
    ]


# Leaving.


def test_one_that_leaves_between_two_steps_is_no_loss():
    scene = Scene(3, least=1)
    decisions = scene.say(1, Leave())
    assert ids(new_view(decisions)) == ["worker-0", "worker-2"]
    assert reports(decisions) == ["worker-1 has left the run"]
    for event in (Exited("worker-1", 0), LinkClosed(2), Tick()):
        assert scene.happen(event, after=GATHERING) == []
    assert scene.membership.status(0.0).members[2].state == "finished"
    for number in (0, 2):
        scene.say(number, Done(9))
    assert scene.end.ok


def test_when_all_have_left_the_run_is_over():
    scene = Scene(2, least=1)
    for number in range(2):
        scene.say(number, Leave())
    assert scene.end.reason == "every worker has left the run"
    assert not scene.end.ok


def test_the_place_of_one_that_left_is_free():
    scene = Scene(2, least=1)
    scene.come_late(2, call=0)
    assert told(scene.say(1, Leave()), 1)[-1] == Candidates((Candidate("worker-2", 0),))


def test_nobody_declines_the_chief():
    """How it ended is waited for: it may have ended the script. Meanwhile it is in the view."""
    scene = Scene(3, least=1)
    scene.happen(LinkClosed(1))
    scene.happen(LinkClosed(3))
    before = scene.membership.view
    scene.say(1, Decline(1, ("worker-0",)))
    assert scene.membership.view == before


# Whatever happens, in whatever order.

_numbers = st.integers(0, 5)
_names = _numbers.map("worker-{}".format)
_messages = st.one_of(
    st.builds(Beat, st.integers(0, 3)),
    st.builds(Done, st.integers(0, 3)),
    st.builds(raised, st.sampled_from(["a", "b"]), st.tuples() | st.tuples(_names), st.integers(0, 3)),
    st.builds(Post, st.just("x"), st.binary(max_size=1)),
    st.builds(Ready, st.integers(0, 1)),
    st.builds(Finished, st.integers(0, 2), st.just(b"")),
    st.builds(Admit, st.integers(1, 6), st.lists(_names, max_size=2).map(tuple)),
    st.builds(Decline, st.integers(1, 6), st.lists(_names, max_size=1).map(tuple)),
    st.just(Leave()),
    st.builds(Complaint, st.integers(1, 6), st.lists(_names, max_size=2).map(tuple), st.just("no route")),
)
_happenings = st.one_of(
    st.tuples(st.just("say"), _numbers, _messages),
    st.tuples(st.just("join"), _numbers, st.none()),
    st.tuples(st.just("close"), _numbers, st.none()),
    st.tuples(st.just("exit"), _numbers, st.sampled_from([0, 1, -9, -11])),
    st.tuples(st.just("tick"), _numbers, st.sampled_from([0.1, 1.0, 6.0])),
)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.lists(_happenings, max_size=40))
def test_whatever_happens_views_follow_each_other_and_the_end_is_said_once(workers, least, happenings):
    scene = Scene(workers, least=least)
    for number in range(workers, 6):
        scene.happen(Started(f"worker-{number}"))
    seen: list[Decision] = []
    lost: set[str] = set()
    for what, number, detail in happenings:
        before = scene.membership.view
        if what == "say":
            decisions = scene.say(number, detail)
        elif what == "join":
            decisions = scene.say(number, Join(member(number), IDENTITY))
        elif what == "close":
            decisions = scene.happen(LinkClosed(number + 1))
        elif what == "exit":
            decisions = scene.happen(Exited(f"worker-{number}", detail))
        else:
            decisions = scene.happen(Tick(), after=detail)
        seen += decisions
        for one in scene.membership.status(scene.now).members:
            lost |= {one.id} if one.state == "lost" else set()
        numbers = [m.view.number for d in decisions for m in told([d], 1) + told([d], 6) if isinstance(m, ViewChange)]
        published = scene.membership.view
        assert published is not None
        assert before is not None
        assert published.number - before.number in (0, 1)
        assert all(number <= published.number for number in numbers)
        if scene.membership.end is None:
            there = {one.id for one in published.workers}
            assert there
            waits = there <= lost or published.chief.id in lost
            assert waits or not lost & there, "how they ended is waited for only if all are lost, or the chief is"
            assert published.enough == (len(published.workers) >= least)
    ends = [decision for decision in seen if isinstance(decision, RunOver)]
    assert len(ends) == (scene.membership.end is not None)
    named = [text.partition(" ")[0] for text in reports(seen)]
    assert len(named) == len(set(named)), "somebody was reported twice"


# What somebody asks from another terminal.

CLIENT = 77


def asked(scene: Scene, request: DrainRequest | ScaleRequest | PlaceRequest) -> tuple[Message, list[Decision]]:
    """The answer, and what else was decided. The connection is closed after it."""
    first, *others, last = scene.happen(Said(CLIENT, request))
    assert isinstance(first, Tell)
    assert (first.links, last) == ((CLIENT,), HangUp(CLIENT))
    return first.message, others


def test_who_is_drained_is_told_and_its_place_is_not_filled_again():
    scene = Scene(3, least=1)
    answer, others = asked(scene, DrainRequest("worker-1"))
    assert answer == Answer(True, "worker-1 leaves after its step")
    assert [type(message) for message in told(others, 2)] == [Drain]
    assert told(others, 1) == []
    view = new_view(scene.say(1, Leave()))
    assert ids(view) == ["worker-0", "worker-2"]
    scene.come_late(3, call=0)
    assert scene.membership._offers.made == ()


@pytest.mark.parametrize("least", [1, None])
def test_a_drain_that_can_not_be_is_refused(least):
    scene = Scene(2, least=least)
    answer, others = asked(scene, DrainRequest("worker-7" if least else "worker-1"))
    assert isinstance(answer, Answer)
    assert not answer.ok
    assert ("there is worker-0, worker-1" if least else "--fail-fast") in answer.text
    assert others == []


def test_scaling_up_wants_workers_and_offers_those_who_come():
    scene = Scene(2, least=1)
    answer, others = asked(scene, ScaleRequest(4))
    assert answer == Answer(True, "2 workers now, 4 soon")
    assert others == [WantWorkers(2)]
    scene.come_late(2, call=0)
    scene.come_late(3, call=0)
    assert [candidate.id for candidate in scene.membership._offers.made] == ["worker-2", "worker-3"]


def test_scaling_down_drains_the_last_ones():
    scene = Scene(4, least=1)
    _, others = asked(scene, ScaleRequest(2))
    assert [link for link in range(1, 5) if told(others, link)] == [3, 4]


def test_scaling_below_the_minimum_is_refused():
    answer, others = asked(Scene(4, least=2), ScaleRequest(1))
    assert isinstance(answer, Answer)
    assert "at least 2" in answer.text
    assert others == []


def test_a_guest_comes_on_top_of_the_workers_and_another_in_its_place():
    scene = Scene(2, least=1)
    (place, _), (again, _) = asked(scene, PlaceRequest()), asked(scene, PlaceRequest())
    assert isinstance(place, JoinerPlace)
    assert isinstance(again, JoinerPlace)
    assert (place.member, again.member) == ("worker-1000", "worker-1001")
    scene.come_late(1000, call=0)
    assert [candidate.id for candidate in scene.membership._offers.made] == ["worker-1000"]
    assert new_view(scene.say(0, Admit(1, ("worker-1000",)))) is not None
    scene.happen(LinkClosed(1001))
    scene.come_late(2, call=0)  # a standby does not take a guest's place
    assert scene.membership._offers.made == ()
    scene.come_late(1001, call=0)
    assert [candidate.id for candidate in scene.membership._offers.made] == ["worker-1001"]


def test_before_the_first_view_one_is_told_to_ask_again():
    answer, _ = asked(Scene(2, joined=False, least=1), PlaceRequest())
    assert answer == Answer(False, "the run has not begun yet", again=True)


# A coordinator in the place of one that died.


def restored(scene: Scene) -> Scene:
    """Another coordinator, which has read what this one wrote down."""
    written = msgspec.msgpack.encode(scene.membership.record())
    record = msgspec.msgpack.decode(written, type=MembershipRecord)
    other = Scene(2, joined=False)
    other.now = scene.now
    other.membership = Membership.restored(record, config(3, least=1), COORDINATOR, scene.now)
    return other


def test_members_join_the_next_coordinator_again_and_the_view_stays():
    scene = Scene(3, least=1)
    scene.say(0, Post("seed", b"7"))
    scene.say(0, Finished(0, b"history"))
    scene.happen(LinkClosed(3))
    after = restored(scene)
    for number in (0, 1):
        decisions = after.say(number, Join(member(number), IDENTITY))
        assert Post("seed", b"7") in told(decisions, number + 1)
        assert ViewChange(scene.membership.view) in told(decisions, number + 1)
    assert after.membership.view == scene.membership.view
    (report,) = after.happen(Tick(), after=0.1)  # which the coordinator before did not come to
    assert isinstance(report, ReportTrouble)
    assert report.text.startswith("worker-2 (pid 102) closed its connection")
    assert after.happen(Tick(), after=0.1) == []
    after.say(0, Beat(3, Activity(Phase.COMPUTING)))
    view = new_view(after.happen(LinkClosed(1)))
    assert (view.number, ids(view)) == (3, ["worker-1"])  # no number is given twice


def test_what_a_coordinator_was_about_to_tell_when_it_died_the_next_one_tells():
    """It writes down what it has decided, and then does it: between the two it may be killed."""
    scene = Scene(3, least=1)
    scene.happen(LinkClosed(3))
    while not (said := reports(scene.happen(Tick(), after=0.1))):
        pass
    for _ in range(2):
        after = restored(scene)
        assert reports(after.happen(Tick(), after=0.1)) == said
        scene = after  # which is killed at the same moment
    after.happen(Tick(), after=0.1)
    assert reports(restored(after).happen(Tick(), after=0.1)) == []  # it was told


def test_who_was_lost_before_stays_outside_and_who_does_not_come_again_is_lost():
    scene = Scene(3, least=1)
    scene.happen(LinkClosed(3))
    after = restored(scene)
    (refusal,) = told(after.say(2, Join(member(2), IDENTITY)), 3)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is RefusalReason.OUTSIDE
    after.say(0, Join(member(0), IDENTITY))
    for _ in range(60):
        after.say(0, Beat(1, Activity(Phase.TRAINING)), after=0.1)
        after.happen(Tick())
    assert ids(after.membership.view) == ["worker-0"]


def test_who_was_started_as_the_coordinator_died_may_come_before_the_launcher_has_said_so():
    """Over the same few milliseconds it hears of it from both; the first asks again, and is not sent away."""
    after = restored(Scene(3, least=1))
    assert after.say(3, Join(member(3), IDENTITY)) == [HangUp(4)]
    after.happen(Started("worker-3"))
    decisions = after.say(3, Join(member(3), IDENTITY))
    assert ViewChange(after.membership.view) in told(decisions, 4)
    (refusal,) = told(after.say(4, Join(member(4), IDENTITY), after=60.0), 5)
    assert refusal.reason is RefusalReason.UNKNOWN_MEMBER  # nobody has started it


def test_nothing_is_written_down_before_there_is_a_view():
    assert Scene(2, joined=False, least=1).membership.record() is None


class Servants:
    """A coordinator service that remembers which servers it was told of."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []

    def take(self, workers, servers, expected, now, hosts):
        self.told.append(sorted(servers))
        return []

    def tick(self, now):
        return []

    def welcomes(self, call):
        return False

    def record(self):
        return b""


@pytest.mark.parametrize("role", ["worker", "server"])
def test_one_that_is_dying_is_not_waited_for_until_its_memory_is_given_back(role):
    coordinator_service = Servants()
    settings = config(2, least=1, servers=Servers(2, 2, None))
    membership = Membership(settings, COORDINATOR, 0.0, coordinator_service)
    servers = (Member(f"server-{n}", "server", 200 + n, "here", "this one", "unix:/s") for n in range(2))
    members = [*map(member, range(2)), *servers]
    for link, one in enumerate(members, 1):
        membership.handle(Said(link, Join(one, IDENTITY)), 0.0)
    assert coordinator_service.told[-1] == ["server-0", "server-1"]
    decisions = membership.handle(Ending(f"{role}-1"), 1.0)
    assert coordinator_service.told[-1] == (["server-0", "server-1"] if role == "worker" else ["server-0"])
    assert (new_view(decisions) is not None) == (role == "worker")

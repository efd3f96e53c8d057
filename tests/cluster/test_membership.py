from __future__ import annotations

import msgspec
import pytest

from shoal.cluster.events import Closed, Evidence, Exited, HangUp, Interrupted, Over, Said, Tick
from shoal.cluster.membership import GATHERING
from shoal.cluster.messages import (
    Beat,
    Done,
    End,
    Failed,
    Join,
    Post,
    Reason,
    Refuse,
    StatusReply,
    StatusRequest,
    ViewChange,
)

from .scene import IDENTITY, Scene, member, told


def raised(error: str = "boom", blames: tuple[str, ...] = (), step: int = 3) -> Failed:
    kind = "PeerClosed" if blames else "ValueError"
    return Failed(step, "computing", kind, error, f"Traceback: {error}", blames)


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
        (Join(member(7), IDENTITY), Reason.UNKNOWN_MEMBER, "worker-7 is not one of worker-0, worker-1"),
        (Join(member(0), IDENTITY), Reason.TAKEN, "worker-0 has already joined, with pid 100"),
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
    assert refusal.reason is Reason.UNLIKE
    assert "threads is 2 on worker-1 and 1 on worker-0" in refusal.text
    scene.happen(Tick(), after=GATHERING)
    assert "keras is '3.16' on worker-1 and '3.15' on worker-0" in scene.end.reason
    assert scene.end.culprits == ("worker-1",)


def test_a_message_before_join_is_refused():
    scene = Scene(joined=False)
    (refusal,) = told(scene.say(0, Beat()), 1)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is Reason.NOT_JOINED


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
    assert decisions[-1] == Over(scene.end)
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
    scene.say(1, Beat(8, "exchanging"))
    scene.happen(Closed(2), after=1.0)
    scene.happen(Exited("worker-1", -9), after=0.1)
    scene.happen(Tick(), after=GATHERING)
    assert scene.end.reason == (
        "worker-1 (pid 101) was killed by SIGKILL at step 8 (exchanging), 1.1 s after it was last heard"
    )
    assert "out of memory" in scene.end.advice


def test_a_process_that_ends_before_it_joined_is_named():
    scene = Scene(joined=False)
    scene.happen(Exited("worker-1", 3))
    scene.happen(Tick(), after=GATHERING)
    assert "worker-1 exited with code 3" in scene.end.reason
    assert "before it had joined" in scene.end.reason


def silent_for(scene: Scene, seconds: float, evidence: dict[str, Evidence]) -> None:
    """Worker 1 says nothing; worker 0 goes on; the coordinator ticks."""
    for _ in range(round(seconds * 10)):
        scene.say(0, Beat(1, "fit"), after=0.1)
        scene.happen(Tick(evidence))


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
        scene.say(0, Beat(10, "exchanging fit step 10", scene.now, exchanging=True), after=0.1)
        scene.say(1, Beat(9, "finished"))
        scene.happen(Tick())
    assert scene.end.culprits == ("worker-1",)
    assert "worker-1 finished its script at step 9, but worker-0 has been waiting for it" in scene.end.reason


def test_a_worker_that_finished_while_another_does_something_of_its_own_is_none():
    scene = Scene()
    scene.say(1, Done(9))
    for _ in range(600):
        scene.say(0, Beat(9, "running the script", scene.now), after=0.1)
        scene.say(1, Beat(9, "finished"))
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
        scene.say(number, Failed(0, "starting", "SystemExit", "4", "", code=4))
    assert scene.end.code == 4
    assert "the script on all 2 workers exited with code 4" in scene.end.reason


def test_an_interrupt_ends_at_once_and_is_the_last_word():
    scene = Scene()
    decisions = scene.happen(Interrupted("it was interrupted", 130))
    assert scene.end == End(False, 130, "it was interrupted")
    assert told(decisions, 1) == [scene.end]
    assert scene.happen(Closed(1)) == scene.happen(Tick(), after=1.0) == []
    (refusal, *_) = told(scene.happen(Said(9, Join(member(0), IDENTITY))), 9)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is Reason.OVER


def test_status_shows_what_the_beats_said():
    scene = Scene()
    scene.say(1, Beat(12, "fit", 0.1, 512.0))
    (reply,) = told(scene.happen(Said(77, StatusRequest()), after=2.0), 77)
    assert isinstance(reply, StatusReply)
    assert (reply.run, reply.view, reply.uptime, reply.pieces) == ("r1", 1, 2.0, 2)
    coordinator, idle, busy = reply.members
    assert (coordinator.role, coordinator.pid, coordinator.state) == ("coordinator", 99, "serving")
    assert (idle.state, busy.state) == ("training", "training")
    assert (busy.step, busy.doing, busy.samples_per_second, busy.pid) == (12, "fit", 512.0, 101)

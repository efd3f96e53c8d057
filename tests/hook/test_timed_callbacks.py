"""What is known of callbacks after they were called one after the other."""

from __future__ import annotations

from shoal.hook.calls.timed_callbacks import TimedCallbacks


class Quiet:
    def hook(self, model: dict[str, bool]) -> None:
        pass


class Patient(Quiet):
    def hook(self, model: dict[str, bool]) -> None:
        model["stop"] = True


class Late(Patient):
    pass


def test_the_first_callback_that_stops_the_training_is_known() -> None:
    model, seconds = {"stop": False}, dict[str, float]()
    called = TimedCallbacks([Quiet(), Patient(), Late()], seconds, lambda: model["stop"])
    assert called.stopped_by == ""
    for _ in range(2):
        for callback in called:
            callback.hook(model)
    assert called.stopped_by == "Patient"
    assert seconds.keys() == {"Quiet", "Patient", "Late"}


def test_who_finds_it_stopped_did_not_stop_it() -> None:
    called = TimedCallbacks([Patient()], {}, lambda: True)
    for callback in called:
        callback.hook({})
    assert called.stopped_by == ""

"""How a host asks a run for places: who is asked again, and for how long."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.launch import places
from shoal.launch.places import PlaceAsker, ScriptHere
from shoal.wire import names
from shoal.wire.keys import RunKey


def _asks(monkeypatch: pytest.MonkeyPatch, patient: bool) -> int:
    """How often the name of a host is looked up that no name server knows now."""
    looked_up: list[str] = []

    def lookup(host: str) -> tuple[str, ...]:
        looked_up.append(host)
        raise UsageError(f"the name {host!r} was not found")

    monkeypatch.setattr(places, "_AGAIN", 0.01)
    monkeypatch.setattr(names, "lookup", lookup)
    asker = PlaceAsker("first:4000", RunKey.new(), None, ScriptHere("train.py", (), False), None)
    with pytest.raises(UsageError, match="can't reach the run: the name 'first' was not found"):
        asker.ask(patient=patient, within=0.1)
    return len(looked_up)


def test_who_takes_part_already_asks_again_when_a_name_server_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _asks(monkeypatch, patient=True) > 1


def test_who_has_mistyped_a_name_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _asks(monkeypatch, patient=False) == 1

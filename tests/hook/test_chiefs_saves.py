"""What the others hear of a file that the chief writes for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shoal.errors import CallOver, ViewChanged
from shoal.hook.patching.chiefs_saves import save_for_all
from shoal.training.outcomes import RaisedError


class Announcing:
    """A run that only keeps what is announced."""

    me = "worker-0"

    def __init__(self) -> None:
        self.announced: list[tuple[str, str, bytes]] = []

    def unfollowed(self, act: Callable[[], Any]) -> Any:
        return act()

    def announce(self, what: str, path: str, failure: bytes = b"") -> None:
        self.announced.append((what, path, failure))


def test_a_file_that_is_written_is_announced_as_such() -> None:
    run = Announcing()
    assert save_for_all(run, "save", "m.keras", lambda: 7) == 7  # type: ignore[arg-type]
    assert run.announced == [("save", "m.keras", b"")]


@pytest.mark.parametrize(
    "error", [OSError(28, "no space"), KeyboardInterrupt(), SystemExit(3), ViewChanged(2), CallOver()], ids=repr
)
def test_whatever_ends_a_save_is_announced_as_a_failure(error: BaseException) -> None:
    def fail() -> None:
        raise error

    run = Announcing()
    with pytest.raises(type(error)):
        save_for_all(run, "save", "m.keras", fail)  # type: ignore[arg-type]
    ((_, _, failure),) = run.announced
    assert msgspec.msgpack.decode(failure, type=RaisedError).kind == type(error).__name__

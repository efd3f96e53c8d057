"""The places that this host has in a run that is coordinated elsewhere, and when all have been left. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.cluster.exits import ENDED
from shoal.cluster.messages import End
from shoal.launch.supervision.decisions import NOT_REPLACED


@dataclass(frozen=True, slots=True)
class GuestLeft:
    """How the last who had a place ended."""

    id: str
    code: int


class Guests:
    """The run goes on elsewhere: for this host it is over when nobody takes part from here, and nobody is to come."""

    def __init__(self) -> None:
        self._place_of: dict[str, str] = {}  # member -> the place that it was given
        self._here: set[str] = set()
        self._left: dict[str, GuestLeft | None] = {}  # place -> None while somebody has it, or is to come
        self._interrupted: int | None = None  # what to exit with

    def give(self, id: str, place: str) -> None:
        """This member is to come, in this place."""
        self._place_of[id] = place
        self._left[place] = None

    def come(self, id: str) -> None:
        """Its process is there."""
        self._here.add(id)

    def leave(self, id: str, code: int) -> None:
        """Its process has ended."""
        self._here.remove(id)
        self._left[self._place_of[id]] = GuestLeft(id, code)

    def expect(self, place: str) -> GuestLeft | None:
        """Another is to come in this place; returns who had it."""
        left = self._left.get(place)
        self._left[place] = None
        return left

    def give_up(self, place: str, left: GuestLeft | None) -> None:
        """Nobody comes in this place any more."""
        if left is None:
            self._left.pop(place, None)
        else:
            self._left[place] = left

    @property
    def are_here(self) -> bool:
        """Whether somebody takes part from here now."""
        return bool(self._here)

    @property
    def have_been_here(self) -> bool:
        """Whether somebody has taken part, and has left on purpose."""
        return any(left is not None and left.code in NOT_REPLACED for left in self._left.values())

    def interrupt(self, code: int) -> None:
        """The user wants an end: whoever is to come need not. The first word counts."""
        self._interrupted = self._interrupted or code

    @property
    def is_interrupted(self) -> bool:
        return self._interrupted is not None

    def end(self) -> End | None:
        """If it is over. The code is 0 if all have left on purpose; the reason, if there is one, is for the user."""
        if self._here or (None in self._left.values() and not self.is_interrupted):
            return None
        code = next(filter(None, map(self._code, self._left.values())), 0)
        lost = [left for left in self._left.values() if left is not None and left.code not in NOT_REPLACED]
        reason = f"{lost[0].id} ended with code {lost[0].code}; giving up" if lost and not self.is_interrupted else ""
        return End(ok=code == 0, code=code, reason=reason)

    def _code(self, left: GuestLeft | None) -> int:
        if left is not None and left.code in NOT_REPLACED:
            return 0 if left.code == ENDED else left.code
        return self._interrupted or 1

"""What a worker says to the user of its own accord: on the terminal, and in the run's story."""

from __future__ import annotations

import sys
from collections.abc import Callable

from shoal.observe.story import Story, StoryKind

_MOST_TOLD = 100  # lines


class UserLines:
    """Those of one worker. Each is said once, however often a script trains."""

    def __init__(
        self, story: Story | None, me: str, send: Callable[[StoryKind, str, int | None], None] | None = None
    ) -> None:
        """`story`: None on another host than the launcher's. What belongs into it is sent there."""
        self._story = story
        self._me = me
        self._send = send
        self._told: set[str] = set()

    def tell(self, text: str, below_bar: bool) -> None:
        """`below_bar`: Keras shows a line of its own, which this one must not follow."""
        if text not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(text)
            start = "\nshoal" if below_bar else "shoal"
            print(f"{start}: {text}", file=sys.stderr, flush=True)

    def happened(self, kind: StoryKind, text: str, step: int | None) -> None:
        if self._story is not None:
            self._story.write(kind, text, self._me, step)
        elif self._send is not None:
            self._send(kind, text, step)

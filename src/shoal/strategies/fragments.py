"""Which part of a model replicas exchange, and when, if they do so a part at a time while they go on. Pure.

    every=6, two fragments   | steps 0-2 | steps 3-5       | steps 6-8       | steps 9-11      | the epoch ends
    meanwhile                |           | fragment 0      | fragment 1      | fragment 0      | both, and all wait

What is exchanged in a stretch is how far replicas had moved when it began. Its outcome counts from the next one on. All
of it follows from the step of the epoch, so that whoever comes or goes on from a checkpoint knows it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FragmentSchedule:
    """Of so many fragments, each of which is exchanged after `every` steps. That is divided evenly among them."""

    every: int
    fragments: int

    @property
    def stretch(self) -> int:
        """Steps between two exchanges."""
        return self.every // self.fragments

    def left(self, step: int) -> int:
        """Steps from this one of the epoch to the end of its stretch."""
        return self.stretch - step % self.stretch

    def during(self, step: int) -> int | None:
        """The fragment that is exchanged while the stretch of this step goes on; None in the first."""
        number = step // self.stretch
        return (number - 1) % self.fragments if number else None

    def before(self, step: int) -> int | None:
        """The fragment that was exchanged in the stretch that ended before this step, and has come home by now."""
        return self.during(step - 1) if step else None


def cut(sizes: Sequence[int], count: int) -> tuple[range, ...]:
    """Variables of these sizes as `count` runs, none of them empty, about equal in size. At least one for each."""
    if not 1 <= count <= len(sizes):
        raise ValueError(f"{len(sizes)} variables can't be cut into {count} fragments")
    whole, done, start = sum(sizes), 0, 0
    runs: list[range] = []
    for number, size in enumerate(sizes):
        left = count - len(runs) - 1  # runs that are still to come after this one
        done += size
        full = done * count >= whole * (len(runs) + 1)
        if left and (full or len(sizes) - number - 1 == left):
            runs.append(range(start, number + 1))
            start = number + 1
    return (*runs, range(start, len(sizes)))

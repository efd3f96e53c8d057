"""Checkpoints where each host has a folder of its own: each gets a whole copy. Pure.

What all workers have alike is written once in each folder, by the workers that write there; so any host that is left
has all of it. A folder is named by the host that came first to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.checkpoint.divide import divide


class FolderWriters(NamedTuple):
    """Who writes to whose folder, by worker; empty: it writes nowhere."""

    folders: Mapping[str, str]

    @property
    def writers(self) -> tuple[str, ...]:
        return tuple(member for member, folder in self.folders.items() if folder)

    def beside(self, member: str) -> tuple[str, ...]:
        """Those that write to the same folder as this one, itself too; nobody, if it writes nowhere."""
        mine = self.folders.get(member, "")
        return tuple(other for other in self.writers if self.folders[other] == mine)

    def hosts(self, member: str) -> tuple[str, ...]:
        """Whose folders get a copy, this member's first."""
        return tuple(dict.fromkeys((self.folders[member], *sorted(filter(None, self.folders.values())))))

    def share(self, member: str, sizes: Mapping[str, int]) -> list[str]:
        """The tensors that a member writes, of all by name and bytes."""
        beside = self.beside(member)
        return divide(sizes, len(beside))[beside.index(member)] if beside else []

    def leads(self, member: str, alive: Sequence[str]) -> bool:
        """Whether it is this one that makes the parts in its folder a checkpoint: the first that is still there."""
        beside = [other for other in self.beside(member) if other in alive]
        return bool(beside) and beside[0] == member


def readers(wholes: Sequence[bool]) -> list[int]:
    """The ranks that may read a checkpoint for all, one after another, until one finds it undamaged: by whether each
    sees a copy with all its parts.
    """
    return [rank for rank, whole in enumerate(wholes) if whole]

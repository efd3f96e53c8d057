"""What every kind of storage can do. What goes wrong with it is an OSError, whatever its library raises."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from shoal.checkpoint.addresses import Place
from shoal.checkpoint.drafts import Draft
from shoal.checkpoint.manifest import Manifest
from shoal.checkpoint.parts import Held


class StoreUnreachable(OSError):
    """A store refused to answer, or can't be asked. Says nothing of what is there."""


class AbstractStoredFile(abc.ABC):
    """A file of a checkpoint, to be read."""

    size: int  # in bytes

    @abc.abstractmethod
    def tensors(self, name: str) -> Held:
        """What it says that it holds, without reading the rest. BadCheckpoint, with this name, if it is no part."""

    @abc.abstractmethod
    def digest(self) -> str:
        """Of all of it."""

    @abc.abstractmethod
    def read(self) -> bytes:
        """All of it; fewer bytes than its size if it shrinks meanwhile: then its digest won't match."""


class AbstractStorage(abc.ABC):
    """A folder of checkpoints, or a checkpoint, in some kind of storage.

    What is being written is a draft; nobody takes it for a checkpoint until `put_in_place` has come back, and then it
    is whole. A process that is killed at any moment leaves what was there before.
    """

    @abc.abstractmethod
    def claimed(self, run: str, say: Callable[[str], None]) -> AbstractContextManager[int | None]:
        """As long as this lasts, no other run writes there, if the storage can see to it; who can't, says so.

        UsageError if another run does, or nothing can be written there. Gives a descriptor, if there is one: a process
        that inherits it keeps the claim.
        """

    @abc.abstractmethod
    def checkpoints(self) -> list[Place]:
        """All that is named like a checkpoint, newest first. Nothing if there is no such folder."""

    @abc.abstractmethod
    def is_checkpoint(self) -> bool:
        """Whether this is named or built like one, not like a folder of them. UsageError if there is nothing."""

    @abc.abstractmethod
    def look(self) -> None:
        """BadCheckpoint if this can't be one."""

    @abc.abstractmethod
    def opened(self, name: str, folder: str | None = None) -> AbstractContextManager[AbstractStoredFile]:
        """A file of this checkpoint, or of the folder of this name in it. BadCheckpoint if it is not there."""

    @abc.abstractmethod
    def opened_part(self, draft: Draft, name: str) -> AbstractContextManager[AbstractStoredFile]:
        """A part of a draft."""

    @abc.abstractmethod
    def joined(self, draft: Draft) -> AbstractContextManager[None]:
        """As long as this lasts, or this process lives, others can tell that the draft is being written."""

    @abc.abstractmethod
    def write(self, draft: Draft, name: str, chunks: Iterable[memoryview], size: int) -> None:
        """A part of a draft. Returns when it is kept for good. If the chunks raise, nothing is left of it."""

    @abc.abstractmethod
    def folder_of_parts(self, draft: Draft) -> str | None:
        """The folder, within a checkpoint, in which the parts of this draft will be."""

    @abc.abstractmethod
    def put_in_place(self, draft: Draft, document: bytes, parts: Sequence[str], before: Manifest | None) -> None:
        """Makes a draft with these parts a checkpoint, by its manifest. `before`: of the one whose place it takes."""

    @abc.abstractmethod
    def discard(self, draft: Draft) -> None:
        """Removes what has been written of it."""

    @abc.abstractmethod
    def remove(self, checkpoint: Place) -> None:
        """Removes one of this folder's. At once nobody takes it for one any more."""

    @abc.abstractmethod
    def sweep(self, current: Draft) -> None:
        """Removes drafts that nobody writes any more: those of dead runs, and older ones of the current draft's run."""

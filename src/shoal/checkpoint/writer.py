"""One member's hand in the checkpoints of a run.

At a step's end `begin` copies the member's tensors; that copy is all that training waits for. A thread writes the part,
hashing as it goes. `poll` tells what became of it. When all members have told the chief their parts, it calls
`publish`, which also happens in the background. One thing at a time: while `busy`, nothing can begin.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.checkpoint import manifest
from shoal.checkpoint.drafts import Draft
from shoal.checkpoint.image import Array, Image, layout_of
from shoal.checkpoint.manifest import CheckpointPart, part_name
from shoal.checkpoint.publish import NotWritten, PublishedCheckpoint, failed, publish
from shoal.checkpoint.storage.choice import storage_of

CHUNK = 4 * 2**20  # bytes between two looks at whether to go on
CLOSE_WITHIN = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Written:
    """This member's part is on disk, in the draft. The chief needs to know it before it publishes."""

    draft: Draft
    part: CheckpointPart


Outcome = Written | PublishedCheckpoint | NotWritten


class _Abandoned(Exception):
    """The writer was closed while it wrote."""


class Writer:
    """Writes parts in the background. All its methods are for one thread, the one that trains."""

    def __init__(self) -> None:
        self._image: Image | None = None
        self._thread: threading.Thread | None = None
        self._outcome: Outcome | None = None
        self._abandon = threading.Event()
        self._held = contextlib.ExitStack()  # as long as this member has part in a draft, nobody sweeps it away

    @property
    def busy(self) -> bool:
        """Whether something is still being written."""
        return self._thread is not None and self._thread.is_alive()

    def prepare(self, arrays: Mapping[str, Array]) -> None:
        """Takes the memory for such arrays, with all its pages: the first checkpoint then costs what the others do."""
        self._must_be_idle()
        with contextlib.suppress(MemoryError):  # `begin` will tell
            self._image_for(arrays).touch()

    def begin(self, draft: Draft, number: int, arrays: Mapping[str, Array]) -> None:
        """Copies the arrays and returns; then writes them as the draft's part of this number.

        The memory for the copy is kept for the next checkpoint. What goes wrong with memory or disk is an outcome; a
        tensor of a type that no checkpoint can hold is a UsageError.
        """
        self._must_be_idle()
        self._let_go()
        try:
            image = self._image_for(arrays)
            image.fill(arrays)
        except MemoryError:
            self._image = None
            wanted = sum(array.nbytes for array in arrays.values()) / 2**20
            self._outcome = failed(draft, MemoryError(f"no memory for a copy of its tensors ({wanted:,.0f} MiB)"))
            return
        self._start(draft, lambda: self._write(draft, part_name(number), image.view()))

    def publish(
        self,
        draft: Draft,
        parts: Sequence[CheckpointPart],
        header: Any,
        keep: int = 1,
        hosts: tuple[str, ...] = (),
        needed: Mapping[str, int] | None = None,
    ) -> None:
        """For the chief: makes the draft a checkpoint, in the background, as publish.py does.

        The header must not change until that is done.
        """
        self._must_be_idle()
        self._start(draft, lambda: publish(draft, parts, header, keep, hosts, needed or {}))

    def discard(self, draft: Draft) -> None:
        """A part failed, here or elsewhere: removes all that was written of this draft, in the background."""
        self._must_be_idle()
        self._let_go()
        self._start(draft, lambda: _discarded(draft))

    def poll(self) -> Outcome | None:
        """What became of the last `begin` or `publish`; None as long as that is open. Never waits."""
        return None if self.busy else self._outcome

    def wait(self, seconds: float) -> Outcome | None:
        """As `poll`, but waits for so long at most."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self.poll()

    def close(self, seconds: float = CLOSE_WITHIN) -> None:
        """Ends the thread: a part that is half written is given up and removed. To have it finished, `wait` first.

        Waits for so long at most. A thread that hangs in the kernel longer than that is left to the process's end. A
        draft that nobody publishes any more is swept away when the next checkpoint is published there.
        """
        self._abandon.set()
        if self._thread is not None:
            self._thread.join(seconds)
        self._let_go()
        self._image = None

    def _image_for(self, arrays: Mapping[str, Array]) -> Image:
        layout = layout_of(arrays)
        if self._image is None or self._image.layout != layout:
            self._image = None  # the old memory goes before the new is taken
            self._image = Image(layout)
        return self._image

    def _start(self, draft: Draft, work: Callable[[], Outcome]) -> None:
        def run() -> None:
            try:
                self._outcome = work()
            except Exception as error:
                self._outcome = failed(draft, error)

        self._outcome = None
        # A daemon: a thread that hangs on a dead disk must not keep the process from ending.
        self._thread = threading.Thread(target=run, name=f"checkpoint of step {draft.step}", daemon=True)
        self._thread.start()

    def _write(self, draft: Draft, name: str, data: memoryview) -> Outcome:
        storage, digest = storage_of(draft.folder), hashlib.new(manifest.DIGEST)

        def chunks() -> Iterator[memoryview]:
            for start in range(0, len(data), CHUNK):
                if self._abandon.is_set():
                    raise _Abandoned("it was given up when the run ended")
                chunk = data[start : start + CHUNK]
                digest.update(chunk)
                yield chunk

        try:
            self._held.enter_context(storage.joined(draft))
            storage.write(draft, name, chunks(), len(data))
        except (OSError, _Abandoned) as error:
            return failed(draft, error)
        return Written(draft, CheckpointPart(name, len(data), digest.hexdigest()))

    def _must_be_idle(self) -> None:
        if self._abandon.is_set():
            raise RuntimeError("this writer is closed")
        if self.busy:
            raise RuntimeError("the last checkpoint is still being written: look at `busy` first")

    def _let_go(self) -> None:
        if not self.busy:
            self._held.close()


def _discarded(draft: Draft) -> NotWritten:
    storage_of(draft.folder).discard(draft)
    return NotWritten(draft.step, f"the checkpoint of step {draft.step} was given up")

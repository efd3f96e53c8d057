"""Checkpoints in folders of a file system. A draft is a hidden folder, which is renamed when all of it is on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import final

from shoal.checkpoint import claims, files, manifest
from shoal.checkpoint.addresses import Place
from shoal.checkpoint.drafts import Draft, checkpoints, step_of, sweep
from shoal.checkpoint.manifest import Manifest
from shoal.checkpoint.parts import Held, tensors_in
from shoal.checkpoint.storage.abstract import AbstractStorage, AbstractStoredFile
from shoal.errors import BadCheckpoint, UsageError
from shoal.wire.held_folder import hold

_CHUNK = 2**30  # bytes asked for at once: the kernel gives no more than 2 GiB


@final
class LocalFile(AbstractStoredFile):
    """A file that is open."""

    def __init__(self, file: FileIO, size: int) -> None:
        self._file = file
        self.size = size

    def tensors(self, name: str) -> Held:
        return tensors_in(self._file.fileno(), name)

    def digest(self) -> str:
        return hashlib.file_digest(self._file, manifest.DIGEST).hexdigest()

    def read(self) -> bytes:
        chunks, left = [], self.size
        while left > 0 and (chunk := self._file.read(min(left, _CHUNK))):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)


@final
class LocalStorage(AbstractStorage):
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def claimed(self, run: str, say: Callable[[str], None]) -> Iterator[int | None]:
        with claims.claim(self._folder, run, say) as descriptor:
            yield descriptor

    def checkpoints(self) -> list[Place]:
        return [*checkpoints(self._folder)]

    def is_checkpoint(self) -> bool:
        path = self._folder
        if not path.is_dir():
            raise UsageError(f"there is no folder {path}: name a folder of checkpoints, or one of them")
        return step_of(path.resolve()) is not None or (path / manifest.FILE).exists()

    def look(self) -> None:
        path = self._folder
        if path.is_symlink():
            raise BadCheckpoint("it is a link: name the folder that it leads to")
        if not path.is_dir():
            raise BadCheckpoint("there is no such folder" if not path.exists() else "it is not a folder")

    @contextlib.contextmanager
    def opened(self, name: str, folder: str | None = None) -> Iterator[AbstractStoredFile]:
        inside = self._folder / folder if folder is not None else self._folder
        if folder is not None and inside.is_symlink():
            raise BadCheckpoint(f"{folder} in it is a link")
        with files.plain_file(inside / name) as (file, size):
            yield LocalFile(file, size)

    @contextlib.contextmanager
    def opened_part(self, draft: Draft, name: str) -> Iterator[AbstractStoredFile]:
        with files.plain_file(self._draft(draft) / name) as (file, size):
            yield LocalFile(file, size)

    @contextlib.contextmanager
    def joined(self, draft: Draft) -> Iterator[None]:
        path = self._draft(draft)
        path.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):  # a file system without locks; a draft that is gone is found next
                held.enter_context(hold(path))
            yield

    def write(self, draft: Draft, name: str, chunks: Iterable[memoryview], size: int) -> None:
        path = self._draft(draft) / name
        try:
            with files.new_file(path) as descriptor:
                for chunk in chunks:
                    files.write_all(descriptor, chunk)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def folder_of_parts(self, draft: Draft) -> str | None:
        return None

    def put_in_place(self, draft: Draft, document: bytes, parts: Sequence[str], before: Manifest | None) -> None:
        """What has this step's name already stays in sight, as `.old`, until the new one is there."""
        written, place = self._draft(draft), self._folder / draft.name
        for path in written.iterdir():
            if path.name not in parts:
                path.unlink()
        with files.new_file(written / manifest.FILE) as descriptor:
            files.write_all(descriptor, memoryview(document))
        files.sync_folder(written)
        old = place.with_name(f"{place.name}.old")
        if os.path.lexists(place):
            files.remove(old)
            place.rename(old)
        written.rename(place)
        files.sync_folder(self._folder)
        files.remove(old)

    def discard(self, draft: Draft) -> None:
        files.remove(self._draft(draft))

    def remove(self, checkpoint: Place) -> None:
        files.remove(self._folder / checkpoint.name)

    def sweep(self, current: Draft) -> None:
        sweep(self._folder, current)

    def _draft(self, draft: Draft) -> Path:
        return self._folder / draft.hidden_name

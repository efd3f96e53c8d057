"""Files that grow and that are replaced when they are full: up to where somebody has read them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO


class FollowedFiles:
    """Of a file and the one before it. Who reads so seldom that two became full in between misses the first."""

    def __init__(self) -> None:
        self.offset = 0  # bytes that were read of the file; whoever reads adds to it
        self._file: tuple[int, int] | None = None  # device and number

    def unread(self, files: Sequence[BinaryIO]) -> Iterator[BinaryIO]:
        """Each that may have something new, at the place where to go on. The older one comes first."""
        identities = [(stat.st_dev, stat.st_ino) for stat in (os.fstat(file.fileno()) for file in files)]
        begin = identities.index(self._file) if self._file in identities else 0
        for file, identity in list(zip(files, identities, strict=True))[begin:]:
            if identity != self._file:
                self._file, self.offset = identity, 0
            file.seek(self.offset)
            yield file

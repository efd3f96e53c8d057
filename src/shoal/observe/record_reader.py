"""Reads a record and a story that are still being written, everything once."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from shoal.observe.followed_files import FollowedFiles
from shoal.observe.record_files import frames_in, generations, members, over_before, spans_of
from shoal.observe.spans import Span, SpanBlock
from shoal.observe.story import OLDER, STORY, StoryEvent


class RecordReader:
    """What the members of a run did, from the first that is there. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: defaultdict[str, FollowedFiles] = defaultdict(FollowedFiles)
        self._last: dict[str, SpanBlock] = {}  # of each member

    def new(self, most: int) -> Iterator[tuple[str, list[Span]]]:
        """What each member has done since the last call. Of each about so many spans: the rest is for the next call."""
        for member in members(self._folder):
            spans: list[Span] = []
            for block in self._blocks(member):
                before = self._last.get(member)
                if before is not None and not block.goes_on_from(before):
                    spans.extend(before.unfinished(member))  # its process was killed, and another took its name
                spans.extend(block.of(member))
                self._last[member] = block
                if len(spans) >= most:
                    break
            if spans:
                yield member, spans

    def unfinished(self) -> Iterator[tuple[str, list[Span]]]:
        """What went on when members were last heard of. For the end."""
        for member, block in self._last.items():
            yield member, list(block.unfinished(member))

    def _blocks(self, member: str) -> Iterator[SpanBlock]:
        followed = self._files[member]
        with generations(self._folder, member) as files:
            for file in followed.unread(files):
                for frame in frames_in(file):
                    block = frame.block()
                    if block is None or block.spans or block.lost:  # else the next frame replaces it
                        followed.offset += frame.size
                    if block is not None:
                        yield block


class RecentRecord:
    """The end of a record, again and again: what was over before is not looked at twice. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts: dict[tuple[int, int], int] = {}  # by file: bytes before what counted last

    def read(self, since: float) -> Mapping[str, Sequence[Span]]:
        """As record_files.read does. `since` must not be earlier than the last time."""
        seen: dict[tuple[int, int], int] = {}
        found = {member: spans_of(member, self._blocks(member, since, seen)) for member in members(self._folder)}
        self._starts = seen  # files that are gone are forgotten
        return {member: spans for member, spans in found.items() if spans}

    def _blocks(self, member: str, since: float, seen: dict[tuple[int, int], int]) -> Iterator[SpanBlock]:
        with generations(self._folder, member) as files:
            for file in files:
                about = os.fstat(file.fileno())
                identity = (about.st_dev, about.st_ino)
                seen[identity] = over_before(file, since, self._starts.get(identity, 0))
                file.seek(seen[identity])
                for frame in frames_in(file, since):
                    if (block := frame.block()) is not None:
                        yield block


class StoryReader:
    """What happened to a run. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._followed = FollowedFiles()
        self._decode = msgspec.json.Decoder(StoryEvent).decode

    def new(self) -> Iterator[StoryEvent]:
        """Since the last call."""
        with contextlib.ExitStack() as stack:
            files = []
            for name in (OLDER, STORY):
                with contextlib.suppress(OSError):
                    files.append(stack.enter_context((self._folder / name).open("rb")))
            for file in self._followed.unread(files):
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._followed.offset += len(line)
                    with contextlib.suppress(msgspec.DecodeError):
                        yield self._decode(line)

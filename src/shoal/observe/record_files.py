"""The record of what each member did, in the folder of a run's logs: one file per member, and the one before it.

A file is a row of frames, each a block of spans that a member has written within half a second. What was going on when
a frame was written stands at the file's end until the next frame replaces it: when a member is killed, it is the last
that is known of it. A file that is full becomes the older one, and the one before that is deleted.

    frame: magic, length of the payload, checksum of all that follows, shared time of its end, payload
    payload: a SpanBlock as msgpack, compressed
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from shoal.observe.spans import Span, SpanBlock

SPANS, OLDER_SPANS = ".spans", ".spans.older"  # after a member's id
LIMIT = 4 << 20  # bytes of each of the two
TRACE_LIMIT = 16 << 20  # the same in a run of which a trace was asked for
MOST_READ = 2_000_000  # spans of a member: of more than that, the last
_HEAD = struct.Struct("<4sIId")
_TIMED = struct.Struct("<d")
_MAGIC = b"spn1"
_LONGEST_PAYLOAD = 1 << 20  # compressed
_LONGEST_BLOCK = 4 << 20
_FASTEST = 1  # of zlib's levels
_MEMBER = re.compile(r"(worker|server)-\d{1,9}|coordinator")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SpanBlock).decode


class RecordFile:
    """One member's record, from the only one who writes it. What can't be written is lost, and nothing fails."""

    def __init__(self, folder: Path, member: str, limit: int = LIMIT) -> None:
        self._path = folder / f"{member}{SPANS}"
        self._older = folder / f"{member}{OLDER_SPANS}"
        self._limit = limit
        self._end = _sound_length(self._path)  # a process of the same name may have been killed while it wrote

    def write(self, block: SpanBlock) -> None:
        frame = to_frame(block)
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._write(fd, frame, block)
            finally:
                os.close(fd)

    def _write(self, fd: int, frame: bytes, block: SpanBlock) -> None:
        self._end = min(self._end, os.fstat(fd).st_size)  # somebody has deleted it
        if os.pwrite(fd, frame, self._end) < len(frame) or not (block.spans or block.lost):
            return  # the next frame replaces this one
        self._end += len(frame)
        if self._end > self._limit:
            os.ftruncate(fd, self._end)
            self._path.replace(self._older)
            self._end = 0


def read(folder: Path, since: float = 0.0, most: int = MOST_READ) -> Mapping[str, Sequence[Span]]:
    """What each member did, by its id, in the order in which it began. May be called while a run goes on.

    `since`: without most of what was over before this shared time, which need not be read then. `most`: spans of each
    member, the last. What nobody of ours wrote, and what was cut off, is passed over.
    """
    found = {member: spans_of(member, _blocks(folder, member, since), most) for member in members(folder)}
    return {member: spans for member, spans in found.items() if spans}


def members(folder: Path) -> list[str]:
    """Those that have left a record."""
    try:
        names = {path.name.partition(".")[0] for path in folder.glob(f"*{SPANS}*")}
    except OSError:
        return []
    return sorted((name for name in names if _MEMBER.fullmatch(name)), key=_by_role_and_number)


def dropped(folder: Path) -> Mapping[str, int]:
    """How many spans of each member were lost because it recorded faster than they could be written."""
    return {member: sum(block.lost for block in _blocks(folder, member, 0.0)) for member in members(folder)}


def remove(folder: Path) -> None:
    """What another run has left in the same folder."""
    for member in members(folder):
        for suffix in (SPANS, OLDER_SPANS):
            (folder / f"{member}{suffix}").unlink(missing_ok=True)


def to_frame(block: SpanBlock) -> bytes:
    payload = zlib.compress(_encode(block), _FASTEST)
    until = _TIMED.pack(block.until)
    return _HEAD.pack(_MAGIC, len(payload), zlib.crc32(payload, zlib.crc32(until)), block.until) + payload


def from_frame(frame: bytes) -> SpanBlock | None:
    """The block in a frame that came from elsewhere; None if it is none."""
    if len(frame) < _HEAD.size:
        return None
    magic, length, checksum, until = _HEAD.unpack_from(frame)
    found = Frame(magic, length, checksum, until, frame[_HEAD.size :])
    return found.block() if found.is_sound else None


class Frame(NamedTuple):
    """As it stands in a file."""

    magic: bytes
    length: int
    checksum: int
    until: float
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return _HEAD.size + self.length

    @property
    def is_sound(self) -> bool:
        checksum = zlib.crc32(self.payload, zlib.crc32(_TIMED.pack(self.until)))
        return self.magic == _MAGIC and len(self.payload) == self.length and checksum == self.checksum

    def block(self) -> SpanBlock | None:
        try:
            return _decode(zlib.decompressobj().decompress(self.payload, _LONGEST_BLOCK))
        except (zlib.error, msgspec.DecodeError, ValueError):
            return None


def spans_of(member: str, blocks: Iterable[SpanBlock], most: int = MOST_READ) -> list[Span]:
    """The spans of these blocks, which follow each other, in the order in which they began; of more, the last."""
    spans: deque[Span] = deque(maxlen=most)
    before: SpanBlock | None = None
    for block in blocks:
        if before is not None and not block.goes_on_from(before):
            spans.extend(before.unfinished(member))  # its process was killed, and another took its name
        spans.extend(block.of(member))
        before = block
    if before is not None:
        spans.extend(before.unfinished(member))
    return sorted(spans, key=lambda span: (span.start, span.inside))


def _blocks(folder: Path, member: str, since: float) -> Iterator[SpanBlock]:
    with generations(folder, member) as files:
        for file in files:
            for frame in frames_in(file, since):
                if (block := frame.block()) is not None:
                    yield block


@contextlib.contextmanager
def generations(folder: Path, member: str) -> Iterator[Sequence[BinaryIO]]:
    """A member's files, the older one first. It is opened last: if the other became the older one meanwhile, it is
    there once."""
    files: list[BinaryIO] = []
    with contextlib.ExitStack() as stack:
        for suffix in (SPANS, OLDER_SPANS):
            with contextlib.suppress(OSError):
                file = stack.enter_context((folder / f"{member}{suffix}").open("rb"))
                if not files or not os.path.samestat(os.fstat(file.fileno()), os.fstat(files[0].fileno())):
                    files.insert(0, file)
        yield files


def frames_in(file: BinaryIO, since: float = 0.0) -> Iterator[Frame]:
    """Those that are whole, up to the first that is not."""
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        magic, length, checksum, until = _HEAD.unpack(head)
        if magic != _MAGIC or length > _LONGEST_PAYLOAD:
            return
        if until < since:
            file.seek(length, os.SEEK_CUR)
            continue
        frame = Frame(magic, length, checksum, until, file.read(length))
        if not frame.is_sound:
            return
        yield frame


def over_before(file: BinaryIO, since: float, start: int) -> int:
    """Where the first frame begins that is not over by then; `start`: where this was found before. The last frame is
    never passed: it may be replaced."""
    file.seek(start)
    begins = 0  # where there is no frame, as if it was never looked at
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        magic, length, _, until = _HEAD.unpack(head)
        if magic != _MAGIC or length > _LONGEST_PAYLOAD:
            break
        begins = start
        if until >= since:
            break
        start += _HEAD.size + length
        file.seek(length, os.SEEK_CUR)
    return begins


def _sound_length(path: Path) -> int:
    """Bytes up to the first frame that is not whole."""
    try:
        with path.open("rb") as file:
            return sum(frame.size for frame in frames_in(file))
    except OSError:
        return 0


def _by_role_and_number(member: str) -> tuple[str, int]:
    role, _, number = member.partition("-")
    return (role != "worker") * role, int(number or 0)

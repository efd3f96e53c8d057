"""Writes a Chrome trace of what a run has left among its logs."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import IO, cast

import msgspec

from shoal.errors import UsageError
from shoal.observe import record_files, story
from shoal.observe.chrome_trace import MOST_EVENTS, ChromeTrace, encode, make_trace

COMPRESSED = ".gz"
_QUICK = 1  # of gzip's levels


class TraceSummary(msgspec.Struct, frozen=True):
    """What a trace holds."""

    file: str
    members: int
    spans: int
    seconds: float  # from the first to the last
    is_cut: bool = False  # it begins later than the record: there were too many spans
    dropped: int = 0  # spans that were never written down

    def __str__(self) -> str:
        missing = ["what was before that is left out"] if self.is_cut else []
        missing += [f"{self.dropped:,} spans were dropped while it trained"] if self.dropped else []
        who = f"{self.members} members" if self.members != 1 else "1 member"
        return "; ".join([f"{self.spans:,} spans of {who} over {self.seconds:,.1f} s", *missing])


def write_trace(logs: Path, file: Path, last: float | None = None) -> TraceSummary:
    """Of the whole record of a run, or of its `last` seconds. A file whose name ends in .gz is compressed.

    UsageError if there is no record, or the file can't be written. Nobody sees half of one.
    """
    each = MOST_EVENTS // max(1, len(record_files.members(logs)))
    record = record_files.read(logs, most=each + 1)  # one more, to see whether there are more
    if not record:
        raise UsageError(f"no member of the run has left a record in {logs}. Was it started with --no-record?")
    end = max(span.end for spans in record.values() for span in spans)
    since = end - last if last is not None else 0.0
    recent = {member: [span for span in spans if span.end > since] for member, spans in record.items()}
    trace = make_trace(recent, (event for event in story.read(logs) if event.at > since), each)
    spans = sum(map(len, recent.values())) - trace.left_out
    dropped = sum(record_files.dropped(logs).values())
    summary = TraceSummary(str(file), len(recent), spans, end - trace.start, trace.left_out > 0, dropped)
    _write(file, trace, summary)
    return summary


def _write(file: Path, trace: ChromeTrace, summary: TraceSummary) -> None:
    about = {"start": str(trace.start), "what": str(summary), "clock": "of the host where the run was started"}
    draft = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        with _open(draft, file.name.endswith(COMPRESSED)) as output:
            for part in encode(trace, about):
                output.write(part)
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(f"can't write the trace to {file}: {error.strerror}.") from error


def _open(path: Path, is_compressed: bool) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "wb", _QUICK)) if is_compressed else path.open("wb")

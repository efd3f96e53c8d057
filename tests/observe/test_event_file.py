"""Scalars for TensorBoard, read back by TensorBoard's own reader."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from shoal.observe.event_file import EventFile, record

from .board import read_scalars, read_times


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    file, begun = EventFile(tmp_path / "logs" / "shoal"), time.time()
    file.add({"shoal/workers": 2.0, "shoal/time/waiting": 0.25}, step=7)
    file.add({"shoal/workers": -1.0}, step=200)  # a number whose last seven bits are not all
    file.add({"shoal/workers": 3.0, "shoal/ratio": float("nan")}, step=300_000_000_000)
    read = read_scalars(tmp_path / "logs" / "shoal")
    assert read["shoal/workers"] == [(7, 2.0), (200, -1.0), (300_000_000_000, 3.0)]
    assert begun <= min(read_times(tmp_path / "logs" / "shoal")["shoal/workers"]) <= time.time()
    assert read["shoal/time/waiting"] == [(7, 0.25)]
    assert math.isnan(read["shoal/ratio"][0][1])


@pytest.mark.parametrize("text", [b"", b"123456789", bytes(range(256)) * 9])
def test_checksums_are_those_of_tensorboard(text: bytes) -> None:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    ours = record(text)
    assert int.from_bytes(ours[8:12], "little") == masked_crc32c(ours[:8])
    assert int.from_bytes(ours[-4:], "little") == masked_crc32c(text)

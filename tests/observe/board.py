"""What is in the files of TensorBoard, by TensorBoard's own reader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# In a process of its own, in which there is no TensorFlow: the reader would import it.
_READS = """
import json, sys
sys.modules["tensorflow"] = None
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1])
found.Reload()
tags = found.Tags()
scalars = {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in tags["scalars"]}
if len(sys.argv) > 2:
    scalars = {tag: [event.wall_time for event in found.Scalars(tag)] for tag in tags["scalars"]}
print(json.dumps(scalars | {tag: [] for tag in tags["tensors"]}))
"""


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value by tag. Of tags that hold tensors only the name."""
    return {tag: [(step, value) for step, value in values] for tag, values in _read(folder).items()}


def read_times(folder: Path) -> dict[str, list[float]]:
    """Seconds since the epoch, by tag."""
    return _read(folder, "times")


def _read(folder: Path, *what: str) -> Any:
    read = subprocess.run([sys.executable, "-c", _READS, folder, *what], capture_output=True, text=True, timeout=100)
    assert read.returncode == 0, read.stderr
    return json.loads(read.stdout)

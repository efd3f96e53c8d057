"""Checkpoints for tests: what is in them depends on the step alone. Needs neither keras nor pytest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.checkpoint.divide import divide
from shoal.checkpoint.drafts import Draft
from shoal.checkpoint.publish import PublishedCheckpoint, publish
from shoal.checkpoint.read import Checkpoint
from shoal.checkpoint.writer import Writer, Written

LIMIT = 30.0  # seconds for one write; only a broken one takes so long


def arrays_of(step: int, size: int = 1000) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(step)
    return {
        "trainable/0/dense/kernel": rng.normal(size=(size // 10, 10)).astype(np.float32),
        "trainable/1/dense/bias": rng.normal(size=10).astype(np.float32),
        "state/0/counter": np.array(step, np.int64),
        "optimizer/0/momentum": rng.normal(size=size),
    }


def header_of(step: int) -> dict[str, Any]:
    return {"epoch": step // 10, "seed": 7, "model": None}


def write(
    folder: Path,
    step: int,
    members: int = 2,
    run: str = "r1",
    keep: int = 1000,
    size: int = 1000,
    training: str | None = None,
) -> Path:
    """A checkpoint as several members write it."""
    draft = Draft(folder, run, step, training=training)
    arrays = arrays_of(step, size)
    shares = divide({name: array.nbytes for name, array in arrays.items()}, members)
    writers = [Writer() for _ in shares]
    try:
        for number, (writer, names) in enumerate(zip(writers, shares, strict=True)):
            writer.begin(draft, number, {name: arrays[name] for name in names})
        told = [writer.wait(LIMIT) for writer in writers]
        parts = [written.part for written in told if isinstance(written, Written)]
        assert len(parts) == members, told
        published = publish(draft, parts, header_of(step), keep)
        assert isinstance(published, PublishedCheckpoint), published
        assert published.warning == ""
        return published.path
    finally:
        for writer in writers:
            writer.close()


def is_right(checkpoint: Checkpoint, size: int = 1000) -> bool:
    """Whether a checkpoint holds, bit for bit, what its step should."""
    expected = arrays_of(checkpoint.step, size)
    return (
        checkpoint.header == header_of(checkpoint.step)
        and checkpoint.arrays.keys() == expected.keys()
        and all(
            checkpoint.arrays[name].dtype == array.dtype
            and checkpoint.arrays[name].shape == array.shape
            and checkpoint.arrays[name].tobytes() == array.tobytes()
            for name, array in expected.items()
        )
    )

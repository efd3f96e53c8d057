"""A small training on data of which each sample takes a millisecond to read: `data_training.py FOLDER KIND`."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

import shoal

SHARDS, ROWS, STEPS = 8, 4, 60  # rows of a shard's batch
BATCH = SHARDS * ROWS
SAMPLES = BATCH * STEPS
SKIPPED = 10  # steps, in which engines still compile and data is still opened
LATENCY = 0.001  # seconds
X = np.random.default_rng(1).normal(size=(SAMPLES, 16)).astype("float32")
read = 0


def sample(index: int) -> tuple[np.ndarray, np.ndarray]:
    global read
    read += 1
    time.sleep(LATENCY)
    return X[index], X[index, :1]


def joined(indices: Any) -> tuple[np.ndarray, np.ndarray]:
    x, y = zip(*[sample(int(index)) for index in indices], strict=True)
    return np.stack(x), np.stack(y)


def in_shard(shard: int) -> range:
    return range(shard, SAMPLES, SHARDS)


def stream() -> Any:
    def make(shard: int) -> Iterator[Any]:
        mine = in_shard(shard)
        for first in range(0, len(mine), ROWS):
            yield joined(mine[first : first + ROWS])

    return shoal.stream(make, SHARDS)


def grain() -> Any:
    import grain

    samples = grain.MapDataset.range(SAMPLES).map(sample)
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)  # else one worker reads with 16 threads
    return shoal.stream(lambda shard: samples[shard::SHARDS].to_iter_dataset(options).batch(ROWS), SHARDS)


def hugging_face() -> Any:
    import datasets

    def make(shard: int) -> Any:
        def rows() -> Iterator[dict[str, Any]]:
            for index in in_shard(shard):
                x, y = sample(index)
                yield {"x": x, "y": y}

        return datasets.IterableDataset.from_generator(rows).with_format("numpy").batch(ROWS)

    return shoal.stream(make, SHARDS, map=lambda rows: (rows["x"], rows["y"]))


def grain_map() -> Any:
    import grain

    return grain.MapDataset.range(SAMPLES).shuffle(seed=1).map(sample).batch(BATCH)


def loader() -> Any:
    import torch

    class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            return sample(index)

    return torch.utils.data.DataLoader(Samples(), batch_size=BATCH)


def rows() -> Any:
    class Table(keras.utils.PyDataset):
        def __len__(self) -> int:
            return STEPS

        def num_rows(self, index: int) -> int:
            return BATCH

        def rows(self, index: int, low: int, high: int) -> Any:
            return joined(range(index * BATCH + low, index * BATCH + high))

        def __getitem__(self, index: int) -> Any:
            return self.rows(index, 0, BATCH)

    return Table()


class Clock(keras.callbacks.Callback):
    """When each step was done."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.times.append(time.perf_counter())


def main(folder: Path, kind: str) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = {one.__name__: one for one in (stream, grain, hugging_face, grain_map, loader, rows)}[kind]()
    clock = Clock()
    model.fit(data, verbose=0, shuffle=False, callbacks=[clock])
    assert len(clock.times) == STEPS
    weights = hashlib.sha256(b"".join(np.asarray(one).tobytes() for one in model.get_weights())).hexdigest()
    rate = BATCH * (STEPS - 1 - SKIPPED) / (clock.times[-1] - clock.times[SKIPPED])
    told = {"rate": rate, "rows": read / SAMPLES, "weights": weights}
    (folder / f"{shoal.rank()}.json").write_text(json.dumps(told))


main(Path(sys.argv[1]), sys.argv[2])

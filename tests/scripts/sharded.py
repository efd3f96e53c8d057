"""Every kind of data of which a worker reads its own rows only: `sharded.py OUT`, on any number of workers."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import grain
import keras
import numpy as np
import torch

import shoal

SHARDS, BATCHES, ROWS = 8, 20, 4  # of each shard, and of each of its batches
SAMPLES = SHARDS * BATCHES * ROWS
READ: Counter[str] = Counter()
X = np.random.default_rng(1).normal(size=(SAMPLES, 3)).astype("float32")


def sample(kind: str, index: int) -> tuple[np.ndarray, np.ndarray]:
    READ[kind] += 1
    return X[index], X[index].sum(keepdims=True)


def joined(samples: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    x, y = zip(*samples, strict=True)
    return np.stack(x), np.stack(y)


def generated(shard: int, number: int) -> Iterator[Any]:
    """In another order in every pass."""
    order = np.random.default_rng([shard, number]).permutation(BATCHES * ROWS).reshape(BATCHES, ROWS)
    for batch in order:
        yield joined([sample("generated", shard * BATCHES * ROWS + int(index)) for index in batch])


def of_grain(shard: int) -> Any:
    source = grain.MapDataset.range(SAMPLES)[shard::SHARDS].map(lambda index: sample("grain", index))
    return source.to_iter_dataset().batch(ROWS)


def of_hugging_face(shard: int) -> Any:
    def rows() -> Iterator[dict[str, Any]]:
        for index in range(shard, SAMPLES, SHARDS):
            x, y = sample("hugging_face", index)
            yield {"x": x, "y": y}

    return datasets.IterableDataset.from_generator(rows).with_format("numpy").batch(ROWS)


class Numbered(torch.utils.data.Dataset):  # type: ignore[misc]
    """As a datasets.Dataset: many rows at once are cheaper than one by one."""

    def __init__(self) -> None:
        self._rows = datasets.Dataset.from_dict({"x": X, "y": X.sum(1, keepdims=True)}).with_format("numpy")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("they are asked for together")

    def __getitems__(self, indices: list[int]) -> Any:
        READ["numbered"] += len(indices)
        return [(row["x"], row["y"]) for row in self._rows.__getitems__(indices)]


class ByRow(keras.utils.PyDataset):
    def __len__(self) -> int:
        return BATCHES

    def num_rows(self, index: int) -> int:
        return SAMPLES // BATCHES

    def rows(self, index: int, low: int, high: int) -> Any:
        first = index * self.num_rows(index)
        return joined([sample("py_dataset", first + row) for row in range(low, high)])

    def __getitem__(self, index: int) -> Any:
        return self.rows(index, 0, self.num_rows(index))


def data() -> dict[str, Callable[[], Any]]:
    batch = SHARDS * ROWS
    samples = grain.MapDataset.range(SAMPLES).shuffle(seed=3).map(lambda index: sample("grain_map", index))
    return {
        "generated": lambda: shoal.stream(generated, SHARDS),
        "grain": lambda: shoal.stream(of_grain, SHARDS),
        "hugging_face": lambda: shoal.stream(of_hugging_face, SHARDS, map=lambda row: (row["x"], row["y"])),
        "grain_map": lambda: samples.batch(batch),
        "numbered": lambda: torch.utils.data.DataLoader(Numbered(), batch_size=batch, shuffle=True),
        "py_dataset": ByRow,
    }


class Unhurried(keras.layers.Layer):  # type: ignore[misc]
    """Pieces take as long on every worker, whatever else the machine does: none moves to one that is faster."""

    def call(self, x: Any) -> Any:
        time.sleep(0.01)
        return x


def trained(given: Any, **settings: Any) -> str:
    keras.utils.set_random_seed(3)
    hidden = keras.layers.Dense(8, "relu")
    model = keras.Sequential([keras.layers.Input((3,)), Unhurried(), hidden, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(given, verbose=0, **({"epochs": 1} | settings))
    return b"".join(np.asarray(weight).tobytes() for weight in model.get_weights()).hex()


def main(out: Path) -> None:
    told: dict[str, Any] = {"weights": {}, "read": {}}
    for kind, make in data().items():
        READ.clear()
        told["weights"][kind] = trained(make())
        told["read"][kind] = READ[kind] / SAMPLES
    stream = shoal.stream(generated, SHARDS)
    told["weights"]["several"] = trained(
        stream, epochs=3, steps_per_epoch=15, validation_data=shoal.stream(generated, SHARDS), validation_steps=5
    )
    READ.clear()
    told["predicted"] = (
        keras.Sequential([keras.layers.Input((3,)), keras.layers.Identity()])
        .predict(shoal.stream(lambda shard: (x for x, _ in generated(shard, 0)), SHARDS), verbose=0)
        .tolist()
    )
    told["read"]["predicted"] = READ["generated"] / SAMPLES
    (out.parent / f"{out.name}-{shoal.rank()}.json").write_text(json.dumps(told))


main(Path(sys.argv[1]))

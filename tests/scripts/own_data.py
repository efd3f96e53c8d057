"""Workers whose data is not the same, by chance or by rank: `own_data.py OUT`, on two workers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import scipy.sparse
import tensorflow as tf
import torch

import shoal

DENSE = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])


def trained(*data: Any, **settings: Any) -> list[float]:
    """The weights after an epoch, from the same beginning."""
    model = keras.models.clone_model(DENSE)
    model.set_weights([np.ones((3, 1)), np.zeros(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(*data, verbose=0, **({"shuffle": False} | settings))
    return [float(value) for weight in model.get_weights() for value in weight.reshape(-1)]


def by_chance() -> np.random.Generator:
    """As many make a seed: another one in every process."""
    return np.random.default_rng(int.from_bytes(os.urandom(8), "little"))


class Some(keras.utils.PyDataset):
    """Batches of a generator's numbers, as many as it says."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self._count = int(rng.integers(3, 6))
        self._x = rng.normal(size=(self._count, 8, 3)).astype("float32")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._x[index], self._x[index].sum(axis=1, keepdims=True)


def left_to_chance() -> dict[str, Any]:
    """Before anybody has asked for its rank."""
    told: dict[str, Any] = {}
    samples = int(by_chance().integers(40, 60))
    x, y = by_chance().normal(size=(samples, 3)), by_chance().normal(size=(samples, 1))
    told["arrays"] = trained(x, y, batch_size=16)
    told["split"] = trained(x, y, batch_size=16, validation_split=0.25)
    told["predicted"] = DENSE.predict(x, verbose=0).tolist()
    told["sparse"] = trained(scipy.sparse.random(40, 3, 0.5, random_state=by_chance()), np.ones((40, 1)))
    told["py_dataset"] = trained(Some(by_chance()), batch_size=None, validation_data=Some(by_chance()))
    stream = tf.data.Dataset.from_tensor_slices((x.astype("float32"), y.astype("float32"))).batch(16)
    told["stream"] = trained(stream, batch_size=None)
    told["subset"] = trained(stream.shard(2, 0), batch_size=None)
    told["unseeded"] = [
        np.random.default_rng().random(),
        float(tf.random.uniform(())),
        float(torch.rand(())),
        *next(iter(tf.data.Dataset.range(20).shuffle(20).batch(20))).numpy().tolist(),
    ]
    return told


def by_rank() -> dict[str, str | list[float]]:
    """The data of every worker is a part of its own."""
    rank, size = shoal.rank(), shoal.size()
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(48, 3)).astype("float32"), rng.normal(size=(48, 1)).astype("float32")

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return x[rank::size][index * 8 : index * 8 + 8], y[rank::size][index * 8 : index * 8 + 8]

    def batches() -> Iterator[Any]:
        return (Batches()[index] for index in range(3))

    dataset = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))

    def part(replicas: int) -> Any:
        return torch.utils.data.DistributedSampler(dataset, replicas, rank % replicas, shuffle=False)

    def loader(replicas: int, batch_size: int = 8) -> Any:
        return torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=part(replicas))

    def in_batches() -> Any:
        sampler = torch.utils.data.BatchSampler(part(size), 8, False)
        return torch.utils.data.DataLoader(dataset, batch_sampler=sampler)

    class Rows(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            return iter(list(zip(x[rank::size], y[rank::size], strict=True)))

    whole = tf.data.Dataset.from_tensor_slices((x, y))
    scenes: dict[str, Callable[[], list[float]]] = {
        "arrays": lambda: trained(x[rank::size], y[rank::size]),
        "generator": lambda: trained(batches(), batch_size=None),
        "py_dataset": lambda: trained(Batches(), batch_size=None),
        "shard": lambda: trained(whole.shard(size, rank).batch(8), batch_size=None),
        "shard_of_zip": lambda: trained(tf.data.Dataset.zip((whole.shard(size, rank),)).batch(8), batch_size=None),
        "sampler_of_others": lambda: trained(loader(3), batch_size=None),
        "chief_raises": lambda: trained(iter([(x, 3.0)] if rank == 0 else [(x, y)]), batch_size=None),
        "sampler": lambda: trained(loader(size), batch_size=None),
        "sampler_of_batches": lambda: trained(in_batches(), batch_size=None),
        "sampler_of_one": lambda: trained(loader(1, 16), batch_size=None),
        "iterable": lambda: trained(torch.utils.data.DataLoader(Rows(), batch_size=8), batch_size=None),
        "whole": lambda: trained(x, y, batch_size=16),
        "subset": lambda: trained(whole.shard(2, 1).batch(8), batch_size=None),
    }
    told: dict[str, str | list[float]] = {}
    for name, scene in scenes.items():
        try:
            told[name] = scene()
        except (shoal.ShoalError, ValueError) as error:
            told[name] = f"{type(error).__name__}: {error}"
    return told


def main(out: Path) -> None:
    out.mkdir(exist_ok=True)
    told = {"chance": left_to_chance(), "rank": by_rank()}
    (out / f"{shoal.rank()}.json").write_text(json.dumps(told))


main(Path(sys.argv[1]))

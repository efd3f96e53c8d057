"""Who clicks on what: a wide and deep recommender on generated clicks, with tables on parameter servers and Ftrl.

    shoal run -n 2 --servers 2 --strategy ps --staleness 4 examples/recommend.py
    python examples/recommend.py                 the same model on one machine

Ids are hashed into tables of a million rows, as recommenders do. Of these a server keeps only the rows that were used.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np

import shoal
from shoal.layers import ShardedEmbedding

ROWS = 1_000_000
USERS, ITEMS = 3_000, 500


def clicks(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Users and items have tastes that nobody sees; a user clicks where both agree, popular items more often."""
    world, drawn = np.random.default_rng(0), np.random.default_rng(seed)
    tastes, kinds = world.normal(size=(USERS, 4)), world.normal(size=(ITEMS, 4))
    popular = world.normal(size=ITEMS)
    user = drawn.integers(0, USERS, count)
    item = drawn.zipf(1.2, count) % ITEMS
    likes = (tastes[user] * kinds[item]).sum(axis=1) + popular[item]
    clicked = drawn.random(count) < 1 / (1 + np.exp(-2 * likes))
    hashed = {
        "user": user * 2_654_435_761 % ROWS,
        "item": item * 40_503 % ROWS,
        "pair": (user * 31 + item) * 2_246_822_519 % ROWS,  # who and what together: the wide part
    }
    return {name: ids.astype("int32") for name, ids in hashed.items()}, clicked.astype("float32")


def recommender() -> keras.Model:
    """Deep: what users and items have in common. Wide: what is known of this very pair, with rows that start at 0."""
    inputs = {name: keras.Input((), dtype="int32", name=name) for name in ("user", "item", "pair")}
    users = ShardedEmbedding(ROWS, 8, "random_normal", seed=1, name="users")(inputs["user"])
    items = ShardedEmbedding(ROWS, 8, "random_normal", seed=2, name="items")(inputs["item"])
    wide = ShardedEmbedding(ROWS, 1, "zeros", name="wide")(inputs["pair"])
    popular = ShardedEmbedding(ROWS, 1, "zeros", name="popular")(inputs["item"])
    match = keras.layers.Dot(axes=1)([users, items])
    deep = keras.layers.Dense(16, activation="relu")(keras.layers.Concatenate()([users, items]))
    return keras.Model(inputs, keras.layers.Add()([keras.layers.Dense(1)(deep), match, popular, wide]))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--clicks", type=int, default=40_000)
    options.add_argument("--epochs", type=int, default=6)
    given = options.parse_args()
    keras.utils.set_random_seed(0)
    x, y = clicks(given.clicks, seed=1)
    unseen = clicks(given.clicks // 4, seed=2)
    model = recommender()
    model.compile(
        keras.optimizers.Ftrl(1.0, beta=1.0),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
    )
    model.fit(x, y, batch_size=256, epochs=given.epochs, validation_data=unseen, verbose=2)
    found = model.evaluate(*unseen, batch_size=1024, verbose=0, return_dict=True)
    if shoal.is_chief():
        print(f"on clicks that it has not seen: AUC {found['auc']:.3f}, loss {found['loss']:.3f}")


if __name__ == "__main__":
    main()

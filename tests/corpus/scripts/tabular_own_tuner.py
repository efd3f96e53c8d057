# backends: tensorflow
# agrees: trend
"""What a tuner does: build(hp), train with a callback that may prune, keep the best weights on disk, retrain."""

import json
import pathlib

import keras
import numpy as np

keras.utils.set_random_seed(12)


class HyperParameters:
    def __init__(self, rng):
        self.rng, self.values = rng, {}

    def Choice(self, name, options):
        return self.values.setdefault(name, options[self.rng.integers(len(options))])

    def Float(self, name, low, high):
        return self.values.setdefault(name, float(np.exp(self.rng.uniform(np.log(low), np.log(high)))))


class PruneTrial(Exception):
    pass


class Pruning(keras.callbacks.Callback):
    def __init__(self, best_so_far):
        super().__init__()
        self.best_so_far = best_so_far

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and logs["val_loss"] > 3 * self.best_so_far:
            raise PruneTrial(f"pruned after epoch {epoch}")


def build(hp):
    model = keras.Sequential([keras.layers.Input((6,))])
    for _ in range(hp.Choice("layers", [1, 2])):
        model.add(keras.layers.Dense(hp.Choice("units", [8, 16]), activation=hp.Choice("activation", ["relu", "elu"])))
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(hp.Float("lr", 1e-4, 3e-2)), "mse")
    return model


rng = np.random.default_rng(12)
x = rng.normal(size=(400, 6)).astype("float32")
y = (x[:, :3].prod(axis=1) + x[:, 3:].sum(axis=1))[:, None].astype("float32")

folder = pathlib.Path("trials")
folder.mkdir(exist_ok=True)
best_loss, best_values = np.inf, None
for number in range(5):
    hp = HyperParameters(rng)
    model = build(hp)
    try:
        history = model.fit(x, y, validation_split=0.25, epochs=4, verbose=0, callbacks=[Pruning(best_loss)])
    except PruneTrial:
        continue
    loss = min(history.history["val_loss"])
    (folder / f"trial_{number}.json").write_text(json.dumps({"values": hp.values, "loss": loss}))
    if loss < best_loss:
        best_loss, best_values = loss, hp.values
        model.save_weights(folder / "best.weights.h5")

final = HyperParameters(rng)
final.values = dict(best_values)
model = build(final)
model.load_weights(folder / "best.weights.h5")
print("best found", best_loss)
model.fit(x, y, epochs=2, verbose=0)
print("retrained is better:", model.evaluate(x, y, verbose=0) < 1.5 * best_loss)

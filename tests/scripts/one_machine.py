"""Trains with every feature of `fit`, plainly or on many workers, and writes what came of it.

`one_machine.py OUT CASE…`: the test runs it as `python` and as `shoal run -n 2` and compares.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np
from keras import layers

import shoal

CASES: dict[str, Callable[[Path], Any]] = {}


def case(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    CASES[function.__name__] = function
    return function


def train(model: keras.Model, x: Any, y: Any = None, optimizer: Any = None, **settings: Any) -> dict[str, Any]:
    compiled = {name: settings.pop(name) for name in ("metrics", "weighted_metrics", "run_eagerly") if name in settings}
    compiled |= (
        {"steps_per_execution": settings.pop("steps_per_execution")} if "steps_per_execution" in settings else {}
    )
    models.compile_for_classes(model, optimizer or keras.optimizers.SGD(0.1), **compiled)
    settings = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0} | settings
    history = model.fit(x, y, **settings)
    return outcome(model, history)


def outcome(model: keras.Model, history: Any = None, **more: Any) -> dict[str, Any]:
    weights = [keras.ops.convert_to_numpy(v) for v in model.variables if not v.path.endswith("seed_generator_state")]
    return {"weights": weights, "history": history.history if history else {}} | more


def dense() -> keras.Model:
    keras.utils.set_random_seed(3)
    return models.dense()


def whole_batches() -> tuple[np.ndarray, np.ndarray]:
    """For features to which the size of the last batch is nothing: half as many programs are compiled."""
    return models.images(models.WHOLE_BATCHES)


@case
def sample_weights(_: Path) -> Any:
    x, y = models.images()
    weights = np.linspace(0, 2, len(x)).astype("float32")
    return train(dense(), x, y, sample_weight=weights, weighted_metrics=["accuracy"])


@case
def class_weights(_: Path) -> Any:
    return train(dense(), *models.images(), class_weight={0: 3.0, 1: 0.25})


class Scaled(layers.Layer):
    """Adds a loss of its own, a mean over the batch."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x * 0.9


@case
def regularisation_and_add_loss(_: Path) -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Flatten(),
            Scaled(),
            layers.Dense(5, kernel_regularizer=keras.regularizers.L2(0.05)),
        ]
    )
    return train(model, *models.images())


@case
def clipnorm(_: Path) -> Any:
    return train(dense(), *whole_batches(), optimizer=keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=0.05))


@case
def weight_decay(_: Path) -> Any:
    return train(dense(), *whole_batches(), optimizer=keras.optimizers.SGD(0.1, weight_decay=0.1))


@case
def ema(_: Path) -> Any:
    return train(
        dense(), *whole_batches(), optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=4)
    )


@case
def gradient_accumulation(_: Path) -> Any:
    return train(dense(), *whole_batches(), optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))


@case
def schedule(_: Path) -> Any:
    rate = keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.5)
    return train(dense(), *whole_batches(), optimizer=keras.optimizers.SGD(rate))


@case
def mixed_bfloat16(_: Path) -> Any:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return train(dense(), *whole_batches())
    finally:
        keras.config.set_dtype_policy("float32")


@case
def mixed_float16(_: Path) -> Any:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**8)
        return train(dense(), *whole_batches(), optimizer=optimizer)
    finally:
        keras.config.set_dtype_policy("float32")


@case
def several_inputs_and_outputs(_: Path) -> Any:
    keras.utils.set_random_seed(3)
    left, right = layers.Input((4,), name="left"), layers.Input((3,), name="right")
    merged = layers.Concatenate()([left, right])
    model = keras.Model(
        {"left": left, "right": right},
        {"score": layers.Dense(1, name="score")(merged), "kind": layers.Dense(3, name="kind")(merged)},
    )
    losses = {"score": "mse", "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    model.compile("sgd", losses, loss_weights={"score": 0.5, "kind": 2.0}, metrics={"kind": ["accuracy"]})
    rng = np.random.default_rng(5)
    x = {"left": rng.normal(size=(48, 4)).astype("float32"), "right": rng.normal(size=(48, 3)).astype("float32")}
    y = {"score": rng.normal(size=(48, 1)).astype("float32"), "kind": rng.integers(0, 3, 48)}
    weights = np.linspace(0, 2, 48).astype("float32")  # for both outputs
    history = model.fit(x, y, sample_weight=weights, batch_size=16, epochs=2, shuffle=False, verbose=0)
    predicted = model.predict(x, batch_size=16, verbose=0)
    return outcome(model, history, predicted=[predicted["score"], predicted["kind"]])


def own_logs(loss: Any, y_pred: Any) -> dict[str, Any]:
    """Logs that no metric gives: one has a metric's name, one is a whole number."""
    return {
        "loss": loss,
        "largest": keras.ops.mean(keras.ops.max(y_pred, axis=-1)),
        "seven": keras.ops.array(7, "int32"),
    }


class Custom(keras.Model):
    """A subclass that is built when it first sees data, with a `train_step` of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, activation="tanh")
        self.out = layers.Dense(5)
        self.frozen = layers.Dense(8, trainable=False)

    def call(self, x: Any) -> Any:
        x = keras.ops.reshape(x, (-1, 64))
        return self.out(self.hidden(x) + self.frozen(x))

    if keras.backend.backend() == "jax":

        def train_step(self, state: Any, data: Any) -> Any:
            import jax

            trainable, non_trainable, optimizer, metrics = state
            x, y = data
            gradient = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
            (loss, aux), grads = gradient(
                trainable, non_trainable, metrics, x, y, None, training=True, optimizer_variables=optimizer
            )
            _, y_pred, non_trainable, metrics = aux
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
            return own_logs(loss, y_pred), (trainable, non_trainable, optimizer, metrics)

    elif keras.backend.backend() == "tensorflow":

        def train_step(self, data: Any) -> Any:
            import tensorflow as tf

            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x, y, y_pred)
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
            )
            return own_logs(loss, y_pred)

    else:

        def train_step(self, data: Any) -> Any:
            import torch

            x, y = data
            self.zero_grad()
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
            return own_logs(loss, y_pred)


@case
def custom_train_step(_: Path) -> Any:
    keras.utils.set_random_seed(3)
    x, y = models.images()
    # A log that is no metric is the last step's, averaged over its samples: whole batches make it comparable.
    return train(Custom(), x[:48], y[:48])


class Backwards(keras.Model):
    """Gives its optimizer variables of one shape in another order than the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers_of_one_shape = [layers.Dense(64, use_bias=False) for _ in range(2)]
        self.out = layers.Dense(5)

    def call(self, x: Any) -> Any:
        x = keras.ops.reshape(x, (-1, 64))
        for layer in self.layers_of_one_shape:
            x = keras.ops.tanh(layer(x))
        return self.out(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        variables = self.trainable_variables[::-1]
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            self.optimizer.apply(tape.gradient(loss, variables), variables)
        else:
            self.zero_grad()
            loss = self.compute_loss(x, y, self(x, training=True))
            loss.backward()
            self.optimizer.apply([v.value.grad for v in variables], variables)
        return {"loss": loss}


@case
def variables_in_another_order(_: Path) -> Any:
    if keras.backend.backend() == "jax":  # gradients are lists in the model's order there
        return {}
    keras.utils.set_random_seed(3)
    x, y = models.images()
    return {"weights": train(Backwards(), x[:48], y[:48])["weights"]}


@case
def run_eagerly(_: Path) -> Any:
    return train(dense(), *whole_batches(), run_eagerly=True)


@keras.saving.register_keras_serializable("tests")
class Positives(keras.metrics.Metric):
    """A custom metric: how often the first class wins, counted in whole numbers."""

    def __init__(self, name: str = "positives", **settings: Any) -> None:
        super().__init__(name=name, **settings)
        self.seen = self.add_weight(shape=(), initializer="zeros", name="seen", dtype="int32")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        found = keras.ops.cast(keras.ops.argmax(y_pred, axis=-1) == 0, "int32")
        self.seen.assign(self.seen + keras.ops.sum(found))

    def result(self) -> Any:
        return keras.ops.cast(self.seen, "float32")


@case
def metrics_and_predict(_: Path) -> Any:
    x, y = models.images()
    keras.utils.set_random_seed(3)
    model = keras.Sequential([layers.Input((8, 8, 1)), layers.Flatten(), layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc"), Positives()])
    target = (y > 2).astype("float32")[:, None]
    history = model.fit(
        x, target, batch_size=16, epochs=2, shuffle=False, verbose=0, validation_data=(x[:18], target[:18])
    )
    told = model.evaluate(x, target, batch_size=16, verbose=0)
    return outcome(
        model, history, evaluated=[float(v) for v in told], predicted=model.predict(x, batch_size=16, verbose=0)
    )


@case
def fewer_samples_than_a_batch(_: Path) -> Any:
    """And batches of fewer samples than there are workers."""
    x, y = models.images()
    model = dense()
    first = train(model, x[:5], y[:5], validation_data=(x[:3], y[:3]))
    second = model.fit(x[:3], y[:3], batch_size=1, shuffle=False, verbose=0)
    return first | {"second": second.history, "weights": outcome(model)["weights"]}


@case
def validation(_: Path) -> Any:
    return train(dense(), *models.images(), validation_split=0.3, validation_freq=2, epochs=4, metrics=["accuracy"])


@case
def steps(_: Path) -> Any:
    return train(dense(), *models.images(), steps_per_epoch=2, epochs=4, initial_epoch=1)


@case
def steps_that_tell_the_batch_size(_: Path) -> Any:
    x, y = whole_batches()
    model = dense()
    trained = train(model, x, y, batch_size=None, steps_per_epoch=3, validation_data=(x[:20], y[:20]))
    return trained | {
        "evaluated": model.evaluate(x, y, steps=3, verbose=0),
        "predicted": model.predict(x, steps=3, batch_size=8, verbose=0),
    }


@case
def several_steps_per_execution(_: Path) -> Any:
    if keras.backend.backend() == "torch":  # not in Keras either
        return {}
    x, y = models.images()
    return train(dense(), x[:48], y[:48], steps_per_execution=3)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        x, y = models.images()
        return x[index * 16 : index * 16 + 16], y[index * 16 : index * 16 + 16]


@case
def py_dataset(_: Path) -> Any:
    return train(dense(), Batches(), batch_size=None, validation_data=Batches())


class Endless(Batches):
    """There is always another batch."""

    @property
    def num_batches(self) -> None:
        return None

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index % 3)


@case
def py_dataset_without_length(_: Path) -> Any:
    return train(
        dense(), Endless(), batch_size=None, steps_per_epoch=2, epochs=3, validation_data=Endless(), validation_steps=2
    )


@case
def tf_dataset(_: Path) -> Any:
    import tensorflow as tf

    def dataset() -> Any:
        return tf.data.Dataset.from_tensor_slices(models.images()).batch(16)

    return train(dense(), dataset(), batch_size=None, shuffle=True, validation_data=dataset())


@case
def validation_on_the_first_batches_of_a_stream(_: Path) -> Any:
    import tensorflow as tf

    held_out = tf.data.Dataset.from_tensor_slices(models.images()).batch(16)
    return train(dense(), *whole_batches(), epochs=3, validation_data=held_out, validation_steps=2)


@case
def torch_loader(_: Path) -> Any:
    import torch

    x, y = models.images()
    dataset = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    model = dense()
    trained = train(model, torch.utils.data.DataLoader(dataset, batch_size=16), batch_size=None)
    few = torch.utils.data.DataLoader(torch.utils.data.Subset(dataset, range(5)), batch_size=16)
    return trained | {"few": model.fit(few, verbose=0).history, "weights": outcome(model)["weights"]}


@case
def generator(_: Path) -> Any:
    def batches() -> Iterator[Any]:
        while True:
            yield from (Batches()[i] for i in range(4))

    # On TensorFlow Keras loses some batches, other ones every time: it reads ahead. Not the first two.
    validated = 2 if keras.backend.backend() == "tensorflow" else 3
    return train(
        dense(), batches(), batch_size=None, steps_per_epoch=4, validation_data=batches(), validation_steps=validated
    )


@case
def generator_without_steps(_: Path) -> Any:
    """Read to its end; after that, Keras gives its first two batches again."""

    def three() -> Iterator[Any]:
        return (Batches()[i] for i in range(3))

    model = dense()
    trained = train(model, three(), batch_size=None, epochs=3, validation_data=three())
    return trained | {
        "evaluated": model.evaluate(three(), verbose=0),
        "predicted": model.predict((batch[:1] for batch in three()), verbose=0),
    }


@case
def text(_: Path) -> Any:
    if keras.backend.backend() != "tensorflow":  # nowhere else in Keras
        return {}
    import tensorflow as tf

    keras.utils.set_random_seed(3)
    words = np.array(["red cat", "blue dog", "ein schöner Vogel", ""] * 12, dtype=object)
    colours = np.array(["red", "blue"] * 24)
    y = (np.arange(48) % 3).astype("float32")
    vectorizer = layers.TextVectorization(max_tokens=20, output_mode="multi_hot")
    vectorizer.adapt(words)
    inputs = {"words": layers.Input((), dtype="string"), "colours": layers.Input((1,), dtype="string")}
    lookup = layers.StringLookup(vocabulary=["red", "blue"], output_mode="one_hot")
    joined = layers.Concatenate()([vectorizer(inputs["words"]), lookup(inputs["colours"])])
    model = keras.Model(inputs, layers.Dense(1)(joined))
    model.compile("sgd", "mse")
    dataset = tf.data.Dataset.from_tensor_slices(({"words": words, "colours": colours[:, None]}, y)).batch(16)
    first = model.fit(dataset, epochs=2, verbose=0, validation_data=dataset)
    arrays = {"words": tf.constant(words), "colours": tf.constant(colours[:, None])}
    second = model.fit(arrays, y, batch_size=16, shuffle=False, verbose=0, validation_split=0.25)
    named = keras.Sequential(
        [layers.Input((1,), dtype="int64"), layers.StringLookup(vocabulary=["a", "b"], invert=True)]
    )
    names = named.predict(np.arange(20)[:, None] % 3, batch_size=8, verbose=0)
    return outcome(model, first) | {
        "second": second.history,
        "predicted": model.predict(arrays, batch_size=16, verbose=0),
        "names": [[b"[UNK]", b"a", b"b"].index(name) for name in names[:, 0]],
    }


class Padded(keras.Model):
    """Takes ragged rows, or those that Keras has padded."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = layers.Embedding(20, 4)
        self.out = layers.Dense(1)

    def call(self, x: Any) -> Any:
        x = x.to_tensor() if hasattr(x, "to_tensor") else x
        return self.out(keras.ops.mean(self.embedding(x), axis=1))


@case
def ragged(_: Path) -> Any:
    import tensorflow as tf

    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(5)
    x = tf.ragged.constant([rng.integers(1, 20, 6 if i % 8 == 0 else i % 5).tolist() for i in range(64)])
    y = rng.normal(size=(64, 1)).astype("float32")
    model = Padded()
    model.compile("sgd", "mse")
    # Batches are cut in the middle: 8 rows, of which the first has all 6 numbers.
    history = model.fit(x, y, batch_size=16, shuffle=False, verbose=0, validation_split=0.25)
    streamed = {}
    if keras.backend.backend() != "torch":
        streamed = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(16), verbose=0).history
    predicted = model.predict(x, batch_size=16, verbose=0)
    return outcome(model, history, streamed=streamed, predicted=predicted)


@case
def sparse(_: Path) -> Any:
    import scipy.sparse
    import tensorflow as tf

    keras.utils.set_random_seed(3)
    on_torch = keras.backend.backend() == "torch"
    x = scipy.sparse.random(40, 10, 0.3, format="coo", random_state=0)
    y = np.random.default_rng(5).normal(size=(40, 1)).astype("float32")
    model = keras.Sequential([layers.Input((10,), sparse=not on_torch), layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(x, y, batch_size=16, shuffle=False, verbose=0, epochs=2, validation_split=0.25)
    streamed = {}
    if not on_torch:
        tensor = tf.sparse.from_dense(x.toarray().astype("float32"))
        streamed = model.fit(tf.data.Dataset.from_tensor_slices((tensor, y)).batch(16), verbose=0).history
    predicted = model.predict(x, batch_size=16, verbose=0)
    return outcome(model, history, streamed=streamed, predicted=predicted)


@case
def other_arrays(_: Path) -> Any:
    import pandas
    import tensorflow as tf
    import torch

    x, y = whole_batches()
    flat = x.reshape(len(x), -1)
    results = []
    for made in (pandas.DataFrame(flat), tf.constant(flat), torch.tensor(flat), flat.astype("float64")):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([layers.Input((64,)), layers.Dense(5)])
        results += train(model, made, y, epochs=1)["weights"]
    return {"weights": results}


class StopAfter(keras.callbacks.Callback):
    """Stops in the middle of an epoch, on one worker only: all stop after the same step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1 and shoal.rank() == shoal.size() - 1:
            self.model.stop_training = True


@case
def one_worker_stops(_: Path) -> Any:
    return train(dense(), *whole_batches(), epochs=3, callbacks=[StopAfter()])


@case
def callbacks_that_decide(_: Path) -> Any:
    x, y = whole_batches()
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.15)
    early = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.08, restore_best_weights=True)
    return train(dense(), x, y, epochs=8, callbacks=[plateau, early], validation_data=(x[:32], y[:32]))


@case
def learning_rate_scheduler(_: Path) -> Any:
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.2 / (epoch + 1))
    return train(dense(), *whole_batches(), epochs=3, callbacks=[scheduler])


@case
def terminate_on_nan(_: Path) -> Any:
    x, y = whole_batches()
    x = x.copy()
    x[20] = np.nan
    return train(dense(), x, y, callbacks=[keras.callbacks.TerminateOnNaN()])


@case
def files(folder: Path) -> Any:
    """Writers write once, whole; a second fit resumes from the backup; what was saved loads everywhere."""
    x, y = whole_batches()
    callbacks = [
        keras.callbacks.ModelCheckpoint(folder / "best-{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False),
    ]
    model = dense()
    train(model, x, y, callbacks=callbacks)
    again = dense()
    callbacks = [keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)]
    resumed = train(again, x, y, epochs=3, callbacks=callbacks)
    again.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    restored = dense()
    restored.load_weights(folder / "best-2.weights.h5")
    lines = (folder / "log.csv").read_text().splitlines()
    return resumed | {
        "epochs": len(resumed["history"]["loss"]),
        "loaded": [float(np.abs(a - b).max()) for a, b in zip(loaded.get_weights(), again.get_weights(), strict=True)],
        "restored": restored.get_weights(),
        "lines": len(lines),
    }


def main(out: Path, chosen: list[str]) -> None:
    told: dict[str, Any] = {}
    for name in chosen or CASES:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        result = CASES[name](folder)
        told[name] = {key: _plain(value) for key, value in result.items()}
    (out / f"{shoal.rank()}.json").write_text(json.dumps(told))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return np.asarray(value, "float64").tolist()


main(Path(sys.argv[1]), sys.argv[2:])

# backends: jax tensorflow torch
# agrees: rounding
import keras
from keras import ops
import numpy as np

# Metrics: a class with its own counts, a function, Keras's F1, confusion matrices, and one that a layer keeps.
keras.utils.set_random_seed(2)


class CategoricalTruePositives(keras.metrics.Metric):
    def __init__(self, name="categorical_true_positives", **kwargs):
        super().__init__(name=name, **kwargs)
        self.true_positives = self.add_variable(shape=(), name="ctp", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        hits = ops.cast(ops.equal(ops.argmax(y_true, axis=1), ops.argmax(y_pred, axis=1)), "float32")
        self.true_positives.assign_add(ops.sum(hits))

    def result(self):
        return self.true_positives * 1.0  # not the variable itself, which validation resets

    def reset_state(self):
        self.true_positives.assign(0.0)


def mean_confidence(y_true, y_pred):
    return ops.max(y_pred, axis=-1)


rng = np.random.default_rng(2)
x = rng.normal(size=(384, 6)).astype("float32")
y = keras.utils.to_categorical(np.argmax(x[:, :3], axis=1), 3)
model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3, "softmax")])
model.compile(
    keras.optimizers.Adam(0.01),
    "categorical_crossentropy",
    metrics=[
        CategoricalTruePositives(),
        mean_confidence,
        keras.metrics.F1Score(average="macro"),
        keras.metrics.OneHotMeanIoU(num_classes=3),
        keras.metrics.TopKCategoricalAccuracy(k=2),
        keras.metrics.AUC(multi_label=True),
    ],
)
history = model.fit(x, y, batch_size=48, epochs=3, shuffle=False, validation_split=0.25, verbose=0)
for name in sorted(history.history):
    print(name, history.history[name])

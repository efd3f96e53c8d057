# backends: jax torch
# agrees: trend
"""Pictures and captions in one space: a dual encoder whose compute_loss compares all pairs of a batch."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(83)
rng = np.random.default_rng(83)
concepts = rng.integers(0, 20, (768, 3))
table = rng.normal(size=(20, 16)).astype("float32")
pictures = table[concepts].sum(axis=1) + rng.normal(0, 0.2, (768, 16)).astype("float32")
captions = concepts + 1


class DualEncoder(keras.Model):
    def __init__(self, temperature=0.5, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature
        self.vision = keras.Sequential([layers.Dense(24, activation="gelu"), layers.Dense(12)])
        self.text = keras.Sequential([layers.Embedding(21, 16), layers.GlobalAveragePooling1D(), layers.Dense(12)])
        self.recall = keras.metrics.Mean(name="recall")

    def call(self, inputs):
        return ops.normalize(self.vision(inputs["image"]), axis=-1), ops.normalize(
            self.text(inputs["caption"]), axis=-1
        )

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        image, caption = y_pred
        logits = ops.matmul(caption, ops.transpose(image)) / self.temperature
        targets = ops.arange(ops.shape(logits)[0])
        by_caption = keras.losses.sparse_categorical_crossentropy(targets, logits, from_logits=True)
        by_image = keras.losses.sparse_categorical_crossentropy(targets, ops.transpose(logits), from_logits=True)
        return ops.mean(by_caption + by_image) / 2

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        image, caption = y_pred
        found = ops.argmax(ops.matmul(caption, ops.transpose(image)), axis=-1)
        self.recall.update_state(ops.cast(ops.equal(found, ops.arange(ops.shape(found)[0])), "float32"))
        return self.get_metrics_result()


model = DualEncoder()
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit({"image": pictures, "caption": captions}, batch_size=64, epochs=6, verbose=0)
print("the loss fell:", history.history["loss"][-1] < 0.9 * history.history["loss"][0])
image, caption = model.predict({"image": pictures[:64], "caption": captions[:64]}, batch_size=64, verbose=0)
found = np.argmax(caption @ image.T, axis=-1)
print("recall among 64 is above chance:", float(np.mean(found == np.arange(64))) > 0.2)

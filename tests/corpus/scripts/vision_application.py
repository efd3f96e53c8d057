# backends: torch
# agrees: trend
import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

# A model of keras.applications without its weights, a new head, and preprocess_input in a PyDataset.
keras.utils.set_random_seed(69)
rng = np.random.default_rng(69)


class Pictures(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        rng = np.random.default_rng(number)
        labels = rng.integers(0, 2, 8)
        images = rng.uniform(0, 60, (8, 32, 32, 3)) + 150 * labels[:, None, None, None]
        return keras.applications.mobilenet_v2.preprocess_input(images.astype("float32")), labels


base = keras.applications.MobileNetV2(
    input_shape=(32, 32, 3), alpha=0.35, include_top=False, weights=None, pooling="avg"
)
base.trainable = False
inputs = keras.Input((32, 32, 3))
outputs = keras.layers.Dense(1, activation="sigmoid")(base(inputs, training=False))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(Pictures(), epochs=2, verbose=0)
print("loss", history.history["loss"][-1])
print("trainable", len(model.trainable_weights), "of", len(model.weights))

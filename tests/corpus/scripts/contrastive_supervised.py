# backends: jax
# agrees: trend
import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
from keras import layers, ops
import numpy as np
from sklearn.datasets import load_digits

# Two stages: an encoder with a supervised contrastive loss, then a classifier on top of it, frozen.
keras.utils.set_random_seed(71)
x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16
x_train, y_train, x_test, y_test = x[:1408], y[:1408], x[1408:], y[1408:]


def create_encoder():
    return keras.Sequential(
        [layers.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(32, activation="relu")]
    )


class SupervisedContrastiveLoss(keras.losses.Loss):
    def __init__(self, temperature=1, name=None):
        super().__init__(name=name)
        self.temperature = temperature

    def __call__(self, labels, feature_vectors, sample_weight=None):
        labels = ops.reshape(labels, (-1, 1))
        vectors = ops.normalize(feature_vectors, axis=1)
        logits = ops.divide(ops.matmul(vectors, ops.transpose(vectors)), self.temperature)
        same = ops.cast(ops.equal(labels, ops.transpose(labels)), "float32")
        same = same / ops.sum(same, axis=1, keepdims=True)
        return ops.mean(-ops.sum(same * ops.log_softmax(logits, axis=1), axis=1))


encoder = create_encoder()
inputs = keras.Input((64,))
outputs = layers.Dense(16, activation="relu")(encoder(inputs))
encoder_with_projection_head = keras.Model(inputs, outputs, name="encoder_with_projection-head")
encoder_with_projection_head.compile(optimizer=keras.optimizers.Adam(0.003), loss=SupervisedContrastiveLoss(0.1))
history = encoder_with_projection_head.fit(x=x_train, y=y_train, batch_size=128, epochs=5, verbose=0)

for layer in encoder.layers:
    layer.trainable = False
inputs = keras.Input((64,))
features = layers.Dropout(0.2)(encoder(inputs))
classifier = keras.Model(inputs, layers.Dense(10, activation="softmax")(features))
classifier.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
classifier.fit(x=x_train, y=y_train, batch_size=128, epochs=4, verbose=0)
accuracy = classifier.evaluate(x_test, y_test, verbose=0)[1]
print(f"Test accuracy: {round(accuracy * 100, 2)}%")

# backends: torch
# agrees: trend
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch
from keras import layers

# Momentum contrast: a slowly moving encoder fills a queue of negatives.
keras.utils.set_random_seed(58)
TEMPERATURE, MOMENTUM, QUEUE = 0.2, 0.95, 128
x = np.random.default_rng(58).normal(size=(512, 16)).astype("float32")


def build_encoder():
    return keras.Sequential(
        [layers.Input((16,)), layers.Dense(32, activation="relu"), layers.Dense(8), layers.UnitNormalization()]
    )


class MoCo(keras.Model):
    def __init__(self):
        super().__init__()
        self.query_encoder, self.key_encoder = build_encoder(), build_encoder()
        self.key_encoder.trainable = False
        self.key_encoder.set_weights(self.query_encoder.get_weights())
        self.queue = self.add_weight(shape=(QUEUE, 8), initializer="random_normal", trainable=False, name="queue")
        self.noise = layers.GaussianNoise(0.3, seed=1)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    @property
    def metrics(self):
        return [self.loss_tracker, self.accuracy]

    def call(self, x):
        return self.query_encoder(x)

    def train_step(self, data):
        x = data[0] if isinstance(data, (tuple, list)) else data
        self.zero_grad()
        queries = self.query_encoder(self.noise(x, training=True), training=True)
        with torch.no_grad():
            keys = self.key_encoder(self.noise(x, training=True), training=True)
        positive = torch.sum(queries * keys, dim=-1, keepdim=True)
        negative = queries @ self.queue.value.T
        logits = torch.cat([positive, negative], dim=1) / TEMPERATURE
        labels = torch.zeros(len(x), dtype=torch.int64)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        weights = self.query_encoder.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
            for query, key in zip(self.query_encoder.weights, self.key_encoder.weights):
                key.assign(MOMENTUM * key + (1 - MOMENTUM) * query)
            self.queue.assign(torch.cat([keys, self.queue.value[: -len(keys)]], dim=0))
        self.loss_tracker.update_state(loss)
        self.accuracy.update_state(labels, logits)
        return {m.name: m.result() for m in self.metrics}


model = MoCo()
model.compile(optimizer=keras.optimizers.Adam(0.003))
model.fit(x, batch_size=64, epochs=5, verbose=2)

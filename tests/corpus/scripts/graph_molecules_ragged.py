# backends: tensorflow
# agrees: trend
"""Molecules of different sizes: ragged batches from tf.data, merged into one graph in the pipeline's last map."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(49)
rng = np.random.default_rng(49)
atoms, labels = [], []
for _ in range(256):
    count = rng.integers(3, 9)
    kinds = rng.integers(0, 4, count)
    atoms.append(np.eye(4, dtype="float32")[kinds].tolist())
    labels.append(float(np.mean(kinds == 2) > 0.25))

ragged = tf.ragged.constant(atoms, ragged_rank=1, inner_shape=(4,))
dataset = tf.data.Dataset.from_tensor_slices((ragged, labels))


def prepare_batch(x_batch, y_batch):
    """Dense atoms and a mask; a graph's padding has no neighbours."""
    mask = tf.sequence_mask(x_batch.row_lengths(), 8, dtype=tf.float32)
    return (x_batch.to_tensor(shape=(None, 8, 4)), mask), y_batch


train_dataset = dataset.take(192).batch(32).map(prepare_batch, -1).prefetch(-1)
valid_dataset = dataset.skip(192).batch(32).map(prepare_batch, -1).prefetch(-1)


class MessagePassing(layers.Layer):
    def __init__(self, units, steps=2, **kwargs):
        super().__init__(**kwargs)
        self.units, self.steps = units, steps

    def build(self, input_shape):
        self.embed = layers.Dense(self.units)
        self.update_step = layers.GRUCell(self.units)
        self.update_step.build((None, self.units))

    def call(self, inputs):
        x, mask = inputs
        x = self.embed(x) * mask[..., None]
        for _ in range(self.steps):
            total = tf.reduce_sum(x, axis=1, keepdims=True) / tf.reduce_sum(mask, axis=1)[:, None, None]
            message = tf.reshape(tf.broadcast_to(total, tf.shape(x)), (-1, self.units))
            state = tf.reshape(x, (-1, self.units))
            updated, _ = self.update_step(message, [state])
            x = tf.reshape(updated, tf.shape(x)) * mask[..., None]
        return tf.reduce_sum(x, axis=1) / tf.reduce_sum(mask, axis=1, keepdims=True)


atom_features, partition = layers.Input((8, 4), name="atom_features"), layers.Input((8,), name="mask")
x = MessagePassing(16)([atom_features, partition])
x = layers.Dense(16, activation="relu")(x)
mpnn = keras.Model(inputs=[atom_features, partition], outputs=[layers.Dense(1, activation="sigmoid")(x)])
mpnn.compile(
    loss=keras.losses.BinaryCrossentropy(),
    optimizer=keras.optimizers.Adam(learning_rate=5e-3),
    metrics=[keras.metrics.AUC(name="AUC")],
)
history = mpnn.fit(train_dataset, validation_data=valid_dataset, epochs=6, verbose=2, class_weight={0: 1.5, 1: 0.7})
print("AUC", history.history["AUC"][-1])

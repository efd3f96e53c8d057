# backends: torch
# agrees: trend
"""Compact convolutional transformer with stochastic depth and sequence pooling."""

import os

os.environ["KERAS_BACKEND"] = "torch"

from keras import layers
import keras
import numpy as np

keras.utils.set_random_seed(42)
rng = np.random.default_rng(42)

NUM_CLASSES, DIM = 3, 24
N = 384
labels = rng.integers(0, NUM_CLASSES, N)
grid = np.linspace(0, 2 * np.pi, 16, dtype="float32")
waves = np.stack([np.sin((k + 1) * grid)[:, None] * np.cos((k + 1) * grid)[None] for k in range(NUM_CLASSES)])
images = waves[labels][..., None] + 0.4 * rng.normal(size=(N, 16, 16, 1))
images = np.repeat(images, 3, axis=-1).astype("float32")
targets = keras.utils.to_categorical(labels, NUM_CLASSES)


class CCTTokenizer(layers.Layer):
    def __init__(self, kernel_size=3, channels=(16, DIM), **kwargs):
        super().__init__(**kwargs)
        self.conv_model = keras.Sequential()
        for filters in channels:
            self.conv_model.add(layers.Conv2D(filters, kernel_size, padding="same", use_bias=False, activation="relu"))
            self.conv_model.add(layers.MaxPooling2D(3, 2, "same"))

    def call(self, images):
        outputs = self.conv_model(images)
        shape = keras.ops.shape(outputs)
        return keras.ops.reshape(outputs, (-1, shape[1] * shape[2], shape[-1]))


class SequencePooling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.Dense(1)

    def call(self, x):
        attention_weights = keras.ops.softmax(self.attention(x), axis=1)
        attention_weights = keras.ops.transpose(attention_weights, axes=(0, 2, 1))
        return keras.ops.squeeze(keras.ops.matmul(attention_weights, x), -2)


class StochasticDepth(layers.Layer):
    def __init__(self, drop_prob, **kwargs):
        super().__init__(**kwargs)
        self.drop_prob = drop_prob
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, x, training=None):
        if not training:
            return x
        keep_prob = 1 - self.drop_prob
        shape = (keras.ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        random_tensor = keep_prob + keras.random.uniform(shape, 0, 1, seed=self.seed_generator)
        return (x / keep_prob) * keras.ops.floor(random_tensor)


inputs = layers.Input((16, 16, 3))
encoded = CCTTokenizer()(inputs)
for rate in np.linspace(0.1, 0, 1):
    x1 = layers.LayerNormalization(epsilon=1e-5)(encoded)
    attention = layers.MultiHeadAttention(num_heads=2, key_dim=DIM // 2, dropout=0.1)(x1, x1)
    x2 = layers.Add()([StochasticDepth(float(rate))(attention), encoded])
    x3 = layers.Dense(DIM, activation="gelu")(layers.LayerNormalization(epsilon=1e-5)(x2))
    encoded = layers.Add()([StochasticDepth(float(rate))(x3), x2])
representation = SequencePooling()(layers.LayerNormalization(epsilon=1e-5)(encoded))
model = keras.Model(inputs=inputs, outputs=layers.Dense(NUM_CLASSES)(representation))

model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=0.003, weight_decay=0.0001),
    loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    metrics=[keras.metrics.CategoricalAccuracy(name="accuracy")],
)
history = model.fit(x=images, y=targets, batch_size=64, epochs=5, validation_split=0.1)
print("Test accuracy:", model.evaluate(images[-64:], targets[-64:], verbose=0)[1])

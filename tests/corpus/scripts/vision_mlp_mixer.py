# backends: tensorflow
# agrees: trend
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
import numpy as np

# MLP-Mixer on small colour images, with a learning rate that falls on plateaus.
tf.random.set_seed(3)
np.random.seed(3)
keras.utils.set_random_seed(3)

num_classes = 4
n = 512
labels = np.random.randint(0, num_classes, n)
hue = np.eye(num_classes, 3, dtype="float32")[labels]
images = (0.4 * hue[:, None, None, :] + np.random.uniform(0, 0.6, (n, 16, 16, 3))).astype("float32")


class MLPMixerLayer(layers.Layer):
    def __init__(self, num_patches, hidden_units, dropout_rate, **kwargs):
        super().__init__(**kwargs)
        self.mlp1 = keras.Sequential(
            [layers.Dense(num_patches, activation="gelu"), layers.Dense(num_patches), layers.Dropout(dropout_rate)]
        )
        self.mlp2 = keras.Sequential(
            [layers.Dense(hidden_units, activation="gelu"), layers.Dense(hidden_units), layers.Dropout(dropout_rate)]
        )
        self.normalize = layers.LayerNormalization(epsilon=1e-6)

    def build(self, input_shape):
        batch, patches, channels = input_shape
        self.normalize.build(input_shape)
        self.mlp1.build((batch, channels, patches))
        self.mlp2.build(input_shape)

    def call(self, inputs):
        x = self.normalize(inputs)
        x_channels = tf.transpose(x, perm=(0, 2, 1))
        mlp1_outputs = tf.transpose(self.mlp1(x_channels), perm=(0, 2, 1))
        x = mlp1_outputs + inputs
        x_patches = self.normalize(x)
        return x + self.mlp2(x_patches)


inputs = keras.Input((16, 16, 3))
x = layers.RandomFlip("horizontal", seed=1)(inputs)
x = layers.Conv2D(24, 4, strides=4)(x)
x = layers.Reshape((16, 24))(x)
for _ in range(2):
    x = MLPMixerLayer(16, 24, 0.1)(x)
x = layers.GlobalAveragePooling1D()(x)
outputs = layers.Dense(num_classes)(x)
model = keras.Model(inputs, outputs)

model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=0.005, weight_decay=0.0001),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
history = model.fit(
    images,
    labels,
    batch_size=64,
    epochs=6,
    validation_split=0.1,
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=2),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, restore_best_weights=True),
    ],
    verbose=0,
)
print("best val acc", max(history.history["val_acc"]))
print("final loss", history.history["loss"][-1])

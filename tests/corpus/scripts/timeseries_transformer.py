# backends: torch
# agrees: trend
import os

os.environ["KERAS_BACKEND"] = "torch"
import numpy as np
import keras
from keras import layers

# Classification of engine noise with transformer blocks.
np.random.seed(65)
keras.utils.set_random_seed(65)
n_classes = 2


def series(count, length=48):
    y = np.random.randint(0, n_classes, count)
    t = np.linspace(0, 1, length)
    x = np.sin(2 * np.pi * (4 + 3 * y[:, None]) * t + np.random.uniform(0, 6, (count, 1)))
    return (x + np.random.normal(0, 0.3, x.shape))[..., None].astype("float32"), y


x_train, y_train = series(320)
x_test, y_test = series(80)
idx = np.random.permutation(len(x_train))
x_train, y_train = x_train[idx], y_train[idx]


def transformer_encoder(inputs, head_size, num_heads, ff_dim, dropout=0):
    x = layers.MultiHeadAttention(key_dim=head_size, num_heads=num_heads, dropout=dropout)(inputs, inputs)
    x = layers.Dropout(dropout)(x)
    res = layers.LayerNormalization(epsilon=1e-6)(x) + inputs
    x = layers.Conv1D(filters=ff_dim, kernel_size=1, activation="relu")(res)
    x = layers.Conv1D(filters=inputs.shape[-1], kernel_size=1)(x)
    return layers.LayerNormalization(epsilon=1e-6)(x) + res


inputs = keras.Input(shape=x_train.shape[1:])
x = layers.Conv1D(8, 9, padding="same", activation="relu")(inputs)
x = transformer_encoder(x, head_size=8, num_heads=2, ff_dim=8, dropout=0.1)
x = layers.GlobalAveragePooling1D(data_format="channels_last")(x)
x = layers.Dense(16, activation="relu")(x)
outputs = layers.Dense(n_classes, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.Adam(learning_rate=5e-3),
    metrics=["sparse_categorical_accuracy"],
)
callbacks = [keras.callbacks.EarlyStopping(patience=10, restore_best_weights=True)]
model.fit(x_train, y_train, validation_split=0.2, epochs=8, batch_size=32, callbacks=callbacks, verbose=2)
print(model.evaluate(x_test, y_test, verbose=0))
